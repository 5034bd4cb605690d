"""Metrics of a set: the values of torchmetrics and torch-uncertainty on judged rows, in float64.

AUROC, FPR95 and AUPR are counted here: the libraries divide counts by counts in torch's default dtype, which is float32
and belongs to the whole process. The tests hold them to scikit-learn's values.

Both libraries leave some cases to chance or to rounding; here they are decided, so that a value depends on the rows
alone and not on their order:

- Ties. Rows of equal confidence all count as the mean of their group. For AURC and the risk at 80 % coverage that is
  the expected value over all orders of the tied rows; for aECE it decides rows that lie astride two bins.
- Only the order of scores counts (torchmetrics applies a sigmoid to those outside [0, 1], which saturates).
- The last bin of ECE is closed. torchmetrics 1.9 opens a sixteenth for a confidence of exactly 1.
- aECE of fewer rows than bins has a bin for each row. torch-uncertainty 0.13 divides by empty bins: NaN.
- AURC of one row is its error, the only point of the curve. torch-uncertainty gives NaN.

Shapes: R rows, N known rows, U unknown rows, G distinct scores of unknown rows.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.optional import import_extra

BINS = 15
"""Of ECE (equal width) and aECE (equal mass)."""
COVERAGE = 0.8
"""The share of rows, the most confident ones, on which the risk is read."""
RECALL = 0.95
"""The share of unknown rows that are found where the false-positive rate is read."""


class MetricError(HydraError):
    """Numbers that no metric can be computed from."""


def answer_metrics(judged: Judged) -> dict[str, float]:
    """How good and how sure the answers are; without labels, only how much the members differ.

    `accuracy`, `brier` (summed over classes, 0 to 2), `nll`, `ece`, `aece`, `aurc`, `risk_at_80` (error rate of the
    80 % most confident rows), `mutual_information`, `disagreement`. Sets of one class, all right or all wrong need no
    exception: nothing here divides by the number of wrong rows or of classes.
    """
    columns = answer_columns(judged)
    found = {name: column.mean().item() for name, column in columns.items() if name != "confidence"}
    if "accuracy" not in columns:
        return found
    confidence, right = columns["confidence"], columns["accuracy"]
    return found | _calibration(confidence, right) | _selection(confidence, right)


def separation_metrics(known_N: Tensor, unknown_U: Tensor) -> dict[str, float]:
    """How well a score tells unknown rows, the positive class, from known ones: `auroc`, `fpr95`, `aupr`.

    Scores are higher for rows that look more unknown. FPR95 is read at the first threshold that finds 95 % of the
    unknown rows, with ties kept together; AUPR is step-wise average precision, and depends on the sizes of the sets.
    """
    known, unknown = score_columns(known_N, unknown_U)
    # Only where unknown rows are found does recall rise: their distinct scores are all the thresholds that count.
    thresholds_G, found_G = (values.flip(0) for values in unknown.unique(return_counts=True))
    ascending_N = known.sort().values
    above_G = len(known) - torch.searchsorted(ascending_N, thresholds_G, right=True)
    at_least_G = len(known) - torch.searchsorted(ascending_N, thresholds_G, right=False)
    true_G = found_G.cumsum(0)
    beaten_G = len(known) - (above_G + at_least_G).double() / 2
    first = int((true_G.double() / len(unknown) < RECALL).sum())
    precision_G = true_G.double() / (true_G + at_least_G)
    return {
        "auroc": float((found_G * beaten_G).sum() / (len(known) * len(unknown))),
        "fpr95": int(at_least_G[first]) / len(known),
        "aupr": float((found_G * precision_G).sum() / len(unknown)),
    }


def answer_columns(judged: Judged) -> dict[str, Tensor]:
    """The columns `(R,)` behind the metrics of answers, by the metric that is their mean; checked, in float64."""
    columns = {"mutual_information": judged.mutual_information, "disagreement": judged.disagreement}
    if judged.right is not None and judged.brier is not None and judged.nll is not None:
        columns |= {"accuracy": judged.right, "brier": judged.brier, "nll": judged.nll}
        columns["confidence"] = judged.confidence
    return _checked(columns)


def score_columns(known_N: Tensor, unknown_U: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of both sets; checked, in float64."""
    known, unknown = _checked({"scores of known rows": known_N}), _checked({"scores of unknown rows": unknown_U})
    return known["scores of known rows"], unknown["scores of unknown rows"]


def confidence_bins(confidence_R: Tensor) -> Tensor:
    """The bin of ECE that each row falls into `(R,)`, as torchmetrics cuts them: closed below, open above."""
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    return torch.bucketize(below_one(confidence_R), edges, right=True) - 1


def below_one(confidence_R: Tensor) -> Tensor:
    """Confidence just short of 1 where it is 1, or more by rounding: the last bin of ECE is closed."""
    return confidence_R.clamp(max=1 - 2**-53)


def _calibration(confidence_R: Tensor, right_R: Tensor) -> dict[str, float]:
    torchmetrics = _library("torchmetrics.functional.classification")
    uncertainty = _library("torch_uncertainty.metrics.classification.calibration.adaptive_calibration_error")
    # torchmetrics' binary form compares "probability" with "target": here, confidence with rightness.
    ece = torchmetrics.binary_calibration_error(below_one(confidence_R), right_R.long(), n_bins=BINS)
    # Not the class AdaptiveCalibrationError, which takes probabilities and rounds to float32.
    bins = min(BINS, len(right_R))
    aece = uncertainty._ace_compute(confidence_R, _mean_of_ties(right_R, confidence_R), bins)
    return {"ece": ece.item(), "aece": aece.item()}


def _selection(confidence_R: Tensor, right_R: Tensor) -> dict[str, float]:
    """What answering only when confident would bring."""
    curve = _library("torch_uncertainty.metrics.classification.risk_coverage").AURC()
    curve.scores, curve.errors = [confidence_R], [_mean_of_ties(1 - right_R, confidence_R)]
    risk_R = curve.partial_compute()
    R = len(risk_R)
    # As AURC.compute() has it, which rounds coverage to float32: from 1/R to 1, stretched to a length of 1.
    aurc = torch.trapezoid(risk_R) / (R - 1) if R > 1 else risk_R[0]
    return {"aurc": aurc.item(), "risk_at_80": risk_R[math.ceil(R * COVERAGE) - 1].item()}


def _mean_of_ties(values_R: Tensor, keys_R: Tensor) -> Tensor:
    """Each row's value replaced by the mean over rows of the same key."""
    _, group_R, sizes = keys_R.unique(return_inverse=True, return_counts=True)
    means: Tensor = torch.zeros(len(sizes), dtype=values_R.dtype).index_add_(0, group_R, values_R) / sizes
    return means[group_R]


def _library(module: str) -> Any:
    return import_extra(module, "eval", "computing metrics")


def _checked(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    total = len(next(iter(columns.values())))
    if total == 0:
        raise MetricError(f"{', '.join(columns)}: there are no rows; a metric needs at least one")
    broken = {name: (~column.isfinite()).nonzero()[:, 0] for name, column in columns.items()}
    broken = {name: rows for name, rows in broken.items() if len(rows)}
    if broken:
        rows = torch.cat(list(broken.values())).unique()
        raise MetricError(
            f"{', '.join(broken)}: NaN or infinite in {len(rows)} of {total} rows, the first is row {rows[0]}; "
            "look at the logits there"
        )
    return {name: column.double() for name, column in columns.items()}
