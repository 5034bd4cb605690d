"""What a method that rebuilds a network starts from: copies of a classifier of one tower.

Shapes: N inputs, D width that the last layer sees, E what it makes of it.
"""

import copy
from typing import Any

from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs
from hydra_ensembles.backbones.attention import PackedQKVWithoutKeyBias
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.heads import HeadSet, Member, prune


def start_of(model: nn.Module, method: str) -> nn.Module:
    """A copy of a library's model, of a `Member` the model inside, once it is known to have what `method` needs."""
    inner = model.model if isinstance(model, Member) else model
    assert isinstance(inner, nn.Module)
    check_has_classifier(inner, method)
    return copy.deepcopy(inner)


def members_of(model: nn.Module, members: int, method: str) -> nn.ModuleList:
    """So many copies of a model as `Member`s that keep all its heads, once it is known to have what `method` needs."""
    start = model if isinstance(model, Member) else prune(model, HeadSet.all(model))
    check_has_classifier(start.model, method)
    return nn.ModuleList(copy.deepcopy(start) for _ in range(members))


def check_has_classifier(model: nn.Module, method: str) -> None:
    """Refuse a library's model that does not end in a classifier of its own."""
    view = Backbone.of(model)
    if view.contrast is not None or len(view.towers) != 1:
        raise BaselineError(f"{type(model).__name__} compares images with texts; {method} needs one with a classifier")
    if tower_of(model).readout.classifier is None:
        raise BaselineError(f"{type(model).__name__} has no classifier; build it with the number of classes")


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


def seen_and_made(tower: Any, inputs: Inputs | None) -> tuple[Tensor, Tensor]:
    """What the last linear layer of a tower sees `(N, D)`, and what it makes of it `(N, E)`."""
    seen: list[Tensor] = []
    hook = tower.readout.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        made_NE = tower(inputs)
    finally:
        hook.remove()
    return seen[0], made_NE


def module_with(model: nn.Module, weight: Tensor) -> nn.Module:
    """The module of a library's model whose `weight` this is."""
    return next(module for module in model.modules() if getattr(module, "weight", None) is weight)
