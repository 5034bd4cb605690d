"""Cautions: what a reader must mind before relying on a run's figures."""

from hydra_ensembles.evaluation.protocol import GROUPS
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.words import listed, of_100

SMALL = 200
"""Sets of fewer rows are warned of: the interval of an accuracy of 80 % is then wider than ± 5 points."""
SCATTERED = 0.25
"""Quartiles of times further apart than this share of the median are warned of."""


def cautions(run: Run, seeds: int) -> list[str]:
    """What to mind; `seeds` is how many runs of the recipe the report has."""
    return [*_unknown_sets(run), *_small_sets(run), *_about_seeds(seeds), *_seen(run), *_times(run)]


def scattered(run: Run) -> list[str]:
    """The models whose times lie so far apart that the machine must have been busy."""
    timed = {name: cost["latency_ms"] for name, cost in run.costs.get("models", {}).items() if cost.get("latency_ms")}
    return [name for name, found in timed.items() if found["high"] - found["low"] > SCATTERED * found["median"]]


def _unknown_sets(run: Run) -> list[str]:
    told, found = run.models[run.subject], []
    part = f"ood/{told['score']}"
    for name in [name for group in GROUPS for name in told["groups"].get(group, ())]:
        auroc = told["figures"].get(part, {}).get(name, {}).get("auroc", 1.0)
        _, high = told["intervals"].get(part, {}).get(name, {}).get("auroc", (0.0, 1.0))
        if auroc < 0.5 and high < 0.5:
            found.append(
                f"{name}: worse than a coin toss ({of_100(auroc)} of 100 pairs). These inputs look more familiar to it "
                "than known ones do; its score must not be relied on there."
            )
        elif auroc < 0.5:
            found.append(f"{name}: no better than a coin toss ({of_100(auroc)} of 100 pairs).")
    return found


def _small_sets(run: Run) -> list[str]:
    told = run.models[run.subject]
    small = [f"{name} ({rows:,})" for name, rows in told["rows"].items() if rows < SMALL]
    found = (
        [f"Few inputs in {listed(small)}: figures there may move by several points on other inputs."] if small else []
    )
    if not told["intervals"]:
        found.append("No intervals were computed (resamples: 0): small differences mean nothing.")
    return found


def _about_seeds(seeds: int) -> list[str]:
    if seeds > 1:
        return [f"One of {seeds} runs of this recipe: how far figures move between seeds is in a table of its own."]
    return ["One training run: intervals say how far figures would move on other inputs, not with another seed."]


def _seen(run: Run) -> list[str]:
    about = run.models[run.subject]["about"]
    allowed = "Sets that were used to choose were allowed as tests (allow_seen): figures on them are flattering."
    seen = [f"{told[:1].upper()}{told[1:]}." for told in about.get("seen", ())]
    return [*([allowed] if about.get("allow_seen") else []), *seen]


def _times(run: Run) -> list[str]:
    wide = scattered(run)
    told = f"The times of {listed(wide)} scattered widely, the machine was busy: measure again before relying on them."
    return [told] if wide else []
