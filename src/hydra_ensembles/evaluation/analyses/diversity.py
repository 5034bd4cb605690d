"""Diversity of members before fusion and of the hydra after it (the paper, B.5 and B.7, Tables 9 and 11)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import nn

from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.evaluation.analyses.figures import Figures, check_score, figures_of
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, check_unknown
from hydra_ensembles.fusion import Hydra, fuse
from hydra_ensembles.heads import HeadSet, Member, layer_divergence, overlap


@dataclass(frozen=True)
class Diversity:
    """By set: how members differ and how good they are together, before fusion and after it."""

    before: Figures
    """Members asked one by one, their probabilities averaged; `figures_of` says what is in it."""
    after: Figures
    """The hydra."""
    overlaps: tuple[tuple[float, ...], ...]
    """Of two members, the removed heads that they share, over their number."""
    divergences: tuple[tuple[float | None, ...], ...]
    """Jensen–Shannon divergence (natural logarithm) between where, layer by layer, two members remove heads; None
    beside a member that removes none.
    """
    mlp: str
    """How the hydra's MLPs were fused: `average` or `grouped`, which is exactly the members."""
    score: str

    @property
    def change(self) -> Figures:
        """After minus before, by set and metric."""
        return {
            name: {metric: self.after[name][metric] - figure for metric, figure in figures.items()}
            for name, figures in self.before.items()
        }

    @property
    def mean_overlap(self) -> float | None:
        """Over all pairs of members; None of one member."""
        return _mean_of_pairs(self.overlaps)

    @property
    def mean_divergence(self) -> float | None:
        """Over all pairs of members; None of one member, and where one removes no head."""
        return _mean_of_pairs(self.divergences)

    def to_json(self) -> dict[str, Any]:
        """Everything, with the changes and the means over pairs."""
        return {
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "overlaps": [list(row) for row in self.overlaps],
            "divergences": [list(row) for row in self.divergences],
            "mean_overlap": self.mean_overlap,
            "mean_divergence": self.mean_divergence,
            "mlp": self.mlp,
            "score": self.score,
        }


def diversity(
    members: Sequence[nn.Module],
    id_data: Data,
    ood_data: Mapping[str, Data],
    hydra: Hydra | None = None,
    *,
    score: str = "msp",
    batch_size: int = 64,
) -> Diversity:
    """How much members differ on known and unknown inputs, and what fusing them leaves of that.

    Args:
        members: members, or whole models such as a deep ensemble's.
        id_data: known inputs with labels.
        ood_data: unknown inputs by name.
        hydra: the members fused; made with `fuse(members)`, averaged MLPs, by default.
        score: what unknown inputs are told by.
        batch_size: for data given as tensors.
    """
    check_score(score)
    check_unknown(ood_data)
    if not members:
        raise AnalysisError("there are no members to compare")
    heads = [member.heads if isinstance(member, Member) else HeadSet.all(member) for member in members]
    hydra = fuse(members) if hydra is None else hydra
    if hydra.heads != heads:
        raise AnalysisError("the hydra keeps other heads than these members do; give the members it was fused from")
    known = as_batches(id_data, batch_size)
    unknown = {name: as_batches(data, batch_size) for name, data in ood_data.items()}
    return Diversity(
        figures_of(list(members), known, unknown, score),
        figures_of(hydra, known, unknown, score),
        tuple(tuple(overlap(a, b) for b in heads) for a in heads),
        tuple(tuple(layer_divergence(a, b) for b in heads) for a in heads),
        hydra.mlp,
        score,
    )


def _mean_of_pairs(matrix: Sequence[Sequence[float | None]]) -> float | None:
    pairs = [matrix[a][b] for a, b in combinations(range(len(matrix)), 2)]
    known = [value for value in pairs if value is not None]
    return sum(known) / len(known) if known and len(known) == len(pairs) else None
