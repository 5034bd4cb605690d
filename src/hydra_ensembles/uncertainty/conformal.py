"""Conformal prediction sets: labels enough to hold the right one as often as promised, on rows like those fitted on.

Shapes: B batch, R rows to fit on, C classes.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from hydra_ensembles.uncertainty.known_rows import FittingError, rank_of, smallest

METHODS = ("thr", "aps")


@dataclass(frozen=True)
class ConformalQuantile:
    """A label belongs to the set if its score is at most `quantile`; sets hold the right one in `coverage` of rows.

    The score of a label is, by `"thr"`, 1 - its probability (Sadinle et al. 2019: the smallest sets); by `"aps"`, the
    probability of all labels down to it (Romano et al. 2020, without randomisation: sets that grow with doubt).
    """

    method: str
    quantile: float
    coverage: float

    def __post_init__(self) -> None:
        check_promise(self.method, self.coverage)
        # A sum of rounded probabilities may end a little above 1.
        if not isinstance(self.quantile, float | int) or not 0 <= self.quantile <= 1.001:
            raise FittingError(f"a conformal quantile is a number from 0 to 1, found {self.quantile!r}")


def check_promise(method: str, coverage: float) -> None:
    """Refuse a method that is not known and a coverage that cannot be promised."""
    if method not in METHODS:
        raise FittingError(f"conformal sets are made by 'thr' or 'aps', found {method!r}")
    if not isinstance(coverage, float) or not 0 < coverage < 1:
        raise FittingError(f"a coverage lies between 0 and 1, found {coverage!r}")


def fit_conformal(probs_RC: Tensor, labels_R: Tensor, coverage: float, method: str = "thr") -> ConformalQuantile:
    """The quantile that keeps the promise on a further row from where these came from, drawn independently."""
    check_promise(method, coverage)
    rows = len(labels_R)
    # The finite-sample quantile: torch-uncertainty 0.13 interpolates at `coverage` itself, which promises less.
    rank = rank_of(coverage, rows + 1)
    if rank > rows:
        share = Fraction(str(float(coverage)))
        needed = math.ceil(share / (1 - share))
        raise FittingError(f"a coverage of {coverage} needs {needed} rows or more, found {rows}")
    scores = label_scores(probs_RC, method).gather(-1, labels_R.long()[:, None])[:, 0]
    return ConformalQuantile(method, smallest(scores, rank), float(coverage))


def prediction_sets(probs_BC: Tensor, fitted: ConformalQuantile) -> Tensor:
    """Which labels each set holds `(B, C)`; the most probable one always, so that none is empty."""
    # Compared as scores, as they were fitted: p >= 1 - quantile rounds otherwise, and loses rows that tie with it.
    held = label_scores(probs_BC, fitted.method) <= fitted.quantile
    top = probs_BC.argmax(dim=-1, keepdim=True)
    if fitted.method == "thr":
        return held.scatter(-1, top, True)
    # torch-uncertainty 0.13 fills an empty set with the first label of the lowest score; for a certain answer all
    # scores are 1, and that label may be one of probability 0.
    return held.scatter(-1, top, held.gather(-1, top) | ~held.any(dim=-1, keepdim=True))


def label_scores(probs_BC: Tensor, method: str) -> Tensor:
    """How little each label conforms `(B, C)`."""
    if method == "thr":
        return 1 - probs_BC
    if torch.compiler.is_exporting():  # ONNX has no stable sort, but its TopK takes the first of equals first
        ordered, labels = probs_BC.topk(probs_BC.shape[-1], dim=-1)
    else:
        ordered, labels = probs_BC.sort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(probs_BC).scatter(-1, labels, ordered.cumsum(dim=-1))
