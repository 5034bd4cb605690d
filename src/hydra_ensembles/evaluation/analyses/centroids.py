"""How far apart known and unknown inputs lie in each head's output (the paper, B.2, Table 5).

A head's output is read at the readout's position. c_id and c_ood are its means over known and unknown inputs, Σ the
covariance of the known ones: Euclidean |c_id - c_ood|, Mahalanobis sqrt((c_id - c_ood) Σ^-1 (c_id - c_ood)).

Shapes: B batch, H heads of a layer, K head dim.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.evaluation.analyses.readings import readings
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, check_unknown, one_tower
from hydra_ensembles.evaluation.protocol import ID_TEST
from hydra_ensembles.heads import Head

DISTANCES = ("mahalanobis", "euclidean")


@dataclass(frozen=True)
class CentroidDistances:
    """Distances by unknown set and head, in (layer, head) order."""

    heads: tuple[Head, ...]
    euclidean: Mapping[str, tuple[float, ...]]
    mahalanobis: Mapping[str, tuple[float, ...]]
    chance: Mapping[str, tuple[float, ...]]
    """The root mean square Mahalanobis distance of so many rows of the same normal distribution."""
    rank: tuple[int, ...]
    """Directions in which a head's known outputs vary at all; the others are left out of the Mahalanobis distance."""
    rows: Mapping[str, int]

    def average(self, distance: str, layer: int | None = None) -> dict[str, float]:
        """By set, the mean over the heads of a layer, the last by default (the paper's Table 5)."""
        deepest = max(head.layer for head in self.heads)
        wanted = [place for place, head in enumerate(self.heads) if head.layer == (deepest if layer is None else layer)]
        if not wanted:
            raise AnalysisError(f"no head of layer {layer} was looked at, so there is nothing to average")
        return {name: sum(row[place] for place in wanted) / len(wanted) for name, row in self._rows(distance).items()}

    def farthest(self, name: str, distance: str = "mahalanobis") -> list[Head]:
        """The heads, those first in which this unknown set lies farthest from the known one."""
        row = self._rows(distance)
        if name not in row:
            raise AnalysisError(f"set '{name}' was not looked at; there are {', '.join(row)}")
        order = sorted(range(len(self.heads)), key=lambda place: -row[name][place])
        return [self.heads[place] for place in order]

    def to_json(self) -> dict[str, Any]:
        """Everything; heads as [tower, layer, index]."""
        return {
            "heads": [list(head) for head in self.heads],
            **{name: {set_: list(row) for set_, row in getattr(self, name).items()} for name in (*DISTANCES, "chance")},
            "rank": list(self.rank),
            "rows": dict(self.rows),
        }

    def _rows(self, distance: str) -> Mapping[str, tuple[float, ...]]:
        if distance not in DISTANCES:
            raise AnalysisError(f"distance '{distance}' is not known; known: {', '.join(DISTANCES)}")
        found: Mapping[str, tuple[float, ...]] = getattr(self, distance)
        return found


def centroid_distances(
    model: nn.Module,
    id_data: Data,
    ood_data: Mapping[str, Data],
    *,
    layers: Collection[int] | None = None,
    batch_size: int = 64,
) -> CentroidDistances:
    """Distances between known and unknown inputs in each head's output; memory does not grow with the rows.

    Args:
        model: a model of one tower, or a `Member`, whose heads keep the numbers of the backbone.
        id_data: known inputs; labels are not looked at.
        ood_data: unknown inputs by name.
        layers: which; all by default, where the paper has the last.
        batch_size: for data given as tensors.
    """
    subject = one_tower(model)
    check_unknown(ood_data)
    known = _gathered(model, id_data, layers, batch_size)
    N = as_batches(id_data, batch_size).num_rows
    kept = subject.heads[subject.name]
    heads = [Head(subject.name, layer, index) for layer in sorted(known) for index in kept[layer]]
    if not heads:
        raise AnalysisError("the layers looked at have no heads left")
    largest = max(spread.mean_HK.shape[-1] for spread in known.values())
    if largest + 2 >= N:
        raise AnalysisError(
            f"{N} known rows cannot say how outputs of {largest} numbers vary; give more than {largest + 2}"
        )
    euclidean, mahalanobis, chance, rows = {}, {}, {}, {ID_TEST: N}
    roots = {layer: _whitening(spread) for layer, spread in sorted(known.items())}
    rank = [root.shape[1] for layer in roots.values() for root in layer]
    for name, data in ood_data.items():
        unknown = _gathered(model, data, layers, batch_size)
        rows[name] = U = as_batches(data, batch_size).num_rows
        apart = {layer: known[layer].mean_HK - unknown[layer].mean_HK for layer in roots}
        euclidean[name] = tuple(float(d_K.norm()) for d_HK in apart.values() for d_K in d_HK)
        mahalanobis[name] = tuple(
            float((d_K @ root_KP).norm())
            for layer, d_HK in apart.items()
            for d_K, root_KP in zip(d_HK, roots[layer], strict=True)
        )
        chance[name] = tuple(chance_distance(directions, N, U) for directions in rank)
    return CentroidDistances(tuple(heads), euclidean, mahalanobis, chance, tuple(rank), rows)


def chance_distance(dimensions: int, known: int, unknown: int) -> float:
    """The root mean square of the Mahalanobis distance where nothing differs: Hotelling's T², of normal rows.

    >>> round(chance_distance(64, 1000, 1000), 2)
    0.37
    """
    inflation = (known - 1) / (known - dimensions - 2)  # the covariance is estimated from the same rows
    return math.sqrt(dimensions * (1 / known + 1 / unknown) * inflation)


class _Spread:
    """Mean and covariance of head outputs that come in batches, in float64 (Chan's update)."""

    def __init__(self, z_BHK: Tensor):
        self.number = 0
        self.mean_HK = torch.zeros(z_BHK.shape[1:], dtype=torch.float64, device=z_BHK.device)
        self._scatter_HKK = self.mean_HK[..., None] * self.mean_HK[..., None, :]

    def add(self, z_BHK: Tensor) -> None:
        z, B = z_BHK.double(), len(z_BHK)
        mean = z.mean(dim=0)
        centred, step = z - mean, mean - self.mean_HK
        total = self.number + B
        self._scatter_HKK += torch.einsum("bhi,bhj->hij", centred, centred)
        self._scatter_HKK += step[..., None] * step[..., None, :] * (self.number * B / total)
        self.mean_HK = self.mean_HK + step * (B / total)
        self.number = total

    @property
    def covariance_HKK(self) -> Tensor:
        return self._scatter_HKK / (self.number - 1)


def _gathered(model: nn.Module, data: Data, layers: Collection[int] | None, batch_size: int) -> dict[int, _Spread]:
    found: dict[int, _Spread] = {}
    for by_layer in readings(model, data, layers, batch_size):
        for layer, z_BHK in by_layer.items():
            found.setdefault(layer, _Spread(z_BHK)).add(z_BHK)
    return found


def _whitening(known: _Spread) -> list[Tensor]:
    """A root `(K, P)` of each head's inverse covariance, in the P directions that vary."""
    roots = []
    for covariance_KK, mean_K in zip(known.covariance_HKK, known.mean_HK, strict=True):
        variances, directions = torch.linalg.eigh(covariance_KK)
        # What float32 leaves by rounding of a direction without variance must not count as infinitely far.
        dust = 16 * len(variances) * torch.finfo(torch.float32).eps ** 2 * (variances[-1] + mean_K.square().max())
        kept = variances > dust
        roots.append(directions[:, kept] / variances[kept].sqrt())
    return roots
