"""What an analysis looks into: one network of one tower, its heads numbered as in the backbone it came from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from hydra_ensembles.backbones import Backbone, Tower
from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.heads import HeadSet, Member


class AnalysisError(HydraError):
    """A model, data or settings that an analysis cannot be made of."""


class Subject(NamedTuple):
    """The tower of a network, and which heads of the backbone it has."""

    name: str
    tower: Tower
    heads: HeadSet
    device: torch.device


def one_tower(model: nn.Module) -> Subject:
    """The only tower of a model or member; others are refused."""
    if isinstance(model, Hydra):
        raise AnalysisError(
            f"this analysis looks into one network, found a hydra of {model.num_members}; give one of its members"
        )
    inner = model.model if isinstance(model, Member) else model
    backbone = inner if isinstance(inner, Backbone) else Backbone.of(inner)
    if len(backbone.towers) > 1:
        raise AnalysisError(
            f"this analysis looks into one tower, {type(inner).__name__} has {', '.join(backbone.towers)}; "
            "give a model of one tower"
        )
    ((name, tower),) = backbone.towers.items()
    heads = model.heads if isinstance(model, Member) else HeadSet.all(backbone)
    return Subject(name, tower, heads, next(backbone.parameters()).device)


def check_unknown(ood_data: Mapping[str, Any]) -> None:
    """Refuse no unknown set at all, and one whose name means something else in a results file."""
    if not ood_data:
        raise AnalysisError("there is no unknown set to compare with; give ood_data={name: data}")
    for name in ood_data:
        if name in (ID_TEST, AVERAGE):
            raise AnalysisError(f"an unknown set cannot be called '{name}'; that is the name of another figure")
