"""Functions on logits: how sure, and of which kind the doubt is."""

from hydra_ensembles.uncertainty.decomposition import (
    aleatoric,
    disagreement,
    ensemble_log_probs,
    entropy,
    epistemic,
    member_log_probs,
)
from hydra_ensembles.uncertainty.prediction import Prediction, predict
from hydra_ensembles.uncertainty.separation import accuracy, auroc, log_confidence, placements

__all__ = [
    "Prediction",
    "accuracy",
    "aleatoric",
    "auroc",
    "disagreement",
    "ensemble_log_probs",
    "entropy",
    "epistemic",
    "log_confidence",
    "member_log_probs",
    "placements",
    "predict",
]
