"""Sections: what the page shows below its first screen, in the order a reader asks; what is lacking is left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.protocol import GROUPS, SHIFTS
from hydra_ensembles.report.cautions import scattered
from hydra_ensembles.report.cost_figures import cost_plate, has_cost, quality_plate
from hydra_ensembles.report.drawing import Plate
from hydra_ensembles.report.examples import Examples, examples_of
from hydra_ensembles.report.figures import (
    decisions_plate,
    histogram_plate,
    reliability_plate,
    risk_plate,
    roc_plate,
)
from hydra_ensembles.report.head_maps import head_plate
from hydra_ensembles.report.looks import Looks
from hydra_ensembles.report.run_tables import SCORES, overlap_table, scores_table
from hydra_ensembles.report.runs import Run, Series
from hydra_ensembles.report.table import Table
from hydra_ensembles.report.words import listed, many, slug

HISTOGRAMS = 3
"""Runs whose scores are drawn for every set, and whose inputs are shown; of more, the first ones."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some plates, tables or examples under a heading of their own."""

    title: str = ""
    about: str = ""
    plates: Sequence[Plate] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    folded: Mapping[str, Table] = field(default_factory=dict)
    """Tables for those who want every figure."""
    examples: Sequence[Examples] = ()


@dataclass(frozen=True, eq=False)
class Section:
    """One question of a reader."""

    key: str
    short: str
    """Its name in the list of sections."""
    title: str
    about: str
    parts: Sequence[Part]


def sections_of(
    runs: Sequence[Run],
    looks: Looks,
    series: Sequence[Series],
    tables: Mapping[str, Table],
    examples: bool = True,
) -> list[Section]:
    """Every section that the runs have the numbers for; `looks` are of the series that figures show."""
    judged = {one: look for one, look in looks.items() if one.evaluation is not None}
    found = [
        _figures(tables),
        _confidence(judged) if judged else None,
        _silence(judged, series) if judged else None,
        _unknown(judged, series, tables) if "unknown" in tables else None,
        _heads(runs),
        _costs(looks, tables),
        _examples(runs) if examples else None,
    ]
    return [section for section in found if section is not None and section.parts]


def _figures(tables: Mapping[str, Table]) -> Section:
    first = {key: tables[key] for key in ("main", "seeds", "shifts") if key in tables}
    return Section(
        "tables",
        "Figures",
        "The figures side by side",
        "Best in bold, second best underlined, as the numbers are shown; differences may still be chance. ↑ higher is "
        "better, ↓ lower is better. Accuracy (Acc), AUROC, FPR95 and AUPR in percent; the words are explained above.",
        [Part(tables=first, folded={key: tables[key] for key in ("intervals",) if key in tables})],
    )


def _confidence(looks: Looks) -> Section:
    plates = [reliability_plate(looks)]
    shifted = {one: look for one, look in looks.items() if one.told["groups"].get(SHIFTS)}
    if shifted:
        plates.append(reliability_plate(shifted, shifted=True))
    return Section(
        "confidence",
        "Confidence",
        "Can its confidence be believed?",
        "Answers are sorted into 15 bins by how sure the model says it is (across); each point shows how many of a bin "
        "are right (up). On the straight line it is right exactly as often as it says; below it, too sure; above, not "
        "sure enough. The strip shows where most answers lie: points with few answers behind them jump about.",
        [Part(plates=plates)],
    )


def _silence(looks: Looks, series: Sequence[Series]) -> Section:
    parts = [Part(plates=[risk_plate(looks)])]
    decided = [one for one in series if one.told["about"].get("decisions")]
    if decided:
        parts.append(
            Part(
                "Answer, “not sure”, or “unknown”",
                "With a threshold and prediction sets fitted on known inputs, it answers, says that it is not sure "
                "between several classes, or calls the input unknown.",
                [decisions_plate(one) for one in decided],
            )
        )
    return Section(
        "silence",
        "Staying silent",
        "What does staying silent bring?",
        "A model that knows when it is unsure makes few mistakes among the answers it is surest of. The curve begins "
        "with the surest answers on the left and ends on the right, where everything is answered; lower is better.",
        parts,
    )


def _unknown(looks: Looks, series: Sequence[Series], tables: Mapping[str, Table]) -> Section:
    scores = list(dict.fromkeys(one.told["score"] for one in series))
    every = {key: table for key, table in tables.items() if key.startswith("unknown-sets")}
    parts = [
        Part("All sets", "", tables={"unknown": tables["unknown"]}, folded=every),
        Part(
            "Which score?",
            "AUROC in percent, averaged over the unknown sets, by each score that was computed. To choose the best of "
            "them afterwards would flatter: a score is chosen on validation data.",
            tables={"scores": scores_table(series)},
        ),
        *_sets(looks),
    ]
    return Section(
        "unknown",
        "Unknown inputs",
        "Does it notice inputs it cannot know?",
        f"Every input gets a score of how strange it looks ({listed(SCORES.get(score, score) for score in scores)}). "
        "First picture of each set: moving the threshold, how many unknown inputs are found (up) at the price of how "
        "many false alarms (across); the area under the curve, AUROC, is the share of pairs ranked rightly. Second "
        "picture: the scores themselves; the less the two overlap, the better.",
        parts,
    )


def _separated(series: Series) -> Mapping[str, Any]:
    """What was measured of unknown sets: one that is unknown to a model may be a shift, or unheard of, to another."""
    found: Mapping[str, Any] = series.told["figures"].get(f"ood/{series.told['score']}", {})
    return found


def _sets(looks: Looks) -> Iterator[Part]:
    """ROC and scores of every unknown set."""
    groups = {name: group for one in looks for group in GROUPS for name in one.told["groups"].get(group, ())}
    for name, group in groups.items():
        asked = {one: look for one, look in looks.items() if name in _separated(one)}
        subjects = [one for one in asked if one.model == one.run.subject]
        plates = [roc_plate(asked, name), *(histogram_plate(one, name) for one in subjects[:HISTOGRAMS])]
        alike = "much like known inputs" if group == "near" else "of another kind"
        rows = many(next(iter(asked)).told["rows"][name], "input")
        yield Part(name, f"{group.capitalize()}: {alike}; {rows}.", plates)


def _heads(runs: Sequence[Run]) -> Section:
    parts = []
    for run in runs:
        if run.heads is not None:
            members = run.heads.members
            plates = [head_plate(run, name, keep, place) for place, (name, keep) in enumerate(members.items())]
            pairs = {f"overlap-{slug(run.name)}": overlap_table(run)} if len(members) > 1 else {}
            parts.append(Part(run.name if len(runs) > 1 else "", "", plates, pairs))
    return Section(
        "heads",
        "Heads",
        "Which heads does each member keep?",
        "An attention head is a small part of a layer. Each member of the ensemble has other heads removed; that is "
        "what makes the members differ. A filled square is a head that stays, an empty one a head that was removed.",
        parts,
    )


def _costs(looks: Looks, tables: Mapping[str, Table]) -> Section | None:
    counted = {one: look for one, look in looks.items() if has_cost(one, "mult_adds")}
    timed = {one: look for one, look in counted.items() if has_cost(one, "latency_ms")}
    if not counted:
        return None
    plates = [cost_plate(counted, what) for what in ("params", "mult_adds")]
    plates += [cost_plate(timed, "latency_ms")] if timed else []
    is_quiet = timed and not any(scattered(one.run) for one in timed)
    price, bought = ("latency_ms", timed) if is_quiet else ("mult_adds", counted)
    has_unknown = all(f"ood/{one.told['score']}" in one.told["figures"] for one in bought)
    metrics = ["accuracy", "ece", *(["auroc"] if has_unknown else [])]
    quality = [quality_plate(bought, metric, price) for metric in metrics]
    return Section(
        "costs",
        "Costs",
        "What does it cost?",
        _how_timed([one.run for one in timed]),
        [
            Part(plates=plates, folded={"costs": tables["costs"]}),
            Part("Cost against quality", "What more time or arithmetic buys.", quality),
        ],
    )


def _how_timed(runs: Sequence[Run]) -> str:
    settings = [run.costs.get("settings", {}) for run in runs]
    if not settings:
        return "Counted, not timed. Less arithmetic is not always less time."
    if any(one != settings[0] for one in settings):
        return "The runs were timed under different settings: times can be compared within a run only."
    one = settings[0]
    tokens = f", texts of {one['text_tokens']} tokens" if one.get("text_tokens") else ""
    return (
        f"Times are medians of {one.get('rounds')} rounds at batch {one.get('batch')} in {one.get('dtype')} on "
        f"{many(one.get('threads') or 1, 'thread')}{tokens}; half of the rounds lie within the thin lines. Another "
        "machine gives other times; parameters and arithmetic stay."
    )


def _examples(runs: Sequence[Run]) -> Section:
    return Section(
        "inputs",
        "Inputs",
        "Inputs worth looking at",
        "Read again from the data that was judged. Only a few, and chosen for being extreme: they say where to look, "
        "not how often it happens.",
        list(_examples_by_run(runs)),
    )


def _examples_by_run(runs: Sequence[Run]) -> Iterator[Part]:
    shown = [run for run in runs if run.subject in run.evaluations and run.recipe.get("data")]
    for run in shown[:HISTOGRAMS]:
        title = run.name if len(runs) > 1 else ""
        try:
            yield Part(title, examples=examples_of(run))
        except HydraError as error:
            yield Part(title, f"Not shown: {error}. Make the report where the recipe was run.")
