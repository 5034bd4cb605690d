"""Lines of jsonl, any of which may be broken: each is looked at when it is read, and none is to blame for another."""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hydra_ensembles.data import DataError, Rows
from hydra_ensembles.data.columns import Columns, choose_columns
from hydra_ensembles.data.labels import Labels
from hydra_ensembles.data.lines import kind_of, object_in
from hydra_ensembles.data.tables import Table

_LOOKED_AT = 100


class JsonlTable(Table):
    """A jsonl file. Its columns are those that its first sound lines have together; none where no line is sound."""

    def __init__(self, path: Path):
        self.where, self._path, self._starts = str(path), path, array("Q")
        columns: dict[str, str] = {}
        end = sound = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip(b"\r\n"):
                    self._starts.append(end)
                    if sound < _LOOKED_AT:
                        with suppress(DataError):
                            fields = object_in(line)
                            sound += 1
                            columns |= {name: kind_of(fields[name]) for name in fields if columns.get(name) != "text"}
                end += len(line)
        self.columns, self.num_rows = columns, len(self._starts)
        self._starts.append(end)

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        with self._path.open("rb") as file:
            found = [self._values(file, int(row), columns) for row in rows]
        return [list(values) for values in zip(*found, strict=True)]

    def column(self, name: str) -> list[Any]:
        return self.read(np.arange(self.num_rows), [name])[0]

    def _values(self, file: BinaryIO, row: int, columns: Sequence[str]) -> list[Any]:
        file.seek(self._starts[row])
        line = file.read(self._starts[row + 1] - self._starts[row])
        try:
            fields = object_in(line)
        except DataError as error:
            raise DataError(f"row {row} of {self.where} is {error}") from None
        for column in columns:
            if column not in fields:
                raise DataError(f"row {row} of {self.where} has no '{column}'; it has {', '.join(fields)}")
            try:
                str(fields[column]).encode()
            except UnicodeEncodeError:
                raise DataError(f"row {row} of {self.where}: '{column}' holds half of a surrogate pair") from None
        return [fields[column] for column in columns]


def open_lines(path: Path, kind: str, id_column: str | None = None, **named: Any) -> Rows:
    """The rows of a jsonl file.

    Args:
        path: of the file.
        kind: what the rows are, `"image"` or `"text"`, where no line is sound enough to say it.
        id_column: not taken for an input, whatever it looks like.
        named: the columns `image` or `text`, as `open_data` takes them.
    """
    table = JsonlTable(path)
    if table.columns:
        known = {name: holds for name, holds in table.columns.items() if name != id_column}
        columns = choose_columns(table.where, known, label=False, **named)
    else:
        columns, table.columns = Columns(kind, (kind,), None, None), {kind: kind}
    return Rows(table, columns, Labels(table, None, None, None), np.arange(table.num_rows), path.parent)
