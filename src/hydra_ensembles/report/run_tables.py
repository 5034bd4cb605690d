"""The tables of a report: the paper's layouts, filled from the runs at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hydra_ensembles.evaluation.protocol import AVERAGE, GROUPS, SHIFTS
from hydra_ensembles.report.cells import Column, Figure, Row
from hydra_ensembles.report.layouts import paper_table
from hydra_ensembles.report.runs import Run, Series
from hydra_ensembles.report.summaries import Summary, SummaryError, summarise
from hydra_ensembles.report.table import Table

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
"""What a reader calls them."""
_MAIN, _GROUPS, _SETS, _COSTS, _SHIFTS = 2, 17, 25, 7, 13
"""Numbers of the paper's tables whose layouts are used."""


def tables_of(runs: Sequence[Run]) -> dict[str, Table]:
    """Every table that the runs have the numbers for, by the name of its file; the main one first."""
    summaries: dict[str, Summary] = {run.name: summarise([run.results]) for run in runs}
    together: Mapping[str, Summary] | Summary = summaries if len(runs) > 1 else summaries[runs[0].name]
    told = [model for run in runs for model in run.models.values()]
    found = {"main": _titled(paper_table(_MAIN, together), "Answers and unknown inputs")}
    by_recipe = summaries_by_recipe(runs)
    if by_recipe:
        several: Any = by_recipe if len(by_recipe) > 1 else next(iter(by_recipe.values()))
        found["seeds"] = _titled(
            paper_table(_MAIN, several), "Mean and standard deviation over seeds", _which_seeds(runs, by_recipe)
        )
    if any(model["intervals"] for model in told):
        title = "With 95 % intervals over resampled inputs"
        found["intervals"] = _titled(paper_table(_MAIN, together, intervals=True), title)
    if any(model["groups"].get(group) for model in told for group in GROUPS):
        found["unknown"] = _titled(paper_table(_GROUPS, together), "Unknown inputs, near and far")
        for place, (name, summary) in enumerate(summaries.items()):
            key, of = ("", "") if len(runs) == 1 else (f"-{place + 1}", f" of {name}")
            found[f"unknown-sets{key}"] = _titled(paper_table(_SETS, summary), f"Unknown inputs by set{of}")
    if any(model["groups"].get(SHIFTS) for model in told):
        found["shifts"] = _without_gaps(
            _titled(paper_table(_SHIFTS, together), "Right answers on corrupted inputs", "By severity, 1 to 5.")
        )
    if any(run.costs for run in runs):
        found["costs"] = _without_gaps(_titled(paper_table(_COSTS, together), "Costs"))
    return found


def _which_seeds(runs: Sequence[Run], by_recipe: Mapping[str, Summary]) -> str:
    """Which runs were taken together."""
    names = [f"{name} ({sum(run.recipe.get('name') == name for run in runs)} runs)" for name in by_recipe]
    return f"Over runs that differ in the seed alone: {', '.join(names)}."


def scores_table(series: Sequence[Series]) -> Table:
    """Average AUROC by score; mutual information of one network, always 0, is left out."""
    parts = [part for one in series for part in one.told["figures"] if part.startswith("ood/")]
    names = list(dict.fromkeys(part.removeprefix("ood/") for part in parts))
    ordered = [*(name for name in SCORES if name in names), *(name for name in names if name not in SCORES)]
    rows = []
    for one in series:
        figures, alone = one.told["figures"], one.told["about"]["members"] == 1
        rows.append(
            Row(
                one.label,
                {
                    name: Figure(figures[f"ood/{name}"][AVERAGE]["auroc"])
                    for name in ordered
                    if f"ood/{name}" in figures and not (alone and name == "mutual_information")
                },
            )
        )
    columns = [Column(name, SCORES.get(name, name), better="higher", decimals=1, factor=100) for name in ordered]
    return Table(columns, rows, "AUROC by score, average over sets", row_heading="Model")


def overlap_table(run: Run) -> Table:
    """How much alike the members' choices are, pair by pair."""
    assert run.heads is not None
    names, overlap, divergence = list(run.heads.members), run.heads.overlap, run.heads.divergence
    rows = [
        Row(f"{names[a]} and {names[b]}", {"overlap": Figure(overlap[a][b]), "divergence": Figure(divergence[a][b])})
        for a, b in combinations(range(len(names)), 2)
    ]
    columns = [
        Column("overlap", "removed heads in common, %", decimals=0, factor=100),
        Column("divergence", "divergence over layers", decimals=3),
    ]
    caption = "The fewer removed heads they have in common, the more members differ."
    return Table(columns, rows, "Pairs of members", caption, row_heading="Pair")


def summaries_by_recipe(runs: Sequence[Run]) -> dict[str, Summary]:
    """Runs of one recipe with different seeds, summarised together; what does not belong together is left out."""
    by_recipe: dict[str, list[Run]] = {}
    for run in runs:
        if run.recipe:
            by_recipe.setdefault(str(run.recipe.get("name")), []).append(run)
    found: dict[str, Summary] = {}
    for name, same in by_recipe.items():
        if len(same) > 1:
            try:
                found[name] = summarise([run.results for run in same])
            except SummaryError:  # other settings under one name, or one seed twice
                continue
    return found


def _titled(table: Table, title: str, caption: str = "") -> Table:
    """Under our own title: these are not the paper's figures."""
    return replace(table, title=title, caption=caption, row_heading=table.row_heading.replace("Method", "Model"))


def _without_gaps(table: Table) -> Table:
    """Without the columns that no row has a figure in."""
    columns = [column for column in table.columns if any(row.cells.get(column.key) is not None for row in table.rows)]
    return replace(table, columns=columns)
