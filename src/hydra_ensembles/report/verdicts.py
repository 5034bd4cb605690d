"""Verdicts: whether a model is better than the one network it came from, as far as the paired intervals allow."""

from dataclasses import dataclass

from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.report.runs import HYDRA, MEMBERS, Run
from hydra_ensembles.report.words import listed, signed

BETTER, WORSE, UNDECIDED = "better", "worse", "cannot be told apart"
_HIGHER = ("accuracy", "auroc", "aupr")
_CLAIMS = {
    "accuracy": ("is right more often", "is right less often", "how often they are right"),
    "ece": (
        "states its confidence more truthfully",
        "states its confidence less truthfully",
        "how truthful their confidence is",
    ),
    "nll": ("gives better probabilities", "gives worse probabilities", "how good their probabilities are"),
    "auroc": ("notices unknown inputs better", "notices unknown inputs worse", "how well they notice unknown inputs"),
}
"""Of a better, a worse and an undecided model, by metric."""


@dataclass(frozen=True)
class Verdict:
    """Is the subject better than its base in a metric, on the same rows?"""

    word: str
    value: float
    low: float
    high: float

    @property
    def told(self) -> str:
        """The difference in percentage points with its interval."""
        value, low, high = (signed(100 * number) for number in (self.value, self.low, self.high))
        return f"Difference from one network {value} points; 95 % interval {low} to {high}."


def verdict_of(run: Run, part: str, row: str, metric: str) -> Verdict | None:
    """What the paired interval allows to say; None where nothing was compared."""
    found = run.against_base.get(part, {}).get(row, {}).get(metric)
    if found is None:
        return None
    value, low, high = found["value"], found["low"], found["high"]
    # A resample repeats rows, which raises ECE: its interval may miss its own figure, and then decides nothing.
    decided = low > 0 or high < 0
    agrees = (value > 0) == (low > 0)
    if not decided or not agrees or value == 0:
        return Verdict(UNDECIDED, value, low, high)
    return Verdict(BETTER if (low > 0) == (metric in _HIGHER) else WORSE, value, low, high)


def verdict_in_a_sentence(run: Run) -> str:
    """Where the subject is better, worse or not to be told apart from one network."""
    if run.base is None:
        return "There is no other model to hold it against: the figures stand for themselves."
    unknown = f"ood/{run.models[run.subject]['score']}"
    found = {
        metric: verdict_of(run, *((unknown, AVERAGE) if metric == "auroc" else ("answers", ID_TEST)), metric)
        for metric in _CLAIMS
    }
    judged = {metric: verdict.word for metric, verdict in found.items() if verdict is not None}
    if not judged:
        return "The two were not compared on the same resampled rows, so no verdict is given; see the intervals."
    better, worse, even = (
        [_CLAIMS[metric][place] for metric, found in judged.items() if found == word]
        for place, word in enumerate((BETTER, WORSE, UNDECIDED))
    )
    subject = _the(run.subject)
    if not better and not worse:
        return (
            f"On the same inputs, {subject} and one network cannot be told apart: "
            f"differences in {listed(even)} may be chance."
        )
    but = " but " if better and worse else ""
    sentence = f"Compared with one network on the same inputs, {subject} {listed(better)}{but}{listed(worse)}."
    return f"{sentence} In {listed(even)} the two cannot be told apart." if even else sentence


def _the(model: str) -> str:
    return {HYDRA: "the hydra", MEMBERS: "the ensemble of members"}.get(model, model)
