"""The numbers behind curves: computed from every row, then thinned to what the eye can see.

Shapes: R rows, N known rows, U unknown rows, P points, K bins.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.evaluation.metrics import BINS, confidence_bins

POINTS = 200
"""A curve of a few inches has no more to show."""
HISTOGRAM_BINS = 40


@dataclass(frozen=True, eq=False)
class Curve:
    """Points `(P,)` joined by straight lines."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True, eq=False)
class Reliability:
    """The bins of ECE `(K,)`; empty ones are left out."""

    confidence: np.ndarray
    """Mean of the rows in a bin."""
    accuracy: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Histogram:
    """Shares of two sets in the same bins; what lies beyond the edges `(K + 1,)` is counted in the outer bins."""

    edges: np.ndarray
    known: np.ndarray
    unknown: np.ndarray


def roc(known_N: Tensor, unknown_U: Tensor) -> Curve:
    """Share of unknown rows found (y) against known rows taken for unknown (x); ties are slanted, as AUROC counts them.

    >>> import torch
    >>> curve = roc(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 3.0]))
    >>> curve.x.tolist(), curve.y.tolist()
    ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    known, unknown = np.sort(known_N.numpy()), np.sort(unknown_U.numpy())
    thresholds = np.unique(np.concatenate([known, unknown]))[::-1]
    false = 1 - np.searchsorted(known, thresholds) / len(known)
    found = 1 - np.searchsorted(unknown, thresholds) / len(unknown)
    return thinned(Curve(np.append(0.0, false), np.append(0.0, found)))


def risk_coverage(rows: Judged) -> Curve:
    """Error rate (y) among the share of rows answered with the most confidence (x); tied rows count as their mean."""
    assert rows.right is not None
    confidence, wrong = rows.confidence.numpy(), 1 - rows.right.numpy()
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    even = np.bincount(group, wrong) / sizes
    order = np.argsort(-confidence, kind="stable")
    answered = np.arange(1, len(order) + 1)
    return thinned(Curve(answered / len(order), np.cumsum(even[group][order]) / answered))


def reliability(rows: Judged) -> Reliability:
    """How often answers of about the same confidence are right."""
    assert rows.right is not None
    bins = confidence_bins(rows.confidence.double()).numpy()
    counts = np.bincount(bins, minlength=BINS)
    there = counts > 0
    confidence, accuracy = (
        np.bincount(bins, column.numpy(), minlength=BINS)[there] / counts[there]
        for column in (rows.confidence, rows.right)
    )
    return Reliability(confidence, accuracy, counts[there])


def histogram(known_N: Tensor, unknown_U: Tensor, bins: int = HISTOGRAM_BINS) -> Histogram:
    """Scores of known and unknown rows; the outer half percent at either end does not stretch the axis."""
    known, unknown = known_N.double().numpy(), unknown_U.double().numpy()
    ends = np.array([np.quantile(one, (0.005, 0.995)) for one in (known, unknown)])
    low, high = ends[:, 0].min(), ends[:, 1].max()
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    shares = [np.histogram(one.clip(edges[0], edges[-1]), edges)[0] / len(one) for one in (known, unknown)]
    return Histogram(edges, *shares)


def thinned(curve: Curve, points: int = POINTS, tolerance: float = 0.0005) -> Curve:
    """The fewest of its points, by Douglas and Peucker, that leave every other within `tolerance` of the ranges.

    The tolerance doubles until no more than `points` are left.
    """
    x, y = _in_unit(curve.x), _in_unit(curve.y)
    while True:
        kept = _kept(x, y, tolerance)
        if kept.sum() <= points:
            return Curve(curve.x[kept], curve.y[kept])
        tolerance *= 2


def _kept(x: np.ndarray, y: np.ndarray, tolerance: float) -> np.ndarray:
    kept = np.zeros(len(x), dtype=bool)
    kept[[0, -1]] = True
    spans = [(0, len(x) - 1)]
    while spans:
        start, end = spans.pop()
        if end - start < 2:
            continue
        dx, dy = x[end] - x[start], y[end] - y[start]
        across, up = x[start + 1 : end] - x[start], y[start + 1 : end] - y[start]
        length = np.hypot(dx, dy)
        off = np.abs(dx * up - dy * across) / length if length else np.hypot(across, up)
        worst = int(off.argmax())
        if off[worst] > tolerance:
            middle = start + 1 + worst
            kept[middle] = True
            spans += [(start, middle), (middle, end)]
    return kept


def _in_unit(values: np.ndarray) -> np.ndarray:
    spread = float(np.ptp(values))
    scaled: np.ndarray = (values - values.min()) / (spread or 1.0)
    return scaled
