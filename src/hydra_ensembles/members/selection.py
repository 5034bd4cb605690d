"""From rankings to the head sets of M members, and how much they differ.

- `objectives`: one circuit an objective (the paper's three), each its own member.
- `sample`: r heads out of the first R of one ranking, drawn with a seed a member (the paper, B.5).
- `calibration`: one Taylor ranking a member, each from its own calibration sample; where two give the same set, the
  next one of further rankings is taken, and where none is left, the later one is drawn from its ranking instead.
- `joint` (ours): each member is searched by the score of the ensemble it makes with the members before it.
"""

import random
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hydra_ensembles.data import Data
from hydra_ensembles.errors import HydraError, HydraWarning
from hydra_ensembles.heads import HeadRanking, HeadSet, Member, layer_divergence, overlap, prune
from hydra_ensembles.scoring import circuit_ranking
from hydra_ensembles.scoring.working import digest_of

WAYS = ("objectives", "sample", "calibration", "joint")
POOL_SHARE = 100 / 144
"""The paper draws from the first 100 of 144 heads; R is that share of the heads that may go."""


class SelectionError(HydraError):
    """Rankings that do not give the members asked for."""


@dataclass(frozen=True)
class Selection:
    """M head sets; iterate over it, or index it, as over a list."""

    head_sets: tuple[HeadSet, ...]
    how: str
    rankings: tuple[HeadRanking, ...] = ()
    drawn: tuple[int, ...] = ()
    """Of `calibration`: members that are drawn, as their own ranking gives the set of another."""

    def __iter__(self) -> Iterator[HeadSet]:
        return iter(self.head_sets)

    def __len__(self) -> int:
        return len(self.head_sets)

    def __getitem__(self, member: int) -> HeadSet:
        return self.head_sets[member]

    def overlaps(self) -> list[list[float]]:
        """Removed heads that two members share, over their number."""
        return [[overlap(a, b) for b in self] for a in self]

    def divergences(self) -> list[list[float | None]]:
        """Jensen–Shannon divergence (natural logarithm) between where, layer by layer, two members remove heads.

        None beside a member that removes none.
        """
        return [[layer_divergence(a, b) for b in self] for a in self]

    def to_json(self) -> dict[str, Any]:
        """The sets and how much they differ."""
        sets = [heads.to_json() for heads in self]
        found = {"how": self.how, "members": sets, "overlap": self.overlaps(), "divergence": self.divergences()}
        return {**found, "drawn": list(self.drawn)} if self.drawn else found


def select_members(
    rankings: Sequence[HeadRanking],
    *,
    keep: int,
    members: int = 3,
    how: str = "objectives",
    trunk: int = 0,
    pool: int | None = None,
    seed: int = 0,
    model: nn.Module | None = None,
    id_data: Data | None = None,
    ood_data: Data | None = None,
    objective: str = "avg",
    search: str = "fast",
    journal: str | Path | None = None,
    progress: bool | None = None,
) -> Selection:
    """Head sets of M members.

    Args:
        rankings: as many as members (`objectives`), at least as many (`calibration`), one (`sample`), or none (`joint`;
            one is taken as the first member's).
        keep: heads kept in all; with a trunk, in the layers behind it.
        members: how many.
        how: see the module's docstring.
        trunk: leading blocks that keep all their heads and that all members will share.
        pool: of `sample`: R, how many heads of the ranking may go; 100 of 144 as a share by default.
        seed: of `sample`: member m draws with seed + m.
        model: what was ranked, to check that; of `joint`, as the following: what is searched, as for `circuit_ranking`.
        id_data: known inputs with labels.
        ood_data: unknown inputs.
        objective: of the ensemble.
        search: `"fast"`, `"plain"` or `"lazy"`.
        journal: its name gets the member's number.
        progress: show a bar; by default on a terminal.
    """
    if how not in WAYS:
        raise SelectionError(f"how='{how}' is not known; known: {', '.join(WAYS)}")
    if members < 1:
        raise SelectionError(f"a hydra has at least one member, found members={members}")
    wanted = {"objectives": members, "calibration": members, "sample": 1}.get(how)
    if wanted is not None and len(rankings) != wanted and not (how == "calibration" and len(rankings) > wanted):
        raise SelectionError(f"how='{how}' with {members} members takes {wanted} rankings, found {len(rankings)}")
    if any(ranking.start != rankings[0].start for ranking in rankings):
        raise SelectionError("the rankings are of different models or start from different heads; rank one model")
    if model is not None:
        _check_of(model, rankings)
    if how == "objectives":
        return Selection(tuple(ranking.keep(keep, trunk) for ranking in rankings), how, tuple(rankings))
    if how == "sample":
        drawn = tuple(sampled(rankings[0], keep, seed + m, trunk, pool) for m in range(members))
        return Selection(drawn, how, tuple(rankings))
    if how == "calibration":
        return _calibrated(rankings, keep, members, seed, trunk, pool)
    if model is None:
        raise SelectionError("how='joint' searches with the model: give model=, id_data= and ood_data=")
    if id_data is None:
        raise SelectionError("how='joint' searches: give id_data= and ood_data=")
    return _joint(rankings, keep, members, trunk, model, id_data, ood_data, objective, search, journal, progress)


def _check_of(model: nn.Module, rankings: Sequence[HeadRanking]) -> None:
    """Refuse rankings of a model with other heads; say so where it has other weights."""
    own = model.heads if isinstance(model, Member) else HeadSet.all(model)
    for ranking in rankings:
        if ranking.start != own:
            raise SelectionError(
                f"the ranking is of a model with {len(ranking.start)} heads, this one has {len(own)}, or others; "
                "rank this one"
            )
    ranked = {ranking.how["model"] for ranking in rankings if "model" in ranking.how}
    if ranked and digest_of(model) not in ranked:
        warnings.warn(
            "the rankings are of a model with other weights; their heads may not be the ones that this one can spare",
            HydraWarning,
            stacklevel=3,
        )


def sampled(ranking: HeadRanking, keep: int, seed: int, trunk: int = 0, pool: int | None = None) -> HeadSet:
    """A set that lacks r heads, drawn from the first R of a ranking."""
    ranking.check_spares(trunk)
    behind = sum(head.layer >= trunk for head in ranking.start)
    if not 0 <= keep <= behind:
        raise SelectionError(f"cannot keep {keep} of {behind} heads")
    number = behind - keep
    first = round(behind * POOL_SHARE) if pool is None else pool
    if ranking.budget is not None:
        raise SelectionError(
            "a Taylor ranking per layer holds at its own budget; draw from one with scope='global' (in a recipe "
            "ranking.method 'taylor-global'), or give rankings of more calibration samples"
        )
    if number > first:
        raise SelectionError(f"cannot draw {number} heads out of the first {first}; keep more heads or widen the pool")
    if first > len(ranking):
        raise SelectionError(f"the pool has {first} heads, the ranking only {len(ranking)}; rank with remove={first}")
    return ranking.start.without(random.Random(seed).sample(ranking.removed[:first], number))


def _calibrated(
    rankings: Sequence[HeadRanking], keep: int, members: int, seed: int, trunk: int, pool: int | None
) -> Selection:
    found = [(ranking.keep(keep, trunk), ranking) for ranking in rankings]
    own, further = found[:members], iter(found[members:])
    taken = {heads for heads, _ in own}
    chosen: dict[HeadSet, HeadRanking] = {}
    drawn = []
    for m, (heads, ranking) in enumerate(own):
        if heads in chosen:
            other = next((pair for pair in further if pair[0] not in taken | set(chosen)), None)
            if other is None:
                drawn.append(m)
            heads, ranking = other or (_unlike(chosen, ranking, keep, members, seed + m, trunk, pool), ranking)
        chosen[heads] = ranking
    return Selection(tuple(chosen), "calibration", tuple(chosen.values()), tuple(drawn))


def _unlike(
    chosen: Collection[HeadSet],
    ranking: HeadRanking,
    keep: int,
    members: int,
    seed: int,
    trunk: int,
    pool: int | None,
) -> HeadSet:
    """A set drawn from a ranking that no other member has."""
    draws = (sampled(ranking, keep, seed + members * tries, trunk, pool) for tries in range(100))
    found = next((heads for heads in draws if heads not in chosen), None)
    if found is None:
        raise SelectionError("a member comes out like another in 100 draws; widen the pool or keep fewer")
    return found


def _joint(
    rankings: Sequence[HeadRanking],
    keep: int,
    members: int,
    trunk: int,
    model: nn.Module,
    id_data: Data,
    ood_data: Data | None,
    objective: str,
    search: str,
    journal: str | Path | None,
    progress: bool | None,
) -> Selection:
    own = model.heads if isinstance(model, Member) else HeadSet.all(model)
    start = rankings[0].start if rankings else own
    deepest = max(len(layers) for layers in start.kept)
    remove = sum(head.layer >= trunk for head in start) - keep
    found = list(rankings[:1])
    while len(found) < members:
        before = [prune(model, ranking.keep(keep, trunk)) for ranking in found]
        path = None if journal is None else Path(journal).with_suffix(f".{len(found)}{Path(journal).suffix}")
        found.append(
            circuit_ranking(
                model,
                id_data,
                ood_data,
                objective,
                remove,
                search=search,
                layers=range(trunk, deepest),
                journal=path,
                companions=before,
                progress=progress,
            )
        )
    return Selection(tuple(ranking.keep(keep, trunk) for ranking in found), "joint", tuple(found))
