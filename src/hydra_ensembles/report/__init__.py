"""The report: tables of results."""

from hydra_ensembles.report.cells import Cell, Column, Figure, Row
from hydra_ensembles.report.table import Table

__all__ = ["Cell", "Column", "Figure", "Row", "Table"]
