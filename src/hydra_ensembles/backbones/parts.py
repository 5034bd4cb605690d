"""The few parts every supported transformer is made of: norms, activations, feed-forward layers.

A part holds the model's own parameters, not copies: it is a way to read the model. Its `spec` is JSON and says
everything about it but the numbers in its tensors.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.errors import HydraError


class UnsupportedBackbone(HydraError):
    """The model, or a module of it, is outside the backbone contract."""


class Part(nn.Module):
    """A module that can say in JSON what it is, and be rebuilt from that."""

    facts: ClassVar[tuple[str, ...]] = ()
    whole_numbers: ClassVar[tuple[str, ...]] = ()
    """Tensors that are not trained and hold token ids, say."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Tensors that are computed once and no parameters: buffers."""
    _kinds: ClassVar[dict[str, type["Part"]]] = {}

    def __init_subclass__(cls) -> None:
        Part._kinds[cls.__name__] = cls

    def spec(self) -> dict[str, Any]:
        """Kind, settings, shapes of tensors, parts inside; what it could have but has not."""
        return {
            "part": type(self).__name__,
            **{fact: getattr(self, fact) for fact in self.facts},
            "tensors": {name: list(tensor.shape) for name, tensor in named_tensors(self, recurse=False)},
            "parts": {name: spec_of(child) for name, child in self.named_children()},
            "absent": [name for name, value in vars(self).items() if value is None and self._may_have(name)],
        }

    def _may_have(self, name: str) -> bool:
        """Is it ours, and not one of torch's own or a setting?"""
        return name not in self.facts and not name.startswith("_")


def named_tensors(module: nn.Module, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Parameters and tables."""
    yield from module.named_parameters(recurse=recurse)
    yield from module.named_buffers(recurse=recurse)


def spec_of(module: nn.Module) -> Any:
    """The spec of a part, of a linear layer, or of a list or dictionary of them."""
    if isinstance(module, Part):
        return module.spec()
    if isinstance(module, nn.ModuleList):
        return [spec_of(child) for child in module]
    if isinstance(module, nn.ModuleDict):
        return {"part": "ModuleDict", "parts": {name: spec_of(child) for name, child in module.items()}}
    assert isinstance(module, nn.Linear)
    return {"part": "Linear", "tensors": {name: list(p.shape) for name, p in module.named_parameters()}}


def rebuild(spec: Any) -> Any:
    """The part that a spec describes, its tensors without memory: load them with `assign=True`."""
    if isinstance(spec, list):
        return nn.ModuleList(rebuild(child) for child in spec)
    kind = spec["part"]
    if kind == "Linear":
        # Sized by hand: torch warns when it initialises a layer without rows or columns.
        layer = nn.Linear(1, 1, bias="bias" in spec["tensors"], device="meta")
        layer.out_features, layer.in_features = spec["tensors"]["weight"]
        for name, shape in spec["tensors"].items():
            setattr(layer, name, nn.Parameter(torch.empty(shape, device="meta")))
        return layer
    if kind == "ModuleDict":
        return nn.ModuleDict({name: rebuild(child) for name, child in spec["parts"].items()})
    if kind not in Part._kinds:
        raise HydraError(f"a part named '{kind}' is not known; it may come from a newer version of this library")
    part = Part._kinds[kind].__new__(Part._kinds[kind])
    nn.Module.__init__(part)
    for name in part.facts:
        if name in spec or not hasattr(type(part), name):  # a fact that came later has a value on its class
            setattr(part, name, spec[name])
    for name in spec["absent"]:
        setattr(part, name, None)
    for name, shape in spec["tensors"].items():
        is_whole = name in part.whole_numbers
        empty = torch.empty(shape, device="meta", dtype=torch.int64 if is_whole else None)
        if name in part.tables:
            part.register_buffer(name, empty)
        else:
            part.register_parameter(name, nn.Parameter(empty, requires_grad=not is_whole))
    for name, child in spec["parts"].items():
        part.add_module(name, rebuild(child))
    return part


def may_overwrite() -> bool:
    """Intermediate results may be written over: neither a gradient nor a compiler looks at them."""
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()


SLICE_BYTES = 24 * 2**20


def num_slices(rows: Tensor, hidden: int) -> int:
    """Into how many parts rows are cut, so that `hidden` numbers of each row of a part fit."""
    return max(1, -(-len(rows) * hidden * rows.element_size() // SLICE_BYTES))


def in_slices(layer: Callable[[Tensor], Tensor], x: Tensor, hidden: int, onto: Tensor | None = None) -> Tensor:
    """`layer(x)`, a part of the rows at a time where `hidden` numbers a row would fill too much memory at once.

    On Linux a tensor past 32 MB is fresh memory at every call, and touching it costs more than the layer's arithmetic.
    With `onto`, `onto + layer(x)`, written over `onto`: each part is added where it belongs, and copied nowhere else.
    """
    if x.device.type != "cpu" or not may_overwrite():
        return layer(x) if onto is None else onto.add_(layer(x))
    rows = x.flatten(0, -2)
    if num_slices(rows, hidden) == 1:
        return layer(x) if onto is None else onto.add_(layer(x))
    slices = rows.tensor_split(num_slices(rows, hidden))
    if onto is not None and onto.is_contiguous():
        for place, part in zip(onto.view(len(rows), -1).tensor_split(len(slices)), slices, strict=True):
            place.add_(layer(part))
        return onto
    first = layer(slices[0])
    out = first.new_empty(len(rows), first.shape[-1])
    places = out.tensor_split(len(slices))
    places[0].copy_(first)
    for place, part in zip(places[1:], slices[1:], strict=True):
        place.copy_(layer(part))
    out = out.reshape(*x.shape[:-1], -1)
    return out if onto is None else onto.add_(out)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}

OVERWRITING: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "relu": torch.relu_,
}
"""Activations that have a form in place, in that form."""

_ACTIVATION_CLASSES = {
    "GELU": "gelu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "GeluTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "QuickGELU": "quick_gelu",
    "QuickGELUActivation": "quick_gelu",
    "QuickGelu": "quick_gelu",
    "ReLU": "relu",
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "Swish": "silu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
}


def activation_name(module: nn.Module, path: str) -> str:
    """Our name for a library's activation module.

    >>> activation_name(nn.GELU(approximate="tanh"), "blocks.0.mlp.act")
    'gelu_tanh'
    """
    name = _ACTIVATION_CLASSES.get(type(module).__name__)
    if name is None:
        raise UnsupportedBackbone(
            f"{path}: activation {type(module).__name__} is not known; known: {', '.join(ACTIVATIONS)}"
        )
    return "gelu_tanh" if name == "gelu" and getattr(module, "approximate", "none") == "tanh" else name


class Norm(Part):
    """LayerNorm (`kind="layer"`) or RMSNorm (`kind="rms"`) over the last dimension."""

    facts = ("kind", "eps", "size")

    def __init__(self, kind: str, weight: Tensor | None, bias: Tensor | None, eps: float, size: int):
        super().__init__()
        self.kind, self.eps, self.size = kind, eps, size
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)
        return F.rms_norm(x, (self.size,), self.weight, self.eps)


def norm_of(module: nn.Module, path: str) -> Norm | None:
    """A library's norm as ours; None for an identity."""
    if isinstance(module, nn.Identity):
        return None
    if isinstance(module, nn.LayerNorm):
        return Norm("layer", module.weight, module.bias, module.eps, module.normalized_shape[-1])
    if type(module).__name__ in ("RMSNorm", "RmsNorm", "RmsNormFp32"):
        size = module.normalized_shape[-1]  # type: ignore[index]
        return Norm("rms", module.weight, getattr(module, "bias", None), module.eps, int(size))  # type: ignore[arg-type]
    raise UnsupportedBackbone(f"{path}: norm {type(module).__name__} is not known; known: LayerNorm, RMSNorm")


def linear_of(module: nn.Module, path: str) -> nn.Linear:
    """The module itself, if it is a plain linear layer."""
    if not isinstance(module, nn.Linear):
        raise UnsupportedBackbone(f"{path}: expected a linear layer, found {type(module).__name__}")
    for name, _ in module.named_parameters():
        if name not in ("weight", "bias"):
            raise UnsupportedBackbone(f"{path} ({type(module).__name__}): a linear layer has no parameter '{name}'")
    return module


def through(module: nn.Module | None, x: Tensor) -> Tensor:
    """`module(x)`, or `x` where there is no module."""
    return x if module is None else module(x)


class Scale(Part):
    """LayerScale: one factor a channel."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def scale_of(module: nn.Module | None) -> Scale | None:
    """A library's LayerScale as ours; None for an identity."""
    gamma = getattr(module, "gamma", None)
    return None if gamma is None else Scale(gamma)


class FeedForward(Part):
    """The MLP of a block; gated variants multiply one half of the hidden layer by the activated other.

    `gate` is None, `"first"` or `"last"` (which half of a packed `fc_in` is activated), or `"own"` (a layer `fc_gate`).
    """

    facts = ("activation", "gate")

    def __init__(
        self,
        fc_in: nn.Linear,
        fc_out: nn.Linear,
        activation: str,
        gate: str | None = None,
        fc_gate: nn.Linear | None = None,
        norm: Norm | None = None,
    ):
        super().__init__()
        self.fc_in, self.fc_out, self.fc_gate, self.norm = fc_in, fc_out, fc_gate, norm
        self.activation, self.gate = activation, gate

    def forward(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """The MLP of `x`; with `onto`, `onto` plus that, written over `onto`."""
        if all(isinstance(part, nn.Linear | Norm) for part in self.children()):  # no part of one member's own
            return in_slices(self.whole, x, self.fc_out.in_features, onto)
        return self.whole(x) if onto is None else onto.add_(self.whole(x))

    def whole(self, x: Tensor) -> Tensor:
        """All rows at once."""
        act = ACTIVATIONS[self.activation]
        hidden = self.fc_in(x)
        if self.gate is None:
            hidden = (OVERWRITING.get(self.activation, act) if may_overwrite() else act)(hidden)
        elif self.gate == "own":
            assert self.fc_gate is not None
            hidden = act(self.fc_gate(x)) * hidden
        else:
            first, last = hidden.chunk(2, dim=-1)
            hidden = act(first) * last if self.gate == "first" else first * act(last)
        return self.fc_out(through(self.norm, hidden))  # type: ignore[no-any-return]
