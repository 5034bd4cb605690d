"""MIMO (Havasi et al., 2021): one network that takes M images at once and answers M times, made of a pre-trained one.

Shapes: B batch, M members, R repetitions of a batch, N = R * B rows, P pixels' channels, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs, family_of
from hydra_ensembles.backbones.stems import PatchStem
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import module_with, start_of, tower_of
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.trainee import Trainee
from hydra_ensembles.optional import import_extra


class Mimo(nn.Module):
    """M subnetworks in one network: a new patch stem and a new classifier, all between them pre-trained.

    The stem takes M images, channels behind each other; its filters are the pre-trained ones divided by M, so M times
    the same image becomes the tokens that the pre-trained network makes of it. The classifier has M * C outputs, drawn
    anew. In training every subnetwork sees the batch in an order of its own, so that an output must learn which image
    is its own; asked, all see the same image. The paper trains such a network from nothing.

    Args:
        model: takes images.
        members: M.
        input_repetition: the share of rows in which all subnetworks see the same image (the paper's rho).
        batch_repetition: how often a batch is repeated in a step, in other orders (R).
        seed: of the classifier.
    """

    def __init__(
        self,
        model: nn.Module,
        members: int = 3,
        input_repetition: float = 0.0,
        batch_repetition: int = 1,
        seed: int = 0,
    ):
        super().__init__()
        start = start_of(model, "MIMO")
        if not isinstance(tower_of(start).stem, PatchStem):
            raise BaselineError(f"{type(start).__name__} takes tokens; MIMO joins the channels of images")
        _widen(start, members, seed)
        self.network = MimoTrainee(start, members, input_repetition, batch_repetition)

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train the network; `options` are those of `finetune`. What is new is trained whatever the recipe freezes."""
        finetune(self.network, train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every subnetwork `(B, M, C)`, all asked about the same image."""
        return self.network.answers(inputs)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One network, with a larger stem and classifier."""
        return network_cost(self.network.model, self.network.model, text_tokens)


class MimoTrainee(Trainee):
    """In training, logits `(B, M * R, C)`: what each subnetwork said about each image, in whatever row it saw it."""

    def __init__(self, model: nn.Module, members: int, input_repetition: float, batch_repetition: int):
        super().__init__(model)
        self.num_members = members
        transforms = import_extra("torch_uncertainty.transforms.batch", "eval", "MIMO")
        try:
            self.drawing = transforms.MIMOBatchFormat(members, input_repetition, batch_repetition)
        except ValueError as error:
            raise BaselineError(f"MIMO: {error}") from None
        # In the state, so that a checkpoint of another setting is refused.
        self.register_buffer("repetition", torch.tensor([input_repetition, batch_repetition]))

    def forward(self, inputs: Inputs) -> Tensor:
        if not self.training:
            return self.answers(inputs)
        images = _images(inputs)
        rows = torch.arange(len(images), device=images.device)
        drawn, _ = self.drawing((rows, rows))
        seen_MN = drawn.unflatten(0, (self.num_members, -1))
        logits_NMC = self._logits(torch.cat([images[seen] for seen in seen_MN], dim=1))
        back_MN = seen_MN.argsort(dim=1, stable=True)
        by_image = [logits_NMC[back, m].unflatten(0, (len(images), -1)) for m, back in enumerate(back_MN)]
        return torch.cat(by_image, dim=1)

    def answers(self, inputs: Inputs) -> Tensor:
        """Logits `(B, M, C)` where all subnetworks see the same image."""
        return self._logits(_images(inputs).repeat(1, self.num_members, 1, 1))

    def trained(self, recipe: Recipe) -> dict[str, nn.Parameter]:
        """What the recipe moves, and the stem's filters: left as they start, no subnetwork could tell its image."""
        stem = self.tower.stem
        new = {id(p) for p in (stem.weight, stem.bias) if p is not None}
        filters = {name: p for name, p in self.model.named_parameters() if id(p) in new and p.requires_grad}
        return super().trained(recipe) | filters

    def _logits(self, images: Tensor) -> Tensor:
        logits = family_of(self.model).own_forward(self.model, images)
        return logits.unflatten(1, (self.num_members, -1))  # type: ignore[no-any-return]


def _images(inputs: Inputs) -> Tensor:
    return inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]


def _widen(model: nn.Module, members: int, seed: int) -> None:
    """A stem for M images and a classifier for M answers, in place."""
    tower = tower_of(model)
    conv: Any = module_with(model, tower.stem.weight)
    conv.weight = nn.Parameter(conv.weight.detach().repeat(1, members, 1, 1) / members)
    conv.in_channels *= members
    for part in model.modules():
        if hasattr(part, "num_channels"):  # transformers looks whether images have as many
            part.num_channels = conv.in_channels
    classifier: Any = module_with(model, tower.readout.classifier.weight)
    with own_randomness():
        torch.manual_seed(seed)
        fresh = nn.Linear(classifier.in_features, members * classifier.out_features, classifier.bias is not None)
    classifier.weight = nn.Parameter(fresh.weight.detach().to(classifier.weight))
    if classifier.bias is not None:
        classifier.bias = nn.Parameter(fresh.bias.detach().to(classifier.bias))
    classifier.out_features = fresh.out_features
