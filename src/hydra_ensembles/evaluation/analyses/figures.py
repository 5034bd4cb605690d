"""The figures of a model on a known set and some unknown ones: one pass over each."""

from collections.abc import Mapping

from hydra_ensembles.data import Batches
from hydra_ensembles.evaluation.analyses.subject import AnalysisError
from hydra_ensembles.evaluation.answers import Model, answers
from hydra_ensembles.evaluation.judged import judged
from hydra_ensembles.evaluation.metrics import answer_metrics, separation_metrics
from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.uncertainty import SCORES

Figures = dict[str, dict[str, float]]
"""By set and metric: `id_test`, every unknown set, and `average`, the unweighted mean over the unknown sets."""


def figures_of(model: Model, known: Batches, unknown: Mapping[str, Batches], score: str) -> Figures:
    """Metrics of answers on the known set; on unknown ones AUROC, FPR95, AUPR of a score; diversity on all.

    Of the logits as they are: a hydra's temperature is left out.
    """
    found = answers(model, known, digest=False, progress=False)
    if found.labels is None:
        raise AnalysisError("id_data has no labels; give (inputs, labels)")
    rows = judged(found.logits, found.labels)
    sets: Figures = {ID_TEST: answer_metrics(rows)}
    for name, batches in unknown.items():
        others = judged(answers(model, batches, labels=False, digest=False, progress=False).logits)
        sets[name] = separation_metrics(rows.scores[score], others.scores[score]) | answer_metrics(others)
    if unknown:
        metrics = sets[next(iter(unknown))]
        sets[AVERAGE] = {metric: sum(sets[name][metric] for name in unknown) / len(unknown) for metric in metrics}
    return sets


def check_score(score: str) -> None:
    """Refuse a score that is not known."""
    if score not in SCORES:
        raise AnalysisError(f"score '{score}' is not known; known: {', '.join(SCORES)}")
