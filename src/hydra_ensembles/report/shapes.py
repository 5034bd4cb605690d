"""The shapes of tables: what is a row, what is a column, and where their figures are found in a summary."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from hydra_ensembles.evaluation.protocol import GROUPS
from hydra_ensembles.report.cells import Cell, Column, Figure, Row
from hydra_ensembles.report.summaries import Summary, SummaryError, as_cell, joined, sets_with
from hydra_ensembles.report.table import Table


@dataclass(frozen=True)
class Layout:
    """How one table is laid out; `shape` makes it."""

    title: str
    of: str
    """What the paper has in it."""
    columns: tuple[Column, ...]
    shape: Callable[["Layout", "Sources"], Table]
    group: str = ""
    """Of tables with columns for each unknown set: `near` or `far`."""
    sets: tuple[str, ...] = ()
    """The paper's, for summaries that do not say which sets are near and which far."""


@dataclass(frozen=True)
class Sources:
    """Where figures come from: summaries by data set ("" of one alone), and how they are shown."""

    summaries: Mapping[str, Summary]
    unmarked: Collection[str] = ()
    intervals: bool = False

    @property
    def one(self) -> Summary:
        """The only summary."""
        if len(self.summaries) != 1:
            there = ", ".join(self.summaries)
            raise SummaryError(f"this table is of one data set, found {there}; give the summary of one")
        (summary,) = self.summaries.values()
        return summary

    def cell(self, summary: Summary, method: str, key: str) -> Cell:
        """Missing where the method or the metric is."""
        return as_cell(summary["methods"].get(method, {}).get(key), self.intervals)

    def row(self, summary: Summary, method: str, keys: Mapping[str, str], block: str = "") -> Row:
        """A method's row; `keys` says under which metric to look for a column."""
        cells = {column: self.cell(summary, method, key) for column, key in keys.items()}
        return Row(method, cells, method not in self.unmarked, block)


def methods_down(layout: Layout, sources: Sources) -> Table:
    """A row a method; several data sets stand below each other."""
    keys = {column.key: column.key for column in layout.columns}
    rows = [
        sources.row(summary, method, keys, data)
        for data, summary in sources.summaries.items()
        for method in summary["methods"]
    ]
    return Table(layout.columns, rows, block_heading="Data")


def sets_beside(layout: Layout, sources: Sources) -> Table:
    """A row a method, a group of columns an unknown set, their mean last."""
    summary = sources.one
    places = {name: f"/{name}" for name in _sets(layout, summary)[layout.group]}
    places[f"{layout.group.capitalize()}-OOD average"] = f"_{layout.group}"
    columns = [
        replace(column, key=f"{column.key}{place}", group=name)
        for name, place in places.items()
        for column in layout.columns
    ]
    keys = {column.key: column.key for column in columns}
    return Table(columns, [sources.row(summary, method, keys) for method in summary["methods"]])


def metrics_down(layout: Layout, sources: Sources) -> Table:
    """A block of rows a metric, in it a row a method; a column a data set, their mean last."""
    summary = sources.one if len(sources.summaries) == 1 else joined(sources.summaries)
    metrics = [column for column in layout.columns if not column.is_text]
    words = [column for column in layout.columns if column.is_text]
    data = list(dict.fromkeys(name for metric in metrics for name in sets_with(summary, metric.key)))
    rows = []
    for metric in metrics:
        keys = {name: f"{metric.key}/{name}" for name in data} | {"": metric.key} | {c.key: c.key for c in words}
        of_methods = [sources.row(summary, method, keys, metric.title) for method in summary["methods"]]
        rows += [replace(row, like=metric) for row in of_methods]
    return Table([*words, *(Column(name, name) for name in data), Column("", "Average")], rows, block_heading="Metric")


def methods_beside(layout: Layout, sources: Sources) -> Table:
    """A block of rows a set, in it a row a metric; a column a method, the best sought in each row."""
    summary = sources.one
    places: dict[str, str] = {}
    for group, names in _sets(layout, summary).items():
        places |= {name: f"/{name}" for name in names}
        places[f"{group.capitalize()}-OOD average"] = f"_{group}"
    places["OOD average"] = ""
    methods = list(summary["methods"])
    rows = [
        Row(
            metric.title,
            {method: sources.cell(summary, method, f"{metric.key}{place}") for method in methods},
            block=name,
            like=metric,
        )
        for name, place in places.items()
        for metric in layout.columns
    ]
    columns = [Column(method, method, marked=method not in sources.unmarked) for method in methods]
    return Table(columns, rows, row_heading="Metric", block_heading="Data", across=True)


def distances(layout: Layout, sources: Sources) -> Table:
    """A row an unknown set, a group of columns a model; of two models also the first minus the second."""
    summary = sources.one
    methods = list(summary["methods"])
    # A direction would compare unknown sets with each other.
    columns = [
        replace(column, key=f"{method} {column.key}", group=method, heading=column.title, better="")
        for method in methods
        for column in layout.columns
    ]
    if len(methods) == 2:
        group = f"{methods[0]} minus {methods[1]}"
        columns += [
            replace(column, key=f"minus {column.key}", group=group, better="", signed=True) for column in layout.columns
        ]
    rows = []
    for name, place in [*((name, f"/{name}") for name in sets_with(summary, layout.columns[0].key)), ("Average", "")]:
        cells: dict[str, Cell] = {}
        for metric in layout.columns:
            found = [sources.cell(summary, method, f"{metric.key}{place}") for method in methods]
            cells |= {f"{method} {metric.key}": cell for method, cell in zip(methods, found, strict=True)}
            if len(found) == 2 and isinstance(found[0], Figure) and isinstance(found[1], Figure):
                cells[f"minus {metric.key}"] = Figure(found[0].mean - found[1].mean)
        rows.append(Row(name, cells))
    return Table(columns, rows, row_heading="Data")


def _sets(layout: Layout, summary: Summary) -> dict[str, list[str]]:
    """The near and the far sets: as the summary says, else the paper's of a group, else all it has under `far`."""
    if "groups" in summary:
        return {group: list(summary["groups"].get(group, ())) for group in GROUPS}
    if layout.group:
        return {layout.group: list(layout.sets)}
    return {"near": list(layout.sets), "far": [n for n in sets_with(summary, "auroc") if n not in layout.sets]}
