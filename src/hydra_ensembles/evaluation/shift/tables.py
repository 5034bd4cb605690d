"""Shifted tables: a table with other inputs; its labels, class names and numbers of rows are the original's."""

from collections.abc import Sequence
from typing import Any

from hydra_ensembles.data.labels import Labels
from hydra_ensembles.data.rows import Rows
from hydra_ensembles.data.tables import Table


class ShiftedTable(Table):
    """Some rows' table under a shift. Whoever inherits says how inputs are read."""

    def __init__(self, rows: Rows, shift: str):
        self.original = rows.table
        self.where = f"{rows.where} under {shift}"
        self.num_rows, self.columns = rows.table.num_rows, rows.table.columns

    def column(self, name: str) -> list[Any]:
        return self.original.column(name)

    def names(self, column: str) -> list[str] | None:
        return self.original.names(column)

    @property
    def blocks(self) -> Sequence[range]:
        return self.original.blocks

    @property
    def blocks_in_memory(self) -> int:
        return self.original.blocks_in_memory


def rows_under(table: ShiftedTable, rows: Rows) -> Rows:
    """The same rows, out of a shifted table; a model's own names of classes decide as they did before."""
    labels = Labels(table, rows.columns.label, rows.columns.names, rows.classes)
    return Rows(table, rows.columns, labels, rows.chosen)
