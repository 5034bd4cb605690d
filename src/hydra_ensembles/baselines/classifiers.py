"""One encoder with several classifiers: what the paper's text (5.2) literally says of its Deep Ensembles (D).

Shapes: B batch, M members, D width that a classifier sees, C classes.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import members_of, seen_and_made, tower_of
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import Member
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune_members
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.recipes import recipe_named


class ClassifierEnsemble(nn.Module):
    """M classifiers, each drawn with a seed of its own, on one encoder that stays as it is.

    A classifier is the last linear layer. The encoder runs once, without dropout.
    """

    def __init__(self, model: nn.Module, members: int = 3, seed: int = 0):
        super().__init__()
        self.networks = members_of(model, members, "an ensemble of classifiers")
        for m, network in enumerate(self.networks):
            assert isinstance(network, Member)
            draw_classifier(network, seed + m)

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train the classifiers, and nothing else."""
        finetune_members(list(self.networks), train, val, replace(recipe_named(recipe), head_only=True), **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every classifier `(B, M, C)`, from one pass through the encoder."""
        first, *others = (_tower(network) for network in self.networks)
        seen_BD, logits_BC = seen_and_made(first, inputs)
        return torch.stack([logits_BC, *(tower.readout.classifier(seen_BD) for tower in others)], dim=1)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One network, and M - 1 more classifiers."""
        one = network_cost(self.networks[0], self.networks[0], text_tokens)
        classifier = classifier_of(self.networks[0])
        more = len(self.networks) - 1
        own = Cost(sum(p.numel() for p in classifier.parameters()), classifier.weight.numel())
        return one + Cost(more * own.params, more * own.mult_adds)


def draw_classifier(member: Member, seed: int) -> None:
    """New numbers for the last linear layer, as torch draws them (uniform, by the width), from a seed."""
    classifier = classifier_of(member)
    if classifier is None:
        raise BaselineError(f"{type(member.model).__name__} has no classifier to draw; build it with classes")
    with own_randomness(), torch.no_grad():
        torch.manual_seed(seed)
        classes, width = classifier.weight.shape
        fresh = nn.Linear(width, classes, bias=classifier.bias is not None)
        for own, new in zip(classifier.parameters(), fresh.parameters(), strict=True):
            own.copy_(new)


def classifier_of(network: nn.Module) -> Any:
    """The last linear layer."""
    return _tower(network).readout.classifier


def _tower(network: nn.Module) -> Any:
    return tower_of(network.model if isinstance(network, Member) else network)
