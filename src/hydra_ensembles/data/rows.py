"""Rows: the images or texts of a data set, with their labels, read a few at a time."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.columns import Columns
from hydra_ensembles.data.labels import Labels
from hydra_ensembles.data.tables import Table, rows_by_block

Text: TypeAlias = str | tuple[str, ...]
Picture: TypeAlias = bytes | np.ndarray
"""An encoded image as it stands in its file, or pixels (height, width, 3) of uint8."""

_AT_ONCE = 256


class Row(NamedTuple):
    """One example. An image is encoded bytes, or pixels (height, width, 3); a text is a string, or a pair of them."""

    input: Any
    label: int | None = None


class Rows:
    """Some rows of a table, in ascending order. Nothing is in memory but the numbers of the rows and their labels."""

    def __init__(self, table: Table, columns: Columns, labels: Labels, chosen: np.ndarray, beside: Path | None = None):
        self.table, self.columns, self._labels, self.chosen, self._beside = table, columns, labels, chosen, beside
        self._has_read_files = False
        if not len(chosen):
            raise DataError(f"{table.where} has no rows" if not table.num_rows else f"no row of {table.where} is left")

    @property
    def kind(self) -> str:
        """`"image"` or `"text"`."""
        return self.columns.kind

    @property
    def names_files(self) -> bool:
        """Does the table say only where its images are, at least of a row that was read?"""
        return self._has_read_files or (
            self.kind == "image" and any(self.table.columns[column] == "text" for column in self.columns.inputs)
        )

    @property
    def where(self) -> str:
        """What was opened."""
        return self.table.where

    @property
    def classes(self) -> list[str] | None:
        """Class names by label, of the whole file and not only of these rows; None where nothing names them."""
        return self._labels.classes

    @property
    def labels_were_names(self) -> bool:
        """Are the labels' numbers merely places in `classes`? Then a model's own order of the names comes first."""
        return self._labels.numbered_here

    @cached_property
    def labels(self) -> Tensor | None:
        """The labels of these rows; None where they have none."""
        numbers = self._labels.numbers
        return None if numbers is None else torch.from_numpy(numbers[self.chosen])

    @cached_property
    def digest(self) -> str:
        """A hash of inputs (images as encoded) and labels in their order, whatever the format they are stored in."""
        hasher = hashlib.sha256(self.kind.encode())
        for row in self:
            for part in bytes_of(row.input):
                hasher.update(len(part).to_bytes(8, "little"))
                hasher.update(part)
            hasher.update((-1 if row.label is None else row.label).to_bytes(8, "little", signed=True))
        return hasher.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.read(range(start, min(start + _AT_ONCE, len(self))))

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> "Rows": ...

    def __getitem__(self, place: int | slice) -> "Row | Rows":
        if isinstance(place, slice):
            return self._of(np.sort(self.chosen[place]))
        if not -len(self) <= place < len(self):
            raise IndexError(f"row {place} of {len(self)}")
        return self.read([place % len(self)])[0]

    def read(self, places: Sequence[int] | np.ndarray | Tensor) -> list[Row]:
        """The rows at these places (counted from 0 within these rows), in the order asked for."""
        places = np.asarray(places, dtype=np.int64)
        values = self.inputs(places)
        if self.labels is None:
            return [Row(value) for value in values]
        return [
            Row(value, int(label)) for value, label in zip(values, self.labels[torch.from_numpy(places)], strict=True)
        ]

    def inputs(self, places: np.ndarray) -> list[Any]:
        """The inputs at these places."""
        rows = self.chosen[places]
        columns = self.table.read(rows, self.columns.inputs)
        if self.kind == "image":
            return [self._picture(value, int(row)) for value, row in zip(columns[0], rows, strict=True)]
        for name, values in zip(self.columns.inputs, columns, strict=True):
            for row, value in zip(rows, values, strict=True):
                if not isinstance(value, str):
                    raise DataError(f"row {row} of {self.where}: '{name}' is {type(value).__name__}, expected a text")
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def names(self) -> list[str] | None:
        """What the rows are called, where each is a file of its own."""
        return self.table.row_names(self.chosen)

    def called(self, place: int) -> str:
        """A row as messages speak of it: its number in the file, and its own file where it has one."""
        row = self.chosen[place]
        names = self.table.row_names(self.chosen[place : place + 1])
        return f"row {row} of {self.where}" + (f" ({names[0]})" if names else "")

    def at(self, places: np.ndarray) -> "Rows":
        """Some of the rows, by their places within these; they stay in ascending order."""
        return self._of(np.sort(self.chosen[places]))

    def sample(self, number: int, seed: int = 0) -> "Rows":
        """Some rows at random, the same for the same seed; they stay in ascending order."""
        if not 0 < number <= len(self):
            raise DataError(f"a sample of {number} out of {len(self)} rows of {self.where} cannot be taken")
        places = np.random.default_rng(seed).choice(len(self), number, replace=False)
        return self._of(np.sort(self.chosen[places]))

    def split(self, number: int, seed: int = 0) -> "tuple[Rows, Rows]":
        """A sample, and all rows that are not in it."""
        chosen = self.sample(number, seed)
        return chosen, self._of(np.setdiff1d(self.chosen, chosen.chosen))

    def groups(self) -> list[list[np.ndarray]]:
        """The places of these rows by block, with as many blocks a group as may be held in memory."""
        blocks = [places for places in rows_by_block(self.table.blocks, self.chosen) if len(places)]
        held = self.table.blocks_in_memory
        return [blocks[start : start + held] for start in range(0, len(blocks), held)]

    def _of(self, chosen: np.ndarray) -> "Rows":
        return Rows(self.table, self.columns, self._labels, chosen, self._beside)

    def _picture(self, value: Any, row: int) -> Picture:
        path = None
        if isinstance(value, dict):
            value, path = value.get("bytes"), value.get("path")
            self._has_read_files |= value is None
        if isinstance(value, str):
            value, path = None, value
        if value is None and path:
            try:
                return (self._beside / path if self._beside else Path(path)).read_bytes()
            except OSError as error:
                raise DataError(f"row {row} of {self.where}: image '{path}' cannot be read: {error.strerror}") from None
        if not isinstance(value, bytes | np.ndarray):
            raise DataError(
                f"row {row} of {self.where}: '{self.columns.inputs[0]}' is {type(value).__name__}, expected an image "
                "(bytes, a path, or pixels)"
            )
        return value


def bytes_of(value: Any) -> list[bytes]:
    """The bytes of an input, one part for each of its texts."""
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, np.ndarray):
        return [str((value.shape, str(value.dtype))).encode(), np.ascontiguousarray(value).tobytes()]
    return [part.encode() for part in ([value] if isinstance(value, str) else value)]
