"""From rows to the batches that a model takes, by what the model itself says about its inputs and its classes."""

import inspect
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Origin, UnsupportedBackbone, origin_of
from hydra_ensembles.backbones.references import num_classes
from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.images import ImageBatches, ImageTransform
from hydra_ensembles.data.opening import open_data
from hydra_ensembles.data.rows import Rows
from hydra_ensembles.data.texts import TextBatches, Tokenizer
from hydra_ensembles.errors import HydraWarning

_NO_NAME = r"(LABEL_|class_?)?\d+"
"""What libraries call classes that nobody has named."""
Knowing: TypeAlias = nn.Module | Mapping[str, Any]
"""A model, a member or a hydra; or the JSON of its preprocessing alone."""


def batches_for(
    model: Knowing,
    rows: Rows,
    *,
    batch_size: int = 64,
    shuffle: bool = False,
    seed: int = 0,
    labels: bool = True,
    augment: str | bool = False,
    first_size: int | None = None,
    workers: int | None = None,
    max_tokens: int | None = None,
) -> ImageBatches | TextBatches:
    """Rows in the form that a model takes, read and prepared a batch at a time.

    Args:
        model: what says how its inputs are prepared: a model, a member, a hydra, or that preprocessing itself.
        rows: from `open_data`.
        batch_size: rows in a batch; the last may have fewer.
        shuffle: another order in every epoch, the same in every run.
        seed: of order and augmentation.
        labels: False leaves them out, as for out-of-distribution sets, whose labels mean nothing to the model.
        augment: for training images: "flip", "crop" (which True means) or "resized-crop".
        first_size: bring every image to this size first, then to the model's.
        workers: threads that decode images, each one batch ahead; 0 for none.
        max_tokens: cut texts shorter than the model itself would.
    """
    preprocess = preprocess_of(model)
    kind = preprocess.get("kind", "image" if "mean" in preprocess else "text")
    if kind != rows.kind:
        raise DataError(f"the model takes {kind}s, but {rows.where} holds {rows.kind}s")
    numbers = labels_for(model, rows) if labels else None
    if kind == "image":
        if max_tokens is not None:
            raise DataError("max_tokens is for texts; the model takes images")
        chosen = "crop" if augment is True else augment or "none"
        transform = ImageTransform(preprocess, first_size, chosen)
        return ImageBatches(transform, rows, numbers, batch_size, shuffle, seed, workers)
    if augment or first_size is not None:
        raise DataError("augment and first_size are for images; the model takes texts")
    return TextBatches(Tokenizer(preprocess, max_tokens), rows, numbers, batch_size, shuffle, seed)


def load_data(reference: str | Path, model: Knowing, **options: Any) -> ImageBatches | TextBatches:
    """`open_data` and `batches_for` in one step; it takes the options of both."""
    for_opening = inspect.signature(open_data).parameters
    opening = {name: options.pop(name) for name in list(options) if name in for_opening}
    return batches_for(model, open_data(reference, **opening), **options)


def preprocess_of(model: Knowing) -> Mapping[str, Any]:
    """What a model, a member or a hydra wants done to its inputs."""
    if isinstance(model, Mapping):
        return model
    found = _said(model, "preprocess")
    if not isinstance(found, Mapping):
        raise DataError(
            f"{type(model).__name__} does not say how its inputs are prepared; load it with load_model from a "
            "directory that does (for texts with tokenizer.json or vocab.txt), or give its preprocessing in place of "
            "the model"
        )
    return found


def classes_of(model: Knowing) -> list[str] | None:
    """The names of a model's classes, where it knows them."""
    found = None if isinstance(model, Mapping) else _said(model, "classes")
    return found if isinstance(found, list) else None


def labels_for(model: Knowing, rows: Rows) -> Tensor | None:
    """The labels as the model counts its classes.

    Where both sides name their classes, names decide, and one that the model does not know is refused; but numbers
    stay where the model knows none of the set's names, or has all that it knows in the same places. Numbers that the
    model does not have are refused.
    """
    labels, names = rows.labels, rows.classes
    if labels is None:
        return None
    classes = classes_of(model)
    hint = "only unknown (out-of-distribution) inputs go without labels (labels=False)"
    if classes and names:
        places = [_place(name, label, classes) for label, name in enumerate(names)]
        moved = any(place not in (None, label) for label, place in enumerate(places))
        if rows.labels_were_names or moved:
            unknown = next((label for label in labels.unique().tolist() if places[label] is None), None)
            if unknown is not None:
                raise DataError(f"{rows.where} has class '{names[unknown]}', which the model does not know; {hint}")
            return torch.tensor([-1 if place is None else place for place in places])[labels]
        if set(places) == {None} and not all(re.fullmatch(_NO_NAME, name) for name in classes):
            warnings.warn(
                f"{rows.where} has classes that the model does not know ({names[0]}, ...; the model's are "
                f"{classes[0]}, ...): its labels are taken as the model's numbers",
                HydraWarning,
                stacklevel=2,
            )
    count = len(classes) if classes else num_classes(model)
    if rows.labels_were_names and not classes and count is not None and len(names or ()) != count:
        raise DataError(
            f"{rows.where} names {len(names or ())} classes, but the model has {count} and does not name them, so "
            "which is which cannot be told; use a model that names its classes, or numbers from 0 as labels"
        )
    if count is not None and int(labels.max()) >= count:
        place = int((labels >= count).int().argmax())
        raise DataError(
            f"row {rows.chosen[place]} of {rows.where} has label {labels[place]}, but the model has {count} classes, "
            f"counted from 0; {hint}"
        )
    return labels


def _place(name: str, label: int, classes: list[str]) -> int | None:
    """The number of the class of this name; ImageNet has two cranes, so a class that keeps its number comes first."""
    if label < len(classes) and classes[label] == name:
        return label
    return classes.index(name) if classes.count(name) == 1 else None


def _said(model: nn.Module, field: str) -> Any:
    if isinstance(getattr(model, field, None), Mapping | list):  # a hydra says it itself
        return getattr(model, field)
    try:
        origin: Any = origin_of(model)
    except UnsupportedBackbone:
        origin = getattr(model, "origin", None)  # a member's
    return getattr(origin, field) if isinstance(origin, Origin) else None
