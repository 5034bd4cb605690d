"""Lines of text: tsv, csv, jsonl, txt. One pass notes where each row begins, 8 bytes a row; then any row can be had.

csv as RFC 4180 has it: a field in double quotes may hold commas, quotes written twice, and line breaks.
tsv as IANA has it: no quoting at all, so that a text may begin with a quotation mark (GLUE's do).
txt: a line is a text, an empty one too; there is one column, `text`, and no header.
"""

import json
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.tables import Table

_SEPARATORS = {".tsv": "\t", ".csv": ",", ".txt": ""}


class LinesTable(Table):
    """A text file; its rows are lines, or several lines where a quoted field goes on."""

    def __init__(self, path: Path, header: bool = True):
        self.where, self._path = str(path), path
        self._separator = _SEPARATORS.get(path.suffix.lower())  # None: jsonl; "": txt
        self._starts = array("Q")
        end = 0
        with path.open("rb") as file:
            for start, record in self._records(file):
                if record.strip(b"\r\n") or self._separator == "":
                    self._starts.append(start)
                end = start + len(record)
        if not self._starts:
            raise DataError(f"{path} is empty")
        first = self._fields(0, self._record_at(0))
        if self._separator is None:
            self._names = list(first)
            values = list(first.values()) if isinstance(first, dict) else []
        elif not self._separator:
            self._names, values = ["text"], list(first)
        elif header:
            self._names, values = [str(name) for name in first], [""] * len(first)
            self._starts = self._starts[1:]
            self._check_separator()
        else:
            self._names, values = [str(number) for number in range(len(first))], list(first)
        twice = next((name for name in self._names if self._names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{self.where} has two columns called '{twice}'; give each its own name")
        self.columns = {name: kind_of(value) for name, value in zip(self._names, values, strict=True)}
        self._starts.append(end)
        self.num_rows = len(self._starts) - 1

    def _check_separator(self) -> None:
        """A header of one name that holds another separator is one of a file that is not what its ending says."""
        for found, said in ((";", "semicolons"), ("\t", "tabs"), (",", "commas"), ("|", "bars")):
            if len(self._names) == 1 and found != self._separator and found in self._names[0]:
                wanted = "commas" if self._separator == "," else "tabs"
                raise DataError(
                    f"{self.where} has one column, '{self._names[0]}': its fields seem to be separated by {said}; "
                    f"a {self._path.suffix} file has {wanted} between them (header=False where it has no header)"
                )

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        with self._path.open("rb") as file:
            found = [self._row(file, int(row), columns) for row in rows]
        return [list(values) for values in zip(*found, strict=True)]

    def column(self, name: str) -> list[Any]:
        with self._path.open("rb") as file:
            return [self._row(file, row, [name])[0] for row in range(self.num_rows)]

    def _row(self, file: BinaryIO, row: int, columns: Sequence[str]) -> list[Any]:
        start, stop = self._starts[row], self._starts[row + 1]
        if file.tell() != start:
            file.seek(start)
        fields = self._fields(row, file.read(stop - start))
        named = fields if isinstance(fields, dict) else dict(zip(self._names, fields, strict=False))
        if not isinstance(fields, dict) and len(fields) != len(self._names):
            raise DataError(
                f"row {row} of {self.where} has {len(fields)} fields, expected {len(self._names)} "
                f"({', '.join(self._names)})"
            )
        for column in columns:
            if column not in named:
                raise DataError(f"row {row} of {self.where} has no '{column}'; it has {', '.join(named)}")
        return [named[column] for column in columns]

    def _record_at(self, row: int) -> bytes:
        stop = self._starts[row + 1] if row + 1 < len(self._starts) else None
        with self._path.open("rb") as file:
            file.seek(self._starts[row])
            return file.read() if stop is None else file.read(stop - self._starts[row])

    def _records(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        """Where each record starts, and its bytes."""
        start, record, is_open = 0, b"", False
        for line in file:
            record += line
            if self._separator == "," and b'"' in line:  # without one, a field neither opens nor closes
                plain = record.removeprefix(BOM_UTF8) if start == 0 else record
                is_open = csv_fields(plain.decode("latin-1")) is None
            if is_open:
                continue
            yield start, record
            start, record = start + len(record), b""
        if record:
            raise DataError(f'{self.where}: the quotation mark (") opened at byte {start} is never closed')

    def _fields(self, row: int, record: bytes) -> Any:
        try:
            if self._separator is None:
                return object_in(record)
            text = text_in(record)
        except DataError as error:
            raise DataError(f"row {row} of {self.where} is {error}") from None
        if self._separator in ("", "\t"):
            return text.split("\t") if self._separator else [text]
        fields = csv_fields(text)
        assert fields is not None, "records are cut where no field goes on"
        return fields


def csv_fields(record: str) -> list[str] | None:
    """The fields of a record of csv; None where a quoted field goes on behind it.

    As the standard library's reader has it: a quotation mark opens a field only where the field begins. That reader
    has a limit on the length of a field, for the whole process.

    >>> csv_fields('5" wide,"a ""b"", c"'), csv_fields('a,"b')
    (['5" wide', 'a "b", c'], None)
    """
    fields, start = [], 0
    while True:
        quoted = ""
        if record.startswith('"', start):
            end = start + 1
            while True:
                mark = record.find('"', end)
                if mark < 0:
                    return None
                quoted += record[end:mark]
                end = mark + 1
                if not record.startswith('"', end):
                    break
                quoted, end = quoted + '"', end + 1
            start = end
        comma = record.find(",", start)
        fields.append(quoted + record[start : comma if comma >= 0 else None])
        if comma < 0:
            return fields
        start = comma + 1


def text_in(line: bytes) -> str:
    """A line without its end."""
    try:
        return line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8: {error.reason}") from None


def object_in(line: bytes) -> dict[str, Any]:
    """The object in a line of jsonl."""
    text = text_in(line)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"a {type(found).__name__}, expected an object")
    return found


def kind_of(value: Any) -> str:
    """What a column holds, by one of its values."""
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, int | float) else "other"
