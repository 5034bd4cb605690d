"""The tables of a report: the paper's layouts, filled from the runs at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra_ensembles.evaluation.protocol import GROUPS, SHIFTS
from hydra_ensembles.report.layouts import paper_table
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.summaries import Summary, SummaryError, summarise
from hydra_ensembles.report.table import Table

_MAIN, _GROUPS, _SETS, _COSTS, _SHIFTS = 2, 17, 25, 7, 13
"""Numbers of the paper's tables whose layouts are used."""


def tables_of(runs: Sequence[Run]) -> dict[str, Table]:
    """Every table that the runs have the numbers for, by the name of its file; the main one first."""
    summaries: dict[str, Summary] = {run.name: summarise([run.results]) for run in runs}
    together: Mapping[str, Summary] | Summary = summaries if len(runs) > 1 else summaries[runs[0].name]
    told = [model for run in runs for model in run.models.values()]
    found = {"main": _titled(paper_table(_MAIN, together), "Answers and unknown inputs")}
    over_seeds = _over_seeds(runs)
    if over_seeds:
        several: Any = over_seeds if len(over_seeds) > 1 else next(iter(over_seeds.values()))
        found["seeds"] = _titled(
            paper_table(_MAIN, several), "Mean and standard deviation over seeds", listed_seeds(runs, over_seeds)
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


def listed_seeds(runs: Sequence[Run], over_seeds: Mapping[str, Summary]) -> str:
    """Which runs were taken together."""
    names = [f"{name} ({sum(run.recipe.get('name') == name for run in runs)} runs)" for name in over_seeds]
    return f"Over runs that differ in the seed alone: {', '.join(names)}."


def _over_seeds(runs: Sequence[Run]) -> dict[str, Summary]:
    """Runs of one recipe with different seeds, summarised together; what does not belong together is left out."""
    by_recipe: dict[str, list[Run]] = {}
    for run in runs:
        if run.recipe:
            by_recipe.setdefault(str(run.recipe.get("name")), []).append(run)
    found = {}
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
