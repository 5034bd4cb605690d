"""Sections: what the page shows below its first screen, in the order a reader asks; what is lacking is left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.protocol import GROUPS, ID_TEST, SHIFTS
from hydra_ensembles.report.cells import Column, Figure, Row
from hydra_ensembles.report.drawing import Plate
from hydra_ensembles.report.examples import Examples, examples_of
from hydra_ensembles.report.figures import (
    Looks,
    cost_plate,
    decisions_plate,
    head_plate,
    histogram_plate,
    quality_plate,
    reliability_plate,
    risk_plate,
    roc_plate,
    slug,
)
from hydra_ensembles.report.runs import Run, Series
from hydra_ensembles.report.table import Table
from hydra_ensembles.report.words import listed, many

SCORES = {
    "msp": "highest probability",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
    "max_logit": "highest logit",
    "knn": "KNN (features)",
    "mahalanobis": "Mahalanobis (features)",
    "vim": "ViM (features)",
}
_HISTOGRAMS = 3
"""Runs whose scores are drawn for every set; of more, the first ones."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some plates, tables or examples under a heading of their own."""

    title: str = ""
    about: str = ""
    plates: Sequence[Plate] = ()
    tables: Mapping[str, Table] | None = None
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


def sections_of(runs: Sequence[Run], looks: Looks, series: Sequence[Series], examples: bool = True) -> list[Section]:
    """Every section that the runs have the numbers for."""
    judged = {one: look for one, look in looks.items() if one.evaluation is not None}
    found = [
        _confidence(judged) if judged else None,
        _silence(judged, series) if judged else None,
        _unknown(judged, series),
        _heads(runs),
        _costs(looks, series),
        _examples(runs) if examples else None,
    ]
    return [section for section in found if section is not None and section.parts]


def _confidence(looks: Looks) -> Section:
    plates = [reliability_plate(looks)]
    shifted = {one: look for one, look in looks.items() if one.told["groups"].get(SHIFTS)}
    if shifted:
        plates.append(reliability_plate(shifted, shifted=True))
    return Section(
        "confidence",
        "Confidence",
        "Can its confidence be believed?",
        "Answers are sorted into 15 bins by how sure the model says it is (across); each point shows how many of a bin are "
        "right (up). On the diagonal it is right exactly as often as it says. The strip below shows where most answers lie: "
        "points with few answers behind them jump about.",
        [Part(plates=plates)],
    )


def _silence(looks: Looks, series: Sequence[Series]) -> Section:
    decided = [one for one in series if one.told["about"].get("decisions")]
    return Section(
        "silence",
        "Staying silent",
        "What does staying silent bring?",
        "A model that knows when it is unsure makes few mistakes among the answers it is surest of. The curve begins with "
        "the surest answers on the left and ends on the right, where everything is answered; lower is better.",
        [Part(plates=[risk_plate(looks)]), *([_decisions(decided)] if decided else [])],
    )


def _decisions(series: Sequence[Series]) -> Part:
    return Part(
        "Answer, “not sure”, or “unknown”",
        "With a threshold and prediction sets fitted on known inputs, it answers, says that it is not sure between several "
        "classes, or calls the input unknown.",
        [decisions_plate(one) for one in series],
    )


def _unknown(looks: Looks, series: Sequence[Series]) -> Section | None:
    sets: dict[str, str] = {}
    for one in series:
        for group in GROUPS:
            sets |= {name: group for name in one.told["groups"].get(group, ()) if name not in sets}
    if not sets:
        return None
    scores = list(dict.fromkeys(one.told["score"] for one in series))
    parts = [Part("Which score?", _ABOUT_SCORES, tables={"scores": scores_table(series)})]
    subjects = [one for one in looks if one.model == one.run.subject]
    for name, group in sets.items():
        with_set = {one: look for one, look in looks.items() if name in one.told["groups"].get(group, ())}
        if not with_set:
            continue
        rows = next(iter(with_set)).told["rows"][name]
        plates = [roc_plate(with_set, name, scores[0])]
        plates += [histogram_plate(one, name, scores[0]) for one in subjects[:_HISTOGRAMS] if one in with_set]
        alike = "much like known inputs" if group == "near" else "of another kind"
        parts.append(Part(name, f"{group.capitalize()}: {alike}; {many(rows, 'input')}.", plates))
    return Section(
        "unknown",
        "Unknown inputs",
        "Does it notice inputs it cannot know?",
        f"Every input gets a score of how strange it looks ({listed(SCORES.get(score, score) for score in scores)}). Left: "
        "moving the threshold, how many unknown inputs are found (up) at the price of how many false alarms (across); the "
        "area under the curve, AUROC, is the share of pairs ranked rightly. Right: the scores themselves; the less the two "
        "overlap, the better.",
        parts,
    )


_ABOUT_SCORES = (
    "AUROC in percent, averaged over the unknown sets, by each score that was computed. Choosing the best of them after the "
    "fact flatters: a score should be chosen on validation data."
)


def scores_table(series: Sequence[Series]) -> Table:
    """Average AUROC by score; what is always 0 of one network is left out there."""
    names = list(
        dict.fromkeys(part.removeprefix("ood/") for one in series for part in one.told["figures"] if part.startswith("ood/"))
    )
    ordered = [name for name in SCORES if name in names] + [name for name in names if name not in SCORES]
    columns = [Column(name, SCORES.get(name, name), better="higher", decimals=1, factor=100) for name in ordered]
    rows = []
    for one in series:
        alone = one.told["about"]["members"] == 1
        cells = {
            name: Figure(one.told["figures"][f"ood/{name}"]["average"]["auroc"])
            for name in ordered
            if f"ood/{name}" in one.told["figures"] and not (alone and name == "mutual_information")
        }
        rows.append(Row(one.label, cells))
    return Table(columns, rows, "Scores", "", row_heading="Model")


def _heads(runs: Sequence[Run]) -> Section | None:
    parts = []
    for run in runs:
        if run.heads is None:
            continue
        plates = [head_plate(run, name, keep, place) for place, (name, keep) in enumerate(run.heads.members.items())]
        parts.append(
            Part(
                run.name if len(runs) > 1 else "",
                "",
                plates,
                {f"overlap-{slug(run.name)}": overlap_table(run)} if len(run.heads.members) > 1 else None,
            )
        )
    return Section(
        "heads",
        "Heads",
        "Which heads does each member keep?",
        "An attention head is a small part of a layer. Each member of the ensemble has other heads removed; that is what makes "
        "the members differ. A filled square is a head that stays, an empty one a head that was removed.",
        parts,
    )


def overlap_table(run: Run) -> Table:
    """How much alike the members' choices are, pair by pair."""
    assert run.heads is not None
    names, overlap, divergence = list(run.heads.members), run.heads.overlap, run.heads.divergence
    rows = [
        Row(f"{names[a]} and {names[b]}", {"overlap": Figure(overlap[a][b]), "divergence": Figure(divergence[a][b])})
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]
    columns = [
        Column("overlap", "removed heads in common, %", decimals=0, factor=100),
        Column("divergence", "divergence over layers", decimals=3),
    ]
    return Table(columns, rows, "Pairs of members", "Fewer heads in common: members that differ more.", row_heading="Pair")


def _costs(looks: Looks, series: Sequence[Series]) -> Section | None:
    priced = [one for one in series if one in looks and one.model in one.run.costs.get("models", {})]
    if not priced:
        return None
    settings = priced[0].run.costs.get("settings", {})
    tokens = f", texts of {settings['text_tokens']} tokens" if settings.get("text_tokens") else ""
    how = (
        f"Times are medians of {settings.get('rounds')} rounds at batch {settings.get('batch')} in {settings.get('dtype')} "
        f"on {many(settings.get('threads') or 1, 'thread')}{tokens}; thin lines span the middle of the rounds. "
        if settings
        else ""
    )
    plates = [cost_plate(priced, looks, what) for what in ("params", "mult_adds", "latency_ms")]
    metrics = ["accuracy", "ece", *(["auroc"] if all(f"ood/{one.told['score']}" in one.told["figures"] for one in priced) else [])]
    quality = [quality_plate(priced, looks, metric, "latency_ms") for metric in metrics]
    about = f"{how}Another machine gives other times; parameters and arithmetic stay."
    return Section(
        "costs",
        "Costs",
        "What does it cost?",
        about,
        [Part(plates=plates), Part("Cost against quality", "What the time buys.", quality)],
    )


def _examples(runs: Sequence[Run]) -> Section:
    return Section(
        "inputs",
        "Inputs",
        "Inputs worth looking at",
        "Read again from the data that was judged. Only a few, and chosen for being extreme: they say where to look, not how "
        "often it happens.",
        list(_examples_by_run(runs)),
    )


def _examples_by_run(runs: Sequence[Run]) -> Iterator[Part]:
    for run in runs:
        title = run.name if len(runs) > 1 else ""
        if run.subject not in run.evaluations or not run.recipe.get("data"):
            continue
        try:
            yield Part(title, "", examples=examples_of(run))
        except HydraError as error:
            yield Part(title, f"Not shown: {error}. Make the report where the recipe was run.")
