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

__all__ = [
    "Prediction",
    "aleatoric",
    "disagreement",
    "ensemble_log_probs",
    "entropy",
    "epistemic",
    "member_log_probs",
    "predict",
]
