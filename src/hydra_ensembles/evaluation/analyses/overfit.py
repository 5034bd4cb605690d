"""Selection overfit: how much of a circuit's score is luck with the rows it was searched on.

The validation rows are cut in halves. Each half is searched with once, and the circuit of every budget scored on both;
a gap is the score on the half searched with minus that on the other. Over both searches the halves' own difference
cancels: with no head removed the gap is 0.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles.data import Batch, Batches, Data, as_batches
from hydra_ensembles.data.batches import epoch_order, is_shuffling_loader, rows_at
from hydra_ensembles.evaluation.analyses.subject import AnalysisError
from hydra_ensembles.heads import Head, HeadRanking
from hydra_ensembles.scoring import circuit_ranking
from hydra_ensembles.scoring.objectives import scores
from hydra_ensembles.scoring.working import SearchData, Working


@dataclass(frozen=True)
class Search:
    """One search with a half: scores without any removal, then after each, on that half and on the other."""

    split: int
    removed: tuple[Head, ...]
    searched: tuple[float, ...]
    unseen: tuple[float, ...]

    @property
    def gaps(self) -> tuple[float, ...]:
        """By number of heads removed, from 0."""
        return tuple(a - b for a, b in zip(self.searched, self.unseen, strict=True))


@dataclass(frozen=True)
class SelectionOverfit:
    """Two searches a split, one with each half."""

    objective: str
    searches: tuple[Search, ...]
    rows: int
    """Of the first half, known and unknown."""
    seed: int

    @property
    def gaps(self) -> list[float]:
        """By number of heads removed, from 0: the mean gap over all searches."""
        return [statistics.fmean(step) for step in zip(*self._by_split(), strict=True)]

    @property
    def spreads(self) -> list[float] | None:
        """The standard deviation over splits; None of one. Splits are of the same rows, so it is no standard error."""
        splits = self._by_split()
        return None if len(splits) < 2 else [statistics.stdev(step) for step in zip(*splits, strict=True)]

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "objective": self.objective,
            "gaps": self.gaps,
            "spreads": self.spreads,
            "rows": self.rows,
            "seed": self.seed,
            "searches": [
                {
                    "split": search.split,
                    "removed": [list(head) for head in search.removed],
                    "searched": list(search.searched),
                    "unseen": list(search.unseen),
                }
                for search in self.searches
            ],
        }

    def _by_split(self) -> list[list[float]]:
        splits = dict.fromkeys(search.split for search in self.searches)
        return [
            [statistics.fmean(step) for step in zip(*(s.gaps for s in self.searches if s.split == split), strict=True)]
            for split in splits
        ]


def selection_overfit(
    model: nn.Module,
    id_data: Data,
    ood_data: Data | None = None,
    objective: str = "avg",
    remove: int = 1,
    *,
    splits: int = 1,
    seed: int = 0,
    search: str = "fast",
    journal: str | Path | None = None,
    batch_size: int = 32,
    progress: bool | None = None,
) -> SelectionOverfit:
    """A circuit's score on the rows it was searched with minus its score on others, for every number of removals.

    Args:
        model: as for `circuit_ranking`, as the following.
        id_data: known validation inputs with labels.
        ood_data: unknown ones.
        objective: `"acc"`, `"ood"` or `"avg"`.
        remove: how many heads to remove.
        splits: how often to cut in halves, at random.
        seed: of the first cut; the next has seed + 1.
        search: `"fast"`, `"plain"` or `"lazy"`.
        journal: its name gets the split's number and the half's; a killed analysis goes on where it was.
        batch_size: for data given as tensors.
        progress: show a bar; by default on a terminal.
    """
    if splits < 1:
        raise AnalysisError(f"at least one split is needed, found splits={splits}")
    for what, data in (("known", id_data), ("unknown", ood_data)):
        if data is not None and is_shuffling_loader(data):
            raise AnalysisError(f"the {what} data are a loader that shuffles; halves need rows in one order")
    known = as_batches(id_data, batch_size)
    unknown = None if ood_data is None else as_batches(ood_data, batch_size)
    for what, batches in (("known", known), ("unknown", unknown)):
        if batches is not None and batches.num_rows < 2:
            raise AnalysisError(f"{batches.num_rows} {what} rows cannot be cut in halves")
    found, rows = [], 0
    for split in range(splits):
        halves = [
            (Half(known, seed + split, half), None if unknown is None else Half(unknown, seed + split, half))
            for half in (0, 1)
        ]
        for half in (0, 1):
            path = None if journal is None else Path(journal).with_suffix(f".{split}.{half}{Path(journal).suffix}")
            ranking = circuit_ranking(
                model, *halves[half], objective, remove, search=search, journal=path, progress=progress
            )
            found.append(_scored(split, ranking, model, objective, halves[half], halves[1 - half]))
        rows = SearchData(*halves[0], batch_size).num_rows
    return SelectionOverfit(objective, tuple(found), rows, seed)


class Half:
    """A half of the rows, drawn at random, batch by batch as the data comes."""

    def __init__(self, batches: Batches, seed: int, half: int):
        self.batches = batches
        order = epoch_order(batches.num_rows, seed, 0)
        self._is_mine = torch.zeros(batches.num_rows, dtype=torch.bool)
        self._is_mine[order.tensor_split(2)[half]] = True

    def __iter__(self) -> Iterator[Batch]:
        start = 0
        for batch in self.batches:
            mine = self._is_mine[start : start + len(batch)].nonzero()[:, 0]
            start += len(batch)
            if len(mine):
                yield Batch(rows_at(batch.inputs, mine), None if batch.labels is None else batch.labels[mine])


Halves = tuple[Half, Half | None]


def _scored(
    split: int, ranking: HeadRanking, model: nn.Module, objective: str, searched: Halves, unseen: Halves
) -> Search:
    """Every circuit of a ranking, scored on both halves with all of their rows; a lazy search looks at fewer."""
    working = Working(model)
    data = [SearchData(*half, batch_size=1) for half in (searched, unseen)]
    points: list[list[float]] = [[], []]
    for step in range(len(ranking) + 1):
        if step:
            working.remove([ranking.removed[step - 1]])
        for place, half in enumerate(data):
            _, own = working.outcomes((), enumerate(half))
            points[place].append(float(scores(objective, own)[0]))
    return Search(split, ranking.removed, tuple(points[0]), tuple(points[1]))
