"""What the paper compares with: every method is trained, answers with members and has a cost."""

from hydra_ensembles.baselines.batch_ensemble import BatchEnsemble
from hydra_ensembles.baselines.classifiers import ClassifierEnsemble
from hydra_ensembles.baselines.ensemble import DeepEnsemble
from hydra_ensembles.baselines.error_predictor import ErrorPredictor
from hydra_ensembles.baselines.formatting import FormattingClassifier, FormattingDetector
from hydra_ensembles.baselines.laplace import LastLayerLaplace
from hydra_ensembles.baselines.lora import LoraEnsemble
from hydra_ensembles.baselines.mc_dropout import McDropout
from hydra_ensembles.baselines.method import BaselineError, Method
from hydra_ensembles.baselines.mimo import Mimo
from hydra_ensembles.baselines.packed import PackedEnsemble
from hydra_ensembles.baselines.unstructured import UnstructuredPruning

__all__ = [
    "BaselineError",
    "BatchEnsemble",
    "ClassifierEnsemble",
    "DeepEnsemble",
    "ErrorPredictor",
    "FormattingClassifier",
    "FormattingDetector",
    "LastLayerLaplace",
    "LoraEnsemble",
    "McDropout",
    "Method",
    "Mimo",
    "PackedEnsemble",
    "UnstructuredPruning",
]
