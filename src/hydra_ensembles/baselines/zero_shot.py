"""What baselines of zero-shot classifiers start from: features of images, once, and embeddings of classes.

Shapes: N inputs, R rows, D width, E features, C classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, ZeroShotClassifier
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import seen_and_made
from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.heads import Member


def zero_shot_of(network: nn.Module, method: str) -> ZeroShotClassifier:
    """The zero-shot classifier, of a `Member` the one inside; anything else is refused."""
    inner = network.model if isinstance(network, Member) else network
    if not isinstance(inner, ZeroShotClassifier):
        raise BaselineError(f"{method} is for zero-shot classifiers, found {type(inner).__name__}")
    return inner


def seen_and_features(classifier: ZeroShotClassifier, tower: str, inputs: Inputs | None) -> tuple[Tensor, Tensor]:
    """What the last linear layer of a tower sees `(N, D)`, and what it makes of it `(N, E)`.

    The text tower sees the prompts, whatever it is given. Through the composed backbone, which has no dropout.
    """
    found: Any = Backbone.of(classifier).towers[tower]
    last_layer(classifier, tower, found)  # refuses a tower without one
    return seen_and_made(found, inputs)


def last_layer(classifier: ZeroShotClassifier, tower: str, found: Any = None) -> Any:
    """The projection to the features that both towers share."""
    found = Backbone.of(classifier).towers[tower] if found is None else found
    if found.readout.classifier is None:
        raise BaselineError(f"tower '{tower}' of {type(classifier.model).__name__} ends in no linear layer")
    return found.readout.classifier


def by_batch(
    network: nn.Module, data: Data, look: Callable[[Tensor], tuple[Tensor, ...]], labels: bool = True
) -> tuple[tuple[Tensor, ...], Tensor]:
    """What `look` makes of every batch of images, joined, and the labels `(R,)`; without labels, empty ones."""
    parts, found = [], []
    device = next(network.parameters()).device
    batches = as_batches(data, 64)
    with torch.no_grad():
        for batch in batches:
            if labels and batch.labels is None:
                raise BaselineError("labels are needed; give (inputs, labels)")
            parts.append(look(inputs_to(batch.inputs, device)))  # type: ignore[arg-type]
            found.append(torch.as_tensor(batch.labels if labels else []).to(device).long())
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)), torch.cat(found)
