"""Head sets: which attention heads are kept. Immutable, validated, JSON."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

from torch import nn

from hydra_ensembles.backbones import Backbone
from hydra_ensembles.errors import HydraError


class HeadSetError(HydraError):
    """A head set is inconsistent, or does not fit the model or the set it meets."""


class Head(NamedTuple):
    """One attention head; heads and layers are numbered from 0. Heads are ordered by tower name, layer, index."""

    tower: str
    layer: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a head


@dataclass(frozen=True)
class HeadSet:
    """The heads that are *kept*, of a model with `num_heads[tower][layer]` heads.

    Layers may keep different numbers of heads, down to none. Sets over the same model combine: `a & b`, `a | b`,
    `a - b`, `a ^ b`, `a <= b`; `~a` is the set of the heads that `a` removes.

    >>> keep = HeadSet.of({"vision": [[0, 2], []]}, {"vision": [3, 3]})
    >>> list(keep)
    [Head(tower='vision', layer=0, index=0), Head(tower='vision', layer=0, index=2)]
    >>> len(~keep), Head("vision", 1, 0) in keep
    (4, False)
    """

    towers: tuple[str, ...]
    num_heads: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        if not len(self.towers) == len(self.num_heads) == len(self.kept):
            raise HeadSetError("towers, num_heads and kept must have one entry a tower")
        for tower, totals, layers in zip(self.towers, self.num_heads, self.kept, strict=True):
            if len(totals) != len(layers):
                raise HeadSetError(f"tower '{tower}' has {len(totals)} layers, but the set names {len(layers)}")
            for layer, (total, heads) in enumerate(zip(totals, layers, strict=True)):
                _check_layer(tower, layer, total, heads)

    @classmethod
    def of(cls, kept: Mapping[str, Sequence[Iterable[int]]], num_heads: Mapping[str, Sequence[int]]) -> "HeadSet":
        """From kept heads by tower and layer; order of towers and within a layer does not matter."""
        if set(kept) != set(num_heads):
            raise HeadSetError(
                f"the set names towers {sorted(kept)}, but num_heads names {sorted(num_heads)}; both must agree"
            )
        towers = sorted(num_heads)
        try:
            totals = tuple(tuple(index(n) for n in num_heads[tower]) for tower in towers)
            heads = tuple(tuple(tuple(sorted(index(h) for h in layer)) for layer in kept[tower]) for tower in towers)
        except TypeError as error:
            raise HeadSetError(f"heads, and numbers of heads, are whole numbers by tower and layer ({error})") from None
        return cls(tuple(towers), totals, heads)

    @classmethod
    def all(cls, model: nn.Module) -> "HeadSet":
        """Every head of a model."""
        backbone = model if isinstance(model, Backbone) else Backbone.of(model)
        num_heads: dict[str, list[int]] = {tower: [] for tower in backbone.towers}
        for tower, _, block in backbone.blocks():
            num_heads[tower].append(block.attention.num_heads)
        kept = {tower: [range(total) for total in totals] for tower, totals in num_heads.items()}
        return cls.of(kept, num_heads)

    @classmethod
    def first(cls, model: nn.Module, keep: int) -> "HeadSet":
        """The first `keep` heads of every layer: a stand-in where only numbers matter, as for cost."""
        full = cls.all(model)
        few = min(min(totals) for totals in full.num_heads)
        if not 0 <= keep <= few:
            raise HeadSetError(f"cannot keep {keep} heads in every layer: the layer with the fewest has {few}")
        return full._with(tuple(tuple(tuple(range(keep)) for _ in totals) for totals in full.num_heads))

    @classmethod
    def sample(cls, model: nn.Module, keep: int, seed: int) -> "HeadSet":
        """`keep` heads in all, drawn at random."""
        full = cls.all(model)
        if not 0 <= keep <= len(full):
            raise HeadSetError(f"cannot keep {keep} of {len(full)} heads")
        removed = random.Random(seed).sample(list(full), len(full) - keep)
        return full.without(removed)

    def __iter__(self) -> Iterator[Head]:
        for tower, layers in zip(self.towers, self.kept, strict=True):
            for layer, heads in enumerate(layers):
                for head in heads:
                    yield Head(tower, layer, head)

    def __len__(self) -> int:
        return sum(len(heads) for layers in self.kept for heads in layers)

    def __contains__(self, head: object) -> bool:
        return head in set(self)

    def __getitem__(self, tower: str) -> tuple[tuple[int, ...], ...]:
        """The kept heads of a tower, layer by layer."""
        if tower not in self.towers:
            raise HeadSetError(f"the set has no tower '{tower}'; it has {', '.join(self.towers)}")
        return self.kept[self.towers.index(tower)]

    def full(self) -> "HeadSet":
        """Every head of the model this set is over."""
        return self._with(tuple(tuple(tuple(range(n)) for n in totals) for totals in self.num_heads))

    def without(self, heads: Iterable[Head]) -> "HeadSet":
        """This set with some more heads removed."""
        gone, known = {Head(*head) for head in heads}, set(self.full())
        for head in gone:
            if head not in known:
                raise HeadSetError(f"{head} is not a head of this model; heads and layers are numbered from 0")
        return self._keeping(set(self) - gone)

    def __invert__(self) -> "HeadSet":
        return self._keeping(set(self.full()) - set(self))

    def __and__(self, other: "HeadSet") -> "HeadSet":
        mine, theirs = self._pair(other)
        return self._keeping(mine & theirs)

    def __or__(self, other: "HeadSet") -> "HeadSet":
        mine, theirs = self._pair(other)
        return self._keeping(mine | theirs)

    def __sub__(self, other: "HeadSet") -> "HeadSet":
        mine, theirs = self._pair(other)
        return self._keeping(mine - theirs)

    def __xor__(self, other: "HeadSet") -> "HeadSet":
        mine, theirs = self._pair(other)
        return self._keeping(mine ^ theirs)

    def __le__(self, other: "HeadSet") -> bool:
        mine, theirs = self._pair(other)
        return mine <= theirs

    def within(self, outer: "HeadSet") -> "HeadSet":
        """The same heads, numbered as a member that keeps `outer` numbers its own.

        >>> whole = {"vision": [4]}
        >>> inner, outer = HeadSet.of({"vision": [[3]]}, whole), HeadSet.of({"vision": [[1, 3]]}, whole)
        >>> inner.within(outer)["vision"]
        ((1,),)
        """
        if not self <= outer:
            raise HeadSetError(f"{next(iter(self - outer))} is kept here, but the member has lost it already")
        return HeadSet(
            self.towers,
            tuple(tuple(len(heads) for heads in layers) for layers in outer.kept),
            tuple(
                tuple(
                    tuple(theirs.index(head) for head in mine)
                    for mine, theirs in zip(layers, outer_layers, strict=True)
                )
                for layers, outer_layers in zip(self.kept, outer.kept, strict=True)
            ),
        )

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a model whose sites are not the ones this set is over."""
        theirs = HeadSet.all(model)
        if self.towers != theirs.towers:
            raise HeadSetError(
                f"the set is over towers {', '.join(self.towers)}, the model has {', '.join(theirs.towers)}"
            )
        for tower, mine, found in zip(self.towers, self.num_heads, theirs.num_heads, strict=True):
            if len(mine) != len(found):
                raise HeadSetError(f"tower '{tower}' of the model has {len(found)} layers, the set is over {len(mine)}")
            for layer, (n, m) in enumerate(zip(mine, found, strict=True)):
                if n != m:
                    raise HeadSetError(f"layer {layer} of tower '{tower}' has {m} heads, the set is over {n}")

    def to_json(self) -> dict[str, Any]:
        """By tower: heads of each layer, and which are kept."""
        return {
            tower: {"num_heads": list(totals), "kept": [list(heads) for heads in layers]}
            for tower, totals, layers in zip(self.towers, self.num_heads, self.kept, strict=True)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "HeadSet":
        """Read what `to_json` wrote, and check it."""
        try:
            kept = {tower: part["kept"] for tower, part in data.items()}
            return cls.of(kept, {tower: part["num_heads"] for tower, part in data.items()})
        except (TypeError, KeyError, AttributeError) as error:
            raise HeadSetError(
                f"a head set is written {{tower: {{'num_heads': [...], 'kept': [[...], ...]}}}}; found {data!r:.80} "
                f"({type(error).__name__}: {error})"
            ) from None

    def _keeping(self, heads: set[Head]) -> "HeadSet":
        kept: dict[tuple[str, int], list[int]] = {}
        for tower, layer, head in sorted(heads):
            kept.setdefault((tower, layer), []).append(head)
        return self._with(
            tuple(
                tuple(tuple(kept.get((tower, layer), ())) for layer in range(len(totals)))
                for tower, totals in zip(self.towers, self.num_heads, strict=True)
            )
        )

    def _with(self, kept: tuple[tuple[tuple[int, ...], ...], ...]) -> "HeadSet":
        return HeadSet(self.towers, self.num_heads, kept)

    def _pair(self, other: "HeadSet") -> tuple[set[Head], set[Head]]:
        if (self.towers, self.num_heads) != (other.towers, other.num_heads):
            raise HeadSetError("the two head sets are over different models and cannot be combined")
        return set(self), set(other)


def overlap(a: HeadSet, b: HeadSet) -> float:
    """Shared / number, of the heads that two sets remove; of unequal numbers, the smaller counts.

    Two sets that remove nothing overlap wholly, one that removes nothing overlaps with no other.
    """
    removed_a, removed_b = ~a, ~b
    fewer = min(len(removed_a), len(removed_b))
    if fewer == 0:
        return float(len(removed_a) == len(removed_b))
    return len(removed_a & removed_b) / fewer


def layer_divergence(a: HeadSet, b: HeadSet) -> float | None:
    """Jensen–Shannon divergence (natural logarithm) between the distributions of removed heads over layers.

    None beside a set that removes none, and so has no distribution.
    """
    a & b  # both over the same model
    p, q = _removed_by_layer(a), _removed_by_layer(b)
    total_p, total_q = sum(p), sum(q)
    if not total_p or not total_q:
        return None
    divergence = 0.0
    for x, y in zip((n / total_p for n in p), (n / total_q for n in q), strict=True):
        middle = (x + y) / 2
        divergence += sum(part / 2 * math.log(part / middle) for part in (x, y) if part > 0)
    return divergence


def _removed_by_layer(keep: HeadSet) -> list[int]:
    return [
        total - len(heads)
        for totals, layers in zip(keep.num_heads, keep.kept, strict=True)
        for total, heads in zip(totals, layers, strict=True)
    ]


def _check_layer(tower: str, layer: int, total: int, heads: Sequence[int]) -> None:
    where = f"layer {layer} of tower '{tower}'"
    if total < 0:
        raise HeadSetError(f"{where} cannot have {total} heads")
    for head in heads:
        if not 0 <= head < total:
            raise HeadSetError(f"{where} has {total} heads, but the set keeps head {head}; heads are numbered from 0")
    if len(set(heads)) != len(heads):
        raise HeadSetError(f"{where} names a head twice: {list(heads)}")
    if list(heads) != sorted(heads):
        raise HeadSetError(f"{where}: heads must be in ascending order, found {list(heads)}")
