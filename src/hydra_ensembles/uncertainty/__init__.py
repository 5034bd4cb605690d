"""Functions on logits: how sure, of which kind the doubt is, and what to make of it."""

from hydra_ensembles.uncertainty.conformal import ConformalQuantile, check_promise, fit_conformal, prediction_sets
from hydra_ensembles.uncertainty.decisions import (
    DECISIONS,
    OODThreshold,
    check_choice,
    decided,
    fit_ood_threshold,
    ood_scores,
)
from hydra_ensembles.uncertainty.decomposition import (
    aleatoric,
    disagreement,
    ensemble_log_probs,
    entropy,
    epistemic,
    member_log_probs,
)
from hydra_ensembles.uncertainty.fitted import Fitted
from hydra_ensembles.uncertainty.known_rows import FittingError, check_rows, finest
from hydra_ensembles.uncertainty.prediction import Prediction, predict, prediction_tensors
from hydra_ensembles.uncertainty.scores import SCORES
from hydra_ensembles.uncertainty.separation import accuracy, auroc, log_confidence, placements
from hydra_ensembles.uncertainty.temperature import (
    Temperature,
    TemperatureFit,
    fit_temperature,
    tempered_log_probs,
)

__all__ = [
    "DECISIONS",
    "SCORES",
    "ConformalQuantile",
    "Fitted",
    "FittingError",
    "OODThreshold",
    "Prediction",
    "Temperature",
    "TemperatureFit",
    "accuracy",
    "aleatoric",
    "auroc",
    "check_choice",
    "check_promise",
    "check_rows",
    "decided",
    "disagreement",
    "ensemble_log_probs",
    "entropy",
    "epistemic",
    "finest",
    "fit_conformal",
    "fit_ood_threshold",
    "fit_temperature",
    "log_confidence",
    "member_log_probs",
    "ood_scores",
    "placements",
    "predict",
    "prediction_sets",
    "prediction_tensors",
    "tempered_log_probs",
]
