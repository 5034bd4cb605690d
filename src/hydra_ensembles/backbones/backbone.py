"""A backbone: a transformer read through the contract, and the registry of families that can be read so.

`Backbone.of(model)` is a view: its parts hold the model's own parameters. Nothing is copied, and a change of the
model's numbers is a change of the view's. After a change of its structure (pruning, a new classifier) take a new one.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.checks import check_every_parameter_is_read, check_same_arithmetic
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import Part, UnsupportedBackbone
from hydra_ensembles.backbones.readouts import Readout
from hydra_ensembles.backbones.state import State
from hydra_ensembles.backbones.stems import InputError, PatchStem, TokenStem
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.store import check_tensors

Inputs: TypeAlias = Tensor | Mapping[str, Any]

_tried: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()


def by_tower(inputs: Inputs, towers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inputs of a model with several towers, checked to name them."""
    found = [] if isinstance(inputs, Tensor) else sorted(inputs)
    if isinstance(inputs, Tensor) or found != sorted(towers):
        what = "a tensor" if isinstance(inputs, Tensor) else f"{found}"
        raise InputError(f"this backbone takes inputs by tower, {{{', '.join(sorted(towers))}}}; found {what}")
    return inputs


class Tower(Part):
    """One encoder: stem, blocks, readout."""

    def __init__(self, stem: PatchStem | TokenStem, blocks: list[Block], readout: Readout):
        super().__init__()
        self.stem, self.blocks, self.readout = stem, nn.ModuleList(blocks), readout

    def forward(self, inputs: Inputs, last_block: str = "read") -> Tensor:
        """Logits or features; `last_block="full"` computes every token of the last block, read or not."""
        if last_block not in ("read", "full"):
            raise InputError(f"last_block={last_block!r} is not known; it is 'read' or 'full'")
        state: State = self.stem(inputs)
        for block in self.blocks[:-1]:
            state = block(state)
        state = self.blocks[-1](state, self.readout.reads(state) if last_block == "read" else None)
        return self.readout(state)  # type: ignore[no-any-return]


class Contrast(Part):
    """Joins an image and a text tower: scaled cosine similarities `(images, texts)`."""

    def __init__(self, logit_scale: nn.Parameter, logit_bias: nn.Parameter | None = None):
        super().__init__()
        self.logit_scale, self.logit_bias = logit_scale, logit_bias

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        image, text = (F.normalize(features[tower], dim=-1) for tower in ("vision", "text"))
        logits = self.logit_scale.exp() * image @ text.T
        return logits if self.logit_bias is None else logits + self.logit_bias


class Backbone(Part):
    """Towers by name, and how their features join into logits."""

    towers: dict[str, Tower]
    fixed: tuple[str, ...] = ()
    """Towers that do not look at the inputs."""

    def __init__(self, towers: Mapping[str, Tower], contrast: Contrast | None = None):
        super().__init__()
        self.towers = nn.ModuleDict(towers)  # type: ignore[assignment]
        self.contrast = contrast

    @classmethod
    def of(cls, model: nn.Module) -> "Backbone":
        """Read `model` through the contract, or refuse it and say why."""
        try:
            backbone = family_of(model).view(model)
        except AttributeError as error:
            raise UnsupportedBackbone(
                f"{type(model).__name__}: not in a layout that its family reads ({error}); "
                "add one that does with register_backbone"
            ) from error
        check_every_parameter_is_read(model, backbone)
        # Trying the model costs a forward; once for a model in its present structure is enough.
        spec = backbone.spec()
        if _tried.get(model) != spec and check_same_arithmetic(model, backbone, family_of(model).own_forward):
            _tried[model] = spec
        return backbone

    @property
    def num_classes(self) -> int | None:
        """How many; None without a classifier, and for two towers that compare images with any texts."""
        if self.contrast is not None:
            return None
        (tower,) = self.towers.values()
        return None if tower.readout.classifier is None else tower.readout.classifier.out_features

    @property
    def ends_in_features(self) -> bool:
        """Is there neither a classifier nor a comparison of two towers, whose answers could be judged?"""
        return self.num_classes is None and self.contrast is None

    def parts(self, inputs: Inputs) -> Mapping[str, Any]:
        """What each tower takes; with several towers, inputs by tower name."""
        if len(self.towers) == 1:
            return dict.fromkeys(self.towers, inputs)
        return by_tower(inputs, self.towers)

    def sample(self) -> Inputs:
        """One random input that fits, to try the model with."""
        samples = {name: tower.stem.sample() for name, tower in self.towers.items()}
        return samples if len(samples) > 1 else next(iter(samples.values()))

    def features(self, inputs: Inputs) -> dict[str, Tensor]:
        """Each tower's output."""
        return {name: self.towers[name](part) for name, part in self.parts(inputs).items()}

    def join(self, features: Mapping[str, Tensor]) -> Tensor:
        """Logits `(B, C)`: one tower's output as it is, two towers' similarities."""
        if self.contrast is None:
            (logits,) = features.values()
            return logits
        return self.contrast(features)  # type: ignore[no-any-return]

    def forward(self, inputs: Inputs) -> Tensor:
        return self.join(self.features(inputs))

    def blocks(self) -> Iterator[tuple[str, int, Block]]:
        """Every block, as (tower, layer, block)."""
        for name, tower in self.towers.items():
            for layer, block in enumerate(tower.blocks):
                assert isinstance(block, Block)
                yield name, layer, block


class Family(Protocol):
    """What a family of models must bring; a module with these functions is one."""

    def recognises(self, model: nn.Module) -> bool:
        """Is `model` of this family? Answered without importing its library."""

    def view(self, model: nn.Module) -> Backbone:
        """The model's parameters, read as parts."""

    def own_forward(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The model's own logits `(B, C)`; images may come in any floating dtype, or as `pixel_values` of a mapping."""

    def origin(self, model: nn.Module) -> Origin:
        """How to build a model of this shape again; asked of an unpruned model."""

    def build(self, origin: Origin) -> nn.Module:
        """A model of that shape, with no weights loaded and nothing fetched."""


_families: dict[str, str | Family] = {
    "timm": "hydra_ensembles.backbones.timm",
    "timm_eva": "hydra_ensembles.backbones.timm_eva",
    "torchvision": "hydra_ensembles.backbones.torchvision",
    "transformers": "hydra_ensembles.backbones.transformers",
    "open_clip": "hydra_ensembles.backbones.open_clip",
    "zero_shot": "hydra_ensembles.backbones.zero_shot",
}


_ASKED = ("recognises", "view", "own_forward", "origin", "build")
"""Functions that a family must have."""


def register_backbone(library: str, family: Family) -> None:
    """Teach the library a family of models; one registered later is asked first.

    `library` is the name under which its models stand in a store's config.json.
    """
    missing = [] if isinstance(family, str) else [name for name in _ASKED if not callable(getattr(family, name, None))]
    if missing:
        raise UnsupportedBackbone(
            f"the family '{library}' has no {', '.join(missing)}; a family has {', '.join(_ASKED)}"
        )
    _families.pop(library, None)
    _families[library] = family


def family_named(library: str) -> Family:
    """The family registered for a library."""
    if library not in _families:
        raise UnsupportedBackbone(
            f"library '{library}' is not known; known: {', '.join(_families)}; add one with register_backbone"
        )
    family = _families[library]
    return import_module(family) if isinstance(family, str) else family


def build_model(origin: Origin) -> nn.Module:
    """A model of that shape, by the family that knows its library, with no weights loaded and nothing fetched."""
    family = family_named(origin.library)
    try:
        return family.build(origin)
    except HydraError:
        raise
    except Exception as error:
        # Whatever a library's constructor makes of settings it does not like.
        raise UnsupportedBackbone(
            f"{origin.library} cannot build '{origin.architecture}' with {origin.kwargs}: {in_one_line(error)}"
        ) from error


def filled(build: Callable[[], nn.Module], directory: str | Path, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model that `build` makes, with the tensors of a directory in place of its own, in the dtypes they have.

    It is built without memory first, so that no weights are drawn which are then thrown away; once more in earnest
    only where it holds what is computed and not stored: positions, a mask, a table.
    """
    try:
        with torch.device("meta"):
            model = build()
    except UnsupportedBackbone:  # a constructor that looks at its numbers, or settings that it does not like
        model = build()
    check_tensors(directory, tensors, model.state_dict())
    model.load_state_dict(tensors, assign=True)
    attributes = [value for module in model.modules() for value in vars(module).values()]
    if any(isinstance(one, Tensor) and one.is_meta for one in (*model.buffers(), *attributes)):
        model = build()
        model.load_state_dict(tensors, assign=True)
    return model


def table_not_computed(model: nn.Module, build: Callable[[], nn.Module]) -> str | None:
    """A table that is not stored and that `build` would not compute as the model has it; None where all come back."""
    stored = model.state_dict()
    tables = {name: of for name, of in model.named_buffers() if name not in stored and of.is_floating_point()}
    if not tables:
        return None
    with torch.random.fork_rng(devices=[]):  # weights are drawn and thrown away
        computed = dict(build().named_buffers())
    return next(
        (name for name, of in tables.items() if not torch.equal(of.cpu(), computed[name].cpu().to(of.dtype))), None
    )


def family_of(model: nn.Module) -> Family:
    """The family that recognises `model`."""
    for library in reversed(_families):
        family = family_named(library)
        if family.recognises(model):
            return family
    raise UnsupportedBackbone(_why_unknown(model))


def dtype_of(model: nn.Module) -> torch.dtype:
    """In which precision a model computes: that of its first numbers; prompts are whole numbers and say nothing."""
    return next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())


def comes_from(model: nn.Module, library: str) -> bool:
    """Is the model's class, or one it inherits from, defined in `library`?"""
    return any(cls.__module__.split(".")[0] == library for cls in type(model).__mro__)


def _why_unknown(model: nn.Module) -> str:
    name = type(model).__name__
    for path, module in model.named_modules():
        kind = f"{path} ({type(module).__name__})"
        if hasattr(module, "window_size"):
            return f"{kind}: windowed attention is not supported; a head there does not see all tokens"
        groups = getattr(module, "num_kv_heads", None) or getattr(module, "num_key_value_heads", None)
        if groups is not None and groups != getattr(module, "num_heads", groups):
            return f"{kind}: grouped-query attention is not supported; its heads share keys and values"
    return (
        f"{name}: no family recognises this model; known: {', '.join(_families)}; "
        "add one of your own with register_backbone"
    )
