"""Members: a backbone physically restricted to a head set."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, Origin, family_of, origin_of
from hydra_ensembles.backbones.backbone import build_model, dtype_of, filled, table_not_computed
from hydra_ensembles.backbones.references import expand, load_model, num_classes, read_origin
from hydra_ensembles.heads.head_set import HeadSet, HeadSetError
from hydra_ensembles.optional import version_of
from hydra_ensembles.store import StoreError, check_store, read_config, read_store, write_store


class Member(nn.Module):
    """A smaller model that keeps `heads` of the backbone it came from.

    `member.model` is a model of its library with smaller attention layers: it trains and runs with the library's own
    forward. `member(inputs)` returns logits `(B, C)` for every family.
    """

    def __init__(self, model: nn.Module, heads: HeadSet, origin: Origin):
        super().__init__()
        self.model, self.heads, self.origin = model, heads, origin
        self._own_forward = family_of(model).own_forward

    @property
    def backbone(self) -> Backbone:
        """The member read through the backbone contract; its heads are numbered anew, from 0."""
        return Backbone.of(self.model)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._own_forward(self.model, inputs)

    def save(self, directory: str | Path) -> Path:
        """Write `model.safetensors` and `config.json`; nothing is pickled."""
        _check_rebuildable(self)
        tensors = self.model.state_dict()
        dtype = str(dtype_of(self.model)).removeprefix("torch.")
        versions = {name: version_of(name) for name in ("hydra_ensembles", self.origin.library)}
        config = {**self.origin.to_json(), "dtype": dtype, "versions": versions, "heads": self.heads.to_json()}
        return write_store(directory, "member", config, tensors)

    @classmethod
    def load(cls, directory: str | Path) -> "Member":
        """Read a member back, to the bit, in evaluation mode; nothing is fetched."""
        config, tensors = read_store(directory, "member")
        if "heads" not in config:
            raise StoreError(f"{Path(directory) / 'config.json'} does not say which 'heads' the member keeps")
        origin, heads = read_origin(directory), HeadSet.from_json(config["heads"])
        model = filled(lambda: _build(origin, heads), directory, tensors)
        _cast_tables(model, tensors)
        return cls(model, heads, origin).eval()


def _cast_tables(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Tables that are computed and not stored (EVA's) in the dtype that they had beside the parameters."""
    dtype = dtype_of(model)
    for name, table in model.named_buffers():
        if name not in stored and table.is_floating_point() and table.dtype != dtype:
            table.data = table.data.to(dtype)


def name_classes(model: nn.Module, classes: list[str] | None) -> None:
    """Let a model remember the names of its classes, where it has none of its own and as many classes."""
    origin = model.origin if isinstance(model, Member) else origin_of(model)
    if classes is not None and origin.classes is None and num_classes(model) in (None, len(classes)):
        model.origin = replace(origin, classes=list(classes))  # type: ignore[assignment]


def own_logits(model: nn.Module, inputs: Inputs) -> Tensor:
    """The logits `(B, C)` of a member, or of a model by its library's own forward."""
    return model(inputs) if isinstance(model, Member) else family_of(model).own_forward(model, inputs)


def prune(model: nn.Module, keep: HeadSet) -> Member:
    """A member with the kept heads only: a copy, physically smaller; `model` stays as it is.

    A layer that keeps no head adds its output bias only. Pruning a member further takes a subset of its heads,
    numbered as in the backbone it came from.
    """
    if not isinstance(keep, HeadSet):
        raise HeadSetError(f"prune takes the HeadSet that is kept, as of HeadSet.of(...); found {type(keep).__name__}")
    if isinstance(model, Member):
        pruned, origin, local = copy.deepcopy(model.model), model.origin, keep.within(model.heads)
    else:
        pruned, origin, local = copy.deepcopy(model), origin_of(model), keep
    shrink(pruned, local)
    return Member(pruned, keep, origin)


def shrink(model: nn.Module, keep: HeadSet) -> None:
    """Remove the other heads from a model, in place."""
    backbone = Backbone.of(model)
    keep.check_fits(backbone)
    for tower, layer, block in backbone.blocks():
        heads = keep[tower][layer]
        if len(heads) < block.attention.num_heads:
            assert block.shrink is not None
            block.shrink(heads)


def load_subject(reference: str, **settings: Any) -> nn.Module:
    """The model that a reference names, or the member stored in a directory."""
    if _is_store(reference):
        if settings:
            raise StoreError(f"'{reference}' is a stored member; it takes no settings ({', '.join(settings)})")
        return Member.load(expand(reference))
    return load_model(reference, **settings)


def load_shape(reference: str) -> nn.Module:
    """The model or member that a reference names, without memory for its numbers (torch's meta device)."""
    if not _is_store(reference):
        return load_model(reference, weights=False)
    directory = Path(expand(reference))
    config = check_store(directory, "member")
    with torch.device("meta"):
        return _build(read_origin(directory), HeadSet.from_json(config["heads"]))


def _is_store(reference: str) -> bool:
    directory = Path(expand(reference))
    return (directory / "config.json").is_file() and "format_version" in read_config(directory)


def _build(origin: Origin, heads: HeadSet) -> nn.Module:
    """A member of that shape, with no weights loaded."""
    model = build_model(origin)
    shrink(model, heads)
    return model


def _check_rebuildable(member: Member) -> None:
    """A store must not be written that could not be read: build the shape again, without memory, and compare."""
    with torch.device("meta"):
        again = _build(member.origin, member.heads)
    ours, theirs = Backbone.of(member.model).spec(), Backbone.of(again).spec()
    if ours != theirs:
        raise StoreError(
            f"the member could not be read back: {_first_difference(ours, theirs)} if {member.origin.library} built "
            f"'{member.origin.architecture}' with {member.origin.kwargs}; give the member an origin that describes it"
        )
    table = table_not_computed(member.model, lambda: _build(member.origin, member.heads))
    if table is not None:
        raise StoreError(
            f"the member could not be read back: {table} is computed, not stored, and {member.origin.library} would "
            "compute other numbers, as after a cast to another dtype and back; load the model anew"
        )
    names, count = member.origin.classes, num_classes(member)
    if names is not None and count not in (None, len(names)):
        raise StoreError(f"the member has {count} classes, but its origin names {len(names)}; name as many as it has")


def _first_difference(ours: object, theirs: object, path: str = "backbone") -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            if ours.get(key) != theirs.get(key):
                return _first_difference(ours.get(key), theirs.get(key), f"{path}.{key}")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if mine != other:
                return _first_difference(mine, other, f"{path}.{i}")
    return f"{path.replace('.parts', '')} is {ours!r:.60}, would be {theirs!r:.60}"
