"""Evaluation: protocol, metrics and their intervals, detectors, shift, what is fitted after training, costs."""

from hydra_ensembles.evaluation.answers import AnswerError, Answers, answers, load_answers, member_logits
from hydra_ensembles.evaluation.bootstrap import Difference
from hydra_ensembles.evaluation.costs import Costs, costs
from hydra_ensembles.evaluation.evaluating import evaluate
from hydra_ensembles.evaluation.fitting import ConformalSets, OODDetector, TemperatureScaler
from hydra_ensembles.evaluation.latency import Contest, Timing, contest, interleaved, sample_inputs
from hydra_ensembles.evaluation.protocol import Protocol, ProtocolError
from hydra_ensembles.evaluation.results import Evaluation, EvaluationError, compare

__all__ = [
    "AnswerError",
    "Answers",
    "ConformalSets",
    "Contest",
    "Costs",
    "Difference",
    "Evaluation",
    "EvaluationError",
    "OODDetector",
    "Protocol",
    "ProtocolError",
    "TemperatureScaler",
    "Timing",
    "answers",
    "compare",
    "contest",
    "costs",
    "evaluate",
    "interleaved",
    "load_answers",
    "member_logits",
    "sample_inputs",
]
