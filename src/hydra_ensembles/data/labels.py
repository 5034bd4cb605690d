"""Labels: from whatever a column holds to numbers from 0, and names for them where there are any."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.tables import Table


class Labels:
    """The labels of a whole table, read once when they are first asked for; 8 bytes a row."""

    def __init__(self, table: Table, column: str | None, names: str | None, classes: Sequence[str] | None):
        self.table, self.column, self.names_column = table, column, names
        self._given = None if classes is None else [str(name) for name in classes]

    @property
    def numbers(self) -> np.ndarray | None:
        """A number a row; None for a set without labels."""
        return self._read[0]

    @property
    def classes(self) -> list[str] | None:
        """What the numbers stand for, where that is known; a number that never occurs may be its own name."""
        return self._read[1]

    @property
    def numbered_here(self) -> bool:
        """Were the labels names, so that their numbers are only their places in `classes`?"""
        return self._read[2]

    @cached_property
    def _read(self) -> tuple[np.ndarray | None, list[str] | None, bool]:
        if self.column is None:
            return None, self._given, False
        values = self.table.column(self.column)
        if all(value is None for value in values):  # a column for labels that nobody has given yet
            return None, self._given, False
        for row, value in enumerate(values):
            if value is None or value == "" or value != value:  # NaN is how tables write that nothing is there
                raise DataError(f"row {row} of {self.table.where} has no '{self.column}'; give it one, or label=False")
            if isinstance(value, float) and not value.is_integer():
                raise DataError(f"row {row} of {self.table.where} has label {value}; expected whole numbers, or names")
        numbers, folders = _as_numbers(values), self.table.names(self.column)
        if numbers is not None and folders is not None and isinstance(values[0], str):
            return self._of_numbered_folders(values, folders)
        if numbers is None:
            if folders is None and self._given is None:
                self._check_not_numbers(values)
            return *self._of_names([str(value) for value in values]), True
        if len(numbers) and (numbers == -1).all():  # how data sets publish a split whose labels are secret
            return None, self._given, False
        self._check_from_0(numbers)
        return numbers, self._given or self.table.names(self.column) or self._names_beside(numbers), False

    def _of_numbered_folders(self, values: list[str], folders: list[str]) -> tuple[np.ndarray, list[str], bool]:
        """Folders called 0, 1, ..., 11 are the classes of these numbers; other numbers are names in their order."""
        numbers = _as_numbers(folders)
        if numbers is None or self._given is not None:
            return *self._of_names(values), True
        called = dict(zip(numbers.tolist(), folders, strict=True))
        if min(called) == 0 and len(called) == len(folders):
            number = {name: place for place, name in called.items()}
            labels = np.array([number[value] for value in values], dtype=np.int64)
            return labels, [called.get(place, str(place)) for place in range(max(called) + 1)], False
        return *self._of_names(values, sorted(folders, key=float)), True

    def _of_names(self, values: list[str], ordered: list[str] | None = None) -> tuple[np.ndarray, list[str]]:
        found, numbers = np.unique(np.array(values, dtype=object), return_inverse=True)
        names = [str(name) for name in found]
        classes = self._given or ordered or self.table.names(self.column or "") or names
        strange = [name for name in names if name not in classes]
        if strange:
            row = values.index(strange[0])
            raise DataError(
                f"row {row} of {self.table.where} has label '{strange[0]}', which is none of the "
                f"{len(classes)} classes ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''})"
            )
        places = np.array([classes.index(name) for name in names], dtype=np.int64)
        return places[numbers], classes

    def _check_not_numbers(self, values: list[Any]) -> None:
        """Where every label can be read as a number, fractions are no names."""
        try:
            numbers = [float(value) for value in values]
        except (TypeError, ValueError):
            return
        row = next((row for row, number in enumerate(numbers) if not number.is_integer()), 0)  # or none fits 64 bits
        raise DataError(f"row {row} of {self.table.where} has label {values[row]}; expected whole numbers, or names")

    def _check_from_0(self, numbers: np.ndarray) -> None:
        known = self._given or self.table.names(self.column or "")
        wrong = numbers < 0 if known is None else (numbers < 0) | (numbers >= len(known))
        if wrong.any():
            row = int(wrong.argmax())
            expected = "labels count from 0" if known is None else f"there are {len(known)} classes, counted from 0"
            raise DataError(f"row {row} of {self.table.where} has label {numbers[row]}; {expected}")

    def _names_beside(self, numbers: np.ndarray) -> list[str] | None:
        if self.names_column is None or not len(numbers):
            return None
        names = self.table.column(self.names_column)
        labels, first = np.unique(numbers, return_index=True)
        named = {int(label): str(names[row]) for label, row in zip(labels, first, strict=True)}
        return [named.get(label, str(label)) for label in range(int(labels[-1]) + 1)]


def _as_numbers(values: list[Any]) -> np.ndarray | None:
    """Whole numbers, also where they are written as text; None where some are not."""
    try:
        exact = np.array([float(value) for value in values])
        numbers = exact.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if (numbers == exact).all() else None
