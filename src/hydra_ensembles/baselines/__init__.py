"""What the paper compares with: every method is trained, answers with members and has a cost."""

from hydra_ensembles.baselines.classifiers import ClassifierEnsemble
from hydra_ensembles.baselines.ensemble import DeepEnsemble
from hydra_ensembles.baselines.formatting import FormattingClassifier, FormattingDetector
from hydra_ensembles.baselines.lora import LoraEnsemble
from hydra_ensembles.baselines.mc_dropout import McDropout
from hydra_ensembles.baselines.method import BaselineError, Method

__all__ = [
    "BaselineError",
    "ClassifierEnsemble",
    "DeepEnsemble",
    "FormattingClassifier",
    "FormattingDetector",
    "LoraEnsemble",
    "McDropout",
    "Method",
]
