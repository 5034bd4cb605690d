"""What a method that rebuilds a network starts from: a copy of a classifier of one tower."""

import copy
from typing import Any

from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone
from hydra_ensembles.backbones.attention import PackedQKVWithoutKeyBias
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.heads import Member


def start_of(model: nn.Module, method: str) -> nn.Module:
    """A copy of a library's model, of a `Member` the model inside, once it is known to have what `method` needs."""
    inner = model.model if isinstance(model, Member) else model
    assert isinstance(inner, nn.Module)
    view = Backbone.of(inner)
    if view.contrast is not None or len(view.towers) != 1:
        raise BaselineError(f"{type(inner).__name__} compares images with texts; {method} needs one with a classifier")
    if tower_of(inner).readout.classifier is None:
        raise BaselineError(f"{type(inner).__name__} has no classifier; build it with the number of classes")
    return copy.deepcopy(inner)


def check_layers_are_called(model: nn.Module, method: str) -> None:
    """Refuse a model whose attention reads a layer's weight without calling it: wrapped, it would do nothing."""
    for _, _, block in Backbone.of(model).blocks():
        if isinstance(block.attention.qkv, PackedQKVWithoutKeyBias):
            raise BaselineError(
                f"{block.path}: its attention reads the weights of queries, keys and values without calling their "
                f"layer, so {method} cannot change it; take a model with three layers (eva02_base) or another family"
            )


def tower_of(model: nn.Module) -> Any:
    """The one tower of a library's model, as parts that hold the model's own parameters."""
    (tower,) = Backbone.of(model).towers.values()
    return tower


def module_with(model: nn.Module, weight: Tensor) -> nn.Module:
    """The module of a library's model whose `weight` this is."""
    return next(module for module in model.modules() if getattr(module, "weight", None) is weight)
