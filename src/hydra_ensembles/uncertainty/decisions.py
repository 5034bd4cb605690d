"""Decisions: accept a prediction, abstain between labels, or call the input out of distribution.

Shapes: B batch, R rows to fit on, M members, C classes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hydra_ensembles.uncertainty.known_rows import FittingError, check_finite, rank_of, smallest
from hydra_ensembles.uncertainty.scores import SCORES
from hydra_ensembles.uncertainty.temperature import Temperature, scaled_members, tempered_log_probs

DECISIONS = ("accept", "abstain", "out-of-distribution")


@dataclass(frozen=True)
class OODThreshold:
    """An input is out of distribution if its score lies above `threshold`, which `accept` of known rows did not."""

    score: str
    threshold: float
    accept: float

    def __post_init__(self) -> None:
        check_choice(self.score, self.accept)
        if not isinstance(self.threshold, float | int) or not math.isfinite(self.threshold):
            raise FittingError(f"an OOD threshold is a finite number, found {self.threshold!r}")


def check_choice(score: str, accept: float) -> None:
    """Refuse a score that is not known and a share that is none."""
    if score not in SCORES:
        raise FittingError(f"OOD score {score!r} is not known; it is one of {', '.join(SCORES)}")
    if not isinstance(accept, float | int) or isinstance(accept, bool) or not 0 < accept <= 1:
        raise FittingError(f"the share of known rows to accept lies above 0 and up to 1, found {accept!r}")


def ood_scores(score: str, logits_BMC: Tensor, temperature: Temperature | None = None) -> Tensor:
    """How unknown each input looks `(B,)`: one of `SCORES`, at a temperature.

    A temperature on the ensemble changes what is said of the ensemble's probabilities (msp, entropy); energy, max
    logit and mutual information stay the members' own. One on the members changes all.
    """
    if temperature is not None and temperature.on == "ensemble" and score in ("msp", "entropy"):
        return SCORES[score](tempered_log_probs(logits_BMC, temperature)[:, None])
    return SCORES[score](scaled_members(logits_BMC, temperature))


def fit_ood_threshold(scores_R: Tensor, score: str, accept: float = 0.95) -> OODThreshold:
    """The lowest threshold that at least a share `accept` of known rows do not exceed; ties are accepted together.

    >>> fit_ood_threshold(torch.tensor([3.0, 1.0, 2.0, 2.0]), "energy", accept=0.5).threshold
    2.0
    """
    check_choice(score, accept)
    if scores_R.dim() != 1 or len(scores_R) == 0:
        raise FittingError(f"scores of known rows have shape (rows,), found {tuple(scores_R.shape)}")
    check_finite("the scores", scores_R[:, None])
    return OODThreshold(score, smallest(scores_R, rank_of(accept, len(scores_R))), float(accept))


def decided(ood_score_B: Tensor, ood: OODThreshold | None, prediction_set_BC: Tensor | None) -> Tensor:
    """For each input its place in `DECISIONS` `(B,)`. Our definition.

    Out of distribution if the score lies above the threshold; else abstain if the prediction set holds more than one
    label; else accept. What is not fitted is not asked. A score that is NaN, as where probabilities are, is not known
    to be known, and is never accepted.
    """
    decision = torch.zeros_like(ood_score_B, dtype=torch.int64)
    if prediction_set_BC is not None:
        is_unsure = (prediction_set_BC.sum(dim=-1) > 1) | ood_score_B.isnan()
        decision = torch.where(is_unsure, DECISIONS.index("abstain"), decision)
    if ood is not None:
        decision = torch.where(ood_score_B <= ood.threshold, decision, DECISIONS.index("out-of-distribution"))
    return decision
