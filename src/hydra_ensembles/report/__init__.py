"""The report: one page, figures and tables of any number of runs."""

from hydra_ensembles.report.card import model_card
from hydra_ensembles.report.cells import Cell, Column, Figure, Row
from hydra_ensembles.report.layouts import LAYOUTS, paper_table
from hydra_ensembles.report.runs import ReportError
from hydra_ensembles.report.summaries import (
    Summary,
    SummaryError,
    centroid_summary,
    diversity_summary,
    joined,
    summarise,
)
from hydra_ensembles.report.table import Table
from hydra_ensembles.report.writing import Report, write_report

__all__ = [
    "LAYOUTS",
    "Cell",
    "Column",
    "Figure",
    "Report",
    "ReportError",
    "Row",
    "Summary",
    "SummaryError",
    "Table",
    "centroid_summary",
    "diversity_summary",
    "joined",
    "model_card",
    "paper_table",
    "summarise",
    "write_report",
]
