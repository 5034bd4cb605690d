"""The bootstrap: how far a metric would move on another sample of rows, and whether two models differ.

A resample is how often each row is drawn. Over rows that are sorted once, and grouped where scores are equal, every
metric of a resample follows from cumulated counts: nothing is sorted or repeated again. With every row drawn once,
each metric is that of `metrics.py`.

Shapes: S resamples, R rows, N known rows, U unknown rows, G groups of rows with equal scores, P positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.evaluation.metrics import (
    BINS,
    COVERAGE,
    RECALL,
    MetricError,
    answer_columns,
    confidence_bins,
    score_columns,
)

# Numbers of one slice of resamples: 4 MB in float64, which a processor's cache still holds.
SLICE = 1 << 19


def draws(rows: int, resamples: int, seed: int) -> Tensor:
    """How often each row is drawn `(S, R)`, in whole numbers; every resample draws as many rows as there are.

    The same rows, resamples and seed give the same draws: models judged on one set are compared on the same draws.
    Known and unknown rows are different samples and want different seeds.

    >>> draws(rows=4, resamples=2, seed=0).sum(dim=1).tolist()
    [4, 4]
    """
    if rows < 1 or resamples < 1:
        raise MetricError(f"a bootstrap needs rows and resamples, found {rows} rows and {resamples} resamples")
    generator = torch.Generator().manual_seed(seed)
    counts_SR = torch.empty(resamples, rows, dtype=torch.int16)
    for (part_SR,) in _slices(counts_SR):
        drawn_SR = torch.randint(rows, part_SR.shape, generator=generator)
        drawn_SR += rows * torch.arange(len(part_SR))[:, None]
        part_SR.copy_(drawn_SR.flatten().bincount(minlength=part_SR.numel()).view_as(part_SR))
    return counts_SR


def resampled_answers(judged: Judged, counts_SR: Tensor) -> dict[str, Tensor]:
    """Every metric of `answer_metrics` in every resample `(S,)`."""
    columns = answer_columns(judged)
    _check_counts(counts_SR, len(judged))
    if "accuracy" not in columns:
        return _in_slices(lambda counts: _means(columns, counts.double()), counts_SR)
    confidence, right = columns.pop("confidence"), columns["accuracy"]
    gap = right - confidence
    gap_by_bin = torch.zeros(len(gap), BINS, dtype=torch.float64)
    gap_by_bin[torch.arange(len(gap)), confidence_bins(confidence)] = gap
    order_R = confidence.argsort(descending=True)
    ends_G = _ends(confidence[order_R])
    wrong_sorted, gap_sorted = 1 - right[order_R], gap[order_R]
    harmonic = pad((1 / torch.arange(1, int(counts_SR.sum(1).max()) + 1).double()).cumsum(0), (1, 0))

    def metrics(counts: Tensor) -> dict[str, Tensor]:
        weights_SR = counts.double()
        sorted_SR, rows_S = weights_SR[:, order_R], weights_SR.sum(1)
        drawn = _cumulated(sorted_SR, ends_G)
        errors = _cumulated(sorted_SR * wrong_sorted, ends_G)
        gaps = _cumulated(sorted_SR * gap_sorted, ends_G)
        covered_S = (rows_S * COVERAGE).ceil()
        # A bin counts by its rows, so that of its accuracy and confidence only the sum of gaps is left, over all rows.
        return {
            **_means(columns, weights_SR),
            "ece": (weights_SR @ gap_by_bin).abs().sum(1) / rows_S,
            "aece": _at(_equal_mass_edges(rows_S), drawn, gaps).diff(dim=1).abs().sum(1) / rows_S,
            "aurc": _aurc(drawn, errors, harmonic),
            "risk_at_80": _at(covered_S[:, None], drawn, errors)[:, 0] / covered_S,
        }

    return _in_slices(metrics, counts_SR)


def resampled_separation(
    known_N: Tensor, unknown_U: Tensor, known_counts_SN: Tensor, unknown_counts_SU: Tensor
) -> dict[str, Tensor]:
    """Every metric of `separation_metrics` in every resample `(S,)`; the two sets are drawn independently."""
    known, unknown = score_columns(known_N, unknown_U)
    _check_counts(known_counts_SN, len(known))
    _check_counts(unknown_counts_SU, len(unknown))
    if len(known_counts_SN) != len(unknown_counts_SU):
        raise MetricError(
            f"known rows have {len(known_counts_SN)} resamples, unknown rows {len(unknown_counts_SU)}; "
            "draw both as often"
        )
    known_order, unknown_order = known.argsort(descending=True), unknown.argsort(descending=True)
    ends_G = _ends(unknown[unknown_order])
    # Only where unknown rows are found does recall rise: their distinct scores are all the thresholds that count.
    ascending, thresholds_G = known.sort().values, unknown[unknown_order][ends_G]
    above_G = len(known) - torch.searchsorted(ascending, thresholds_G, right=True)
    at_least_G = len(known) - torch.searchsorted(ascending, thresholds_G, right=False)

    def metrics(known_counts: Tensor, unknown_counts: Tensor) -> dict[str, Tensor]:
        false = pad(known_counts[:, known_order].double().cumsum(1), (1, 0))
        false_S, false_SG = false[:, -1], false[:, at_least_G]
        true = _cumulated(unknown_counts[:, unknown_order].double(), ends_G)
        true_S, true_SG, found_SG = true[:, -1], true[:, 1:], true.diff(dim=1)
        beaten_SG = false_S[:, None] - (false[:, above_G] + false_SG) / 2
        precision_SG = true_SG / (true_SG + false_SG).clamp_min(1)
        first_S = (true_SG / true_S[:, None] < RECALL).sum(1)
        return {
            "auroc": (found_SG * beaten_SG).sum(1) / (true_S * false_S),
            "fpr95": false_SG.gather(1, first_S[:, None])[:, 0] / false_S,
            "aupr": (found_SG * precision_SG).sum(1) / true_S,
        }

    return _in_slices(metrics, known_counts_SN, unknown_counts_SU)


def interval(values_S: Tensor, level: float = 0.95) -> tuple[float, float]:
    """The percentiles between which the middle `level` of the resampled values lies.

    >>> interval(torch.arange(101.0), level=0.5)
    (25.0, 75.0)
    """
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values_S.double().quantile(tails).tolist()
    return low, high


@dataclass(frozen=True)
class Difference:
    """By how much two models differ in a metric, first minus second."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided: twice the share of resamples without a difference of this sign, at most 1."""


def difference(
    value_a: float, value_b: float, values_a_S: Tensor, values_b_S: Tensor, level: float = 0.95
) -> Difference:
    """Compare two models whose resampled values come from the same draws."""
    if values_a_S.shape != values_b_S.shape:
        raise MetricError(
            f"the models have {len(values_a_S)} and {len(values_b_S)} resampled values; compare them on the same draws"
        )
    differences_S = values_a_S.double() - values_b_S.double()
    low, high = interval(differences_S, level)
    not_above, not_below = (differences_S <= 0).sum().item(), (differences_S >= 0).sum().item()
    # The +1 counts the sample itself among its resamples: p is never 0, at best 2 / (S + 1).
    p = 2 * (min(not_above, not_below) + 1) / (len(differences_S) + 1)
    return Difference(value_a - value_b, low, high, min(p, 1.0))


def _means(columns: dict[str, Tensor], weights_SR: Tensor) -> dict[str, Tensor]:
    means = weights_SR @ torch.stack(list(columns.values()), dim=1) / weights_SR.sum(1, keepdim=True)
    return dict(zip(columns, means.unbind(1), strict=True))


def _aurc(drawn: Tensor, errors: Tensor, harmonic: Tensor) -> Tensor:
    """Area under the risk-coverage curve `(S,)`, by groups of equal confidence.

    Behind a rows with E errors, a group of m rows with mean error e has risk (E + e (k - a)) / k at its k-th row, and
    these add up to m e + (E - e a) (H(a + m) - H(a)), with the harmonic numbers H.
    """
    rows_S, m, me = drawn[:, -1], drawn.diff(dim=1), errors.diff(dim=1)
    a, E, e = drawn[:, :-1], errors[:, :-1], me / m.clamp_min(1)
    total_S = errors[:, -1] + ((E - e * a) * harmonic[drawn.long()].diff(dim=1)).sum(1)
    first_S = _at(torch.ones_like(rows_S)[:, None], drawn, errors)[:, 0]
    area_S = (total_S - (first_S + errors[:, -1] / rows_S) / 2) / (rows_S - 1).clamp_min(1)
    return torch.where(rows_S > 1, area_S, first_S)


def _equal_mass_edges(rows_S: Tensor) -> Tensor:
    """Where the bins of aECE begin and end `(S, BINS + 1)`, in rows from the most confident one.

    tensor_split, with which torch-uncertainty cuts, starts at the least confident row: its first bins are the larger.
    """
    bins = torch.arange(BINS + 1)
    return rows_S[:, None] - (bins * (rows_S[:, None] // BINS) + torch.minimum(bins, rows_S[:, None] % BINS))


def _ends(sorted_R: Tensor) -> Tensor:
    """The last row of each group of equal values `(G,)`."""
    last_R = torch.ones(len(sorted_R), dtype=torch.bool)
    last_R[:-1] = sorted_R[1:] != sorted_R[:-1]
    return last_R.nonzero()[:, 0]


def _cumulated(values_SR: Tensor, ends_G: Tensor) -> Tensor:
    """Sums up to the end of each group, with a leading 0 `(S, G + 1)`."""
    return pad(values_SR.cumsum(1)[:, ends_G], (1, 0))


def _at(positions_SP: Tensor, drawn: Tensor, sums: Tensor) -> Tensor:
    """The sum over the first so many drawn rows `(S, P)`; inside a group, rows share its sum evenly."""
    after = torch.searchsorted(drawn, positions_SP.contiguous())
    before = (after - 1).clamp_min(0)
    from_row, to_row = drawn.gather(1, before), drawn.gather(1, after)
    from_sum, to_sum = sums.gather(1, before), sums.gather(1, after)
    return from_sum + (to_sum - from_sum) * (positions_SP - from_row) / (to_row - from_row).clamp_min(1)


def _in_slices(metrics: Callable[..., dict[str, Tensor]], *counts: Tensor) -> dict[str, Tensor]:
    """The metrics of some resamples at a time, so that memory does not grow with their number."""
    parts = [metrics(*slices) for slices in _slices(*counts)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _slices(*counts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    step = max(SLICE // sum(counts_SR.shape[1] for counts_SR in counts), 1)
    return zip(*(counts_SR.split(step) for counts_SR in counts), strict=True)


def _check_counts(counts_SR: Tensor, rows: int) -> None:
    if counts_SR.ndim != 2 or counts_SR.shape[1] != rows:
        raise MetricError(
            f"there are {rows} rows, but draws of shape {tuple(counts_SR.shape)}; expected (resamples, {rows})"
        )
