"""Maps of heads, layer by layer: Taylor scores, and when a ranking removes them (the paper, Figure 7)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.evaluation.analyses.subject import AnalysisError
from hydra_ensembles.heads import Head, HeadRanking, HeadSet
from hydra_ensembles.scoring.taylor import taylor_scores
from hydra_ensembles.scoring.working import Working

Rows = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class HeadMap:
    """A number for each head, `layers[tower][layer][head]`; None where there is none."""

    what: str
    layers: Mapping[str, Rows]

    def means(self) -> dict[str, list[float | None]]:
        """By tower and layer, the mean of the numbers there are."""
        return {tower: [_mean(row) for row in rows] for tower, rows in self.layers.items()}

    def to_json(self) -> dict[str, Any]:
        """What the numbers are, and the matrices."""
        return {
            "what": self.what,
            "layers": {tower: [list(row) for row in rows] for tower, rows in self.layers.items()},
        }


def taylor_map(model: nn.Module, data: Data, *, batch_size: int = 32) -> HeadMap:
    """The Taylor score (D.1.1) of every head of a model or `Member`, by one gradient; lost heads have none.

    Towers may be on different scales: compare heads within one.
    """
    working = Working(model)
    working.require_gradients()
    return _map("Taylor score", working.start, taylor_scores(working, as_batches(data, batch_size)))


def removal_map(ranking: HeadRanking) -> HeadMap:
    """When a ranking removes each head, counted from 1; heads that it never removes have no number.

    A Taylor ranking per layer goes layer by layer: its numbers compare heads of one layer only.
    """
    steps = {head: float(step) for step, head in enumerate(ranking.removed, start=1)}
    return _map("removal, counted from 1", ranking.start, steps)


def score_map(ranking: HeadRanking) -> HeadMap:
    """The score that stands beside each removal: of a circuit the objective after it, of Taylor the importance."""
    if ranking.how.get("method") == "random":
        raise AnalysisError("a random order has no scores")
    scores = dict(zip(ranking.removed, ranking.scores, strict=True))
    return _map("score beside the removal", ranking.start, scores)


def _map(what: str, heads: HeadSet, numbers: Mapping[Head, float]) -> HeadMap:
    return HeadMap(
        what,
        {
            tower: tuple(
                tuple(numbers.get(Head(tower, layer, index)) for index in range(total))
                for layer, total in enumerate(totals)
            )
            for tower, totals in zip(heads.towers, heads.num_heads, strict=True)
        },
    )


def _mean(row: tuple[float | None, ...]) -> float | None:
    known = [number for number in row if number is not None]
    return sum(known) / len(known) if known else None
