"""A head's outputs on known and unknown inputs, seen in the plane (the paper, B.2, Figure 4). Numbers, no pictures.

Shapes: R rows, K head dim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.analyses.readings import outputs_of
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, check_unknown
from hydra_ensembles.evaluation.protocol import ID_TEST
from hydra_ensembles.heads import Head, HeadRanking


@dataclass(frozen=True, eq=False)
class Plane:
    """The two directions in which a head's outputs vary most, all sets together, and where each row lies there."""

    head: Head
    explained: tuple[float, float]
    """Share of the variance along each."""
    points: Mapping[str, Tensor]
    """By set, `(R, 2)`, rows in the order of the data; known inputs are `id_test`."""

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        points = {name: rows.tolist() for name, rows in self.points.items()}
        return {"head": list(self.head), "explained": list(self.explained), "points": points}


@dataclass(frozen=True)
class Projections:
    """The planes of the heads that a ranking finds most and least important, the extreme ones first."""

    most: tuple[Plane, ...]
    least: tuple[Plane, ...]
    never_removed: int
    """Heads that the ranking left in place: more important than all it removed, in an order it does not know."""

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        sides = {"most": self.most, "least": self.least}
        planes = {side: [plane.to_json() for plane in found] for side, found in sides.items()}
        return {**planes, "never_removed": self.never_removed}


def projections(
    model: nn.Module,
    ranking: HeadRanking,
    id_data: Data,
    ood_data: Mapping[str, Data],
    *,
    number: int = 6,
    batch_size: int = 64,
) -> Projections:
    """PCA of the outputs of the heads removed last (most important) and first (least important).

    Args:
        model: the model of one tower that was ranked.
        ranking: of its heads, comparable with each other: no Taylor ranking per layer.
        id_data: known inputs; labels are not looked at.
        ood_data: unknown inputs by name.
        number: of heads on each side.
        batch_size: for data given as tensors.
    """
    check_unknown(ood_data)
    if ranking.budget is not None:
        raise AnalysisError("a ranking per layer does not compare heads of different layers; rank with scope='global'")
    if not 1 <= number <= len(ranking) // 2:
        raise AnalysisError(
            f"{number} heads on each side take a ranking of {2 * number} or more, it has {len(ranking)}"
        )
    least, most = ranking.removed[:number], ranking.removed[-number:][::-1]
    planes = head_planes(model, [*most, *least], id_data, ood_data, batch_size)
    never = len(ranking.start) - len(ranking)
    return Projections(tuple(planes[head] for head in most), tuple(planes[head] for head in least), never)


def head_planes(
    model: nn.Module, heads: Sequence[Head], id_data: Data, ood_data: Mapping[str, Data], batch_size: int = 64
) -> dict[Head, Plane]:
    """The plane of each head, fitted to known and unknown inputs together."""
    sets = {ID_TEST: id_data, **ood_data}
    outputs = {name: outputs_of(model, data, heads, batch_size) for name, data in sets.items()}
    planes: dict[Head, Plane] = {}
    for head in heads:
        parts = [outputs[name][head] for name in sets]
        points_R2, explained = principal_plane(torch.cat(parts))
        split = points_R2.split([len(part) for part in parts])
        planes[head] = Plane(head, explained, dict(zip(sets, split, strict=True)))
    return planes


def principal_plane(z_RK: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Each row's place along the two directions of most variance `(R, 2)`, and their shares of the variance.

    Exact SVD. A direction points to where its largest coordinate is positive, so that a plane is always the same.
    """
    rows, width = z_RK.shape
    if min(rows, width) < 2:
        raise AnalysisError(f"a plane takes 2 rows of 2 numbers at least, found {rows} of {width}")
    centred = z_RK.double() - z_RK.double().mean(dim=0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    largest = directions[:2].abs().argmax(dim=1)
    signs = directions[torch.arange(2), largest].sign()
    shares = sizes.square() / sizes.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    return centred @ (directions[:2] * signs[:, None]).T, (float(shares[0]), float(shares[1]))
