"""The report: tables of results."""

from hydra_ensembles.report.cells import Cell, Column, Figure, Row
from hydra_ensembles.report.layouts import LAYOUTS, paper_table
from hydra_ensembles.report.summaries import (
    Summary,
    SummaryError,
    centroid_summary,
    diversity_summary,
    joined,
    summarise,
)
from hydra_ensembles.report.table import Table

__all__ = [
    "LAYOUTS",
    "Cell",
    "Column",
    "Figure",
    "Row",
    "Summary",
    "SummaryError",
    "Table",
    "centroid_summary",
    "diversity_summary",
    "joined",
    "paper_table",
    "summarise",
]
