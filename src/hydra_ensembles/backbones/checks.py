"""The checks at the door: a model is what its parts say, or it is refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones.parts import UnsupportedBackbone
from hydra_ensembles.backbones.state import State
from hydra_ensembles.errors import HydraError, in_one_line

if TYPE_CHECKING:
    from hydra_ensembles.backbones.backbone import Backbone

_OWN = "add the family with register_backbone"


def check_every_parameter_is_read(model: nn.Module, backbone: "Backbone") -> None:
    """Refuse a model with a parameter that no part holds, or that two blocks share."""
    read = {id(p) for p in backbone.parameters()}
    for name, parameter in model.named_parameters():
        if id(parameter) not in read:
            owner = name.rpartition(".")[0]
            kind = type(model.get_submodule(owner)).__name__
            raise UnsupportedBackbone(
                f"{owner or type(model).__name__} ({kind}): parameter '{name}' has no place in the backbone "
                f"contract, and leaving it out would change the model; {_OWN}"
            )
    seen: set[int] = set()
    for _, _, block in backbone.blocks():
        mine = {id(p) for p in block.parameters()}
        if mine & seen:
            raise UnsupportedBackbone(f"{block.path}: shares parameters with another block; its heads are not its own")
        seen |= mine


def check_same_arithmetic(model: nn.Module, backbone: "Backbone", own_forward: Callable[..., Tensor]) -> bool:
    """Refuse a model that computes something else than its parameter layout suggests; False where it gives no numbers.

    Every block is tried on four random tokens, then the whole model on one random input: the library's forward against
    ours. timm's ResPostBlock, for one, has the parameters of a plain block and another arithmetic.
    """
    if not backbone.towers or next(backbone.parameters()).is_meta:
        return True
    for name, tower in backbone.towers.items():
        if not len(tower.blocks):
            raise UnsupportedBackbone(f"tower '{name}' of {type(model).__name__} has no blocks")
    # Under a caller's autocast the two would differ by their rounding.
    with torch.autocast(next(backbone.parameters()).device.type, enabled=False):
        for tower_name, _, block in backbone.blocks():
            if block.own is not None:
                width = backbone.towers[tower_name].stem.width
                x = _random((1, 4, width), block.attention.out.weight)
                _compare(block.path, lambda b=block, x=x: b.own(x) - x, lambda b=block, x=x: b(State(x)).tokens - x)  # type: ignore[misc]
        inputs = backbone.sample()
        with _answering(backbone):
            return _compare(type(model).__name__, lambda: own_forward(model, inputs), lambda: backbone(inputs), model)


def _compare(path: str, own: Callable[[], Tensor], ours: Callable[[], Tensor], model: nn.Module | None = None) -> bool:
    """Are there finite numbers, all of them the same? (Memory before it is filled may have none.)"""
    try:
        with torch.no_grad(), evaluating(model or nn.Identity()):
            expected, found = own(), ours()
        is_number = expected.isfinite()
        expected, found = expected[is_number], found[is_number]
        difference = ((expected - found).norm() / expected.norm().clamp_min(1e-30)).item()
    except HydraError:
        raise
    except Exception as error:
        raise UnsupportedBackbone(
            f"{path}: cannot be tried on a random input ({in_one_line(error)}); {_OWN}"
        ) from error
    if not difference <= (1e-3 if expected.dtype in (torch.float32, torch.float64) else 0.1):
        raise UnsupportedBackbone(
            f"{path}: has parameters in a known layout but computes something else "
            f"(relative difference {difference:.1e} on a random input); {_OWN}"
        )
    return bool(is_number.any())


@contextmanager
def _answering(backbone: "Backbone") -> Iterator[None]:
    """Classifiers whose weights are all zero, as new ones of torchvision are, hold random ones meanwhile.

    Behind zeros every model would look the same.
    """
    classifiers = [tower.readout.classifier for tower in backbone.towers.values()]
    silent = [one.weight for one in classifiers if one is not None and not one.weight.any()]
    try:
        with torch.no_grad():
            for weight in silent:
                weight.copy_(_random(tuple(weight.shape), weight))
        yield
    finally:
        with torch.no_grad():
            for weight in silent:
                weight.zero_()


def _random(shape: tuple[int, ...], like: Tensor) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(0)
    return torch.randn(shape, generator=generator, device="cpu").to(like)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Dropout and stochastic depth off, every flag restored afterwards."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def own_block(module: nn.Module, **arguments: Any) -> Callable[[Tensor], Tensor]:
    """The library's forward of a block on tokens `(B, T, D)`, without dropout; it may ask for more arguments."""

    def forward(x: Tensor) -> Tensor:
        with evaluating(module):
            out: Any = module(x, **arguments)
        return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]

    return forward
