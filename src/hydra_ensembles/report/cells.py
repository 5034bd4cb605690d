"""What a table is made of: columns, rows and figures, how a figure is shown, and which ones are the best."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

MISSING = "–"


@dataclass(frozen=True)
class Figure:
    """A number, over several seeds where `seeds` is more than 1."""

    mean: float
    std: float | None = None
    seeds: int = 1
    interval: tuple[float, float] | None = None
    """Shown where there is no standard deviation."""


Cell: TypeAlias = Figure | str | None
"""None is missing."""


@dataclass(frozen=True)
class Column:
    """One column, and how figures in it are shown."""

    key: str
    """What rows call it."""
    heading: str
    group: str = ""
    """A heading over this and neighbouring columns."""
    better: Literal["higher", "lower", ""] = ""
    """Without a direction no figure is the best."""
    decimals: int = 2
    factor: float = 1.0
    """What figures are multiplied by: 100 shows fractions as percentages."""
    unit: str = ""
    """Written after each figure."""
    signed: bool = False
    """Write the sign of positive numbers too, as of differences."""
    is_text: bool = False
    """Words, which stand left; numbers stand right."""
    marked: bool = True
    """Whether its figures can be the best of a row, where rows are compared across."""

    @property
    def title(self) -> str:
        """The heading with its arrow.

        >>> Column("ece", "ECE", better="lower").title
        'ECE ↓'
        """
        return self.heading + {"higher": " ↑", "lower": " ↓", "": ""}[self.better]


@dataclass(frozen=True)
class Row:
    """One row: cells by column key; keys that are absent are missing cells."""

    name: str
    cells: Mapping[str, Cell]
    marked: bool = True
    """Whether its figures can be the best; not of oracles and controls."""
    block: str = ""
    """Figures are compared within a block of neighbouring rows, whose name stands left of them once."""
    like: Column | None = None
    """Shows its figures in place of the columns, where rows are metrics."""


class Shown(NamedTuple):
    """A cell as it is read: the number that is compared, what follows it, and whether it is the best."""

    value: str
    rest: str = ""
    mark: Literal["best", "second", ""] = ""
    is_missing: bool = False


def shown(cell: Cell, column: Column) -> Shown:
    """A cell in the decimals of a column, unmarked.

    >>> "".join(shown(Figure(0.9213, 0.004, seeds=3), Column("accuracy", "Acc", decimals=1, factor=100))[:2])
    '92.1 ± 0.4'
    """
    if cell is None or (isinstance(cell, Figure) and math.isnan(cell.mean)):
        return Shown(MISSING, is_missing=True)
    if isinstance(cell, str):
        return Shown(cell)
    rest = column.unit
    if cell.seeds > 1 and cell.std is not None:
        rest = f" ± {_number(cell.std, replace(column, signed=False))}{column.unit}"
    elif cell.interval is not None:
        low, high = (_number(end, column) for end in cell.interval)
        rest = f"{column.unit} [{low}, {high}]"
    return Shown(_number(cell.mean, column), rest)


def shown_rows(columns: Sequence[Column], rows: Sequence[Row], across: bool) -> list[list[Shown]]:
    """Every cell, the best and the second best marked: of a column's block, or of each row.

    Decided on the numbers as shown, so that what looks the same is marked the same; one number alone is not the best.
    """
    cells = [[shown(row.cells.get(column.key), row.like or column) for column in columns] for row in rows]
    for places in _compared(columns, rows, across):
        row, place = places[0]
        better = (rows[row].like or columns[place]).better
        values = {(row, place): float(cells[row][place].value.replace(",", "")) for row, place in places}
        best, *others = sorted(set(values.values()), reverse=better == "higher")
        for (row, place), value in values.items():
            if value == best:
                cells[row][place] = cells[row][place]._replace(mark="best")
            elif value == others[0]:
                cells[row][place] = cells[row][place]._replace(mark="second")
    return cells


def seeds_notes(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """A sign for each row that has fewer seeds than others (else ""), and what the signs mean."""
    seeds = [max((cell.seeds for cell in row.cells.values() if isinstance(cell, Figure)), default=0) for row in rows]
    most = max(seeds, default=0)
    fewer = list(dict.fromkeys(number for number in seeds if number not in (0, most)))
    signs = {number: "†‡§¶"[place % 4] * (place // 4 + 1) for place, number in enumerate(fewer)}
    has_spread = any(
        isinstance(c, Figure) and c.seeds > 1 and c.std is not None for r in rows for c in r.cells.values()
    )
    notes = [f"{'± standard deviation' if has_spread else 'means'} over {most} seeds"] if most > 1 else []
    notes += [f"{sign} {'one seed' if number == 1 else f'{number} seeds'}" for number, sign in signs.items()]
    return [signs.get(number, "") for number in seeds], notes


def _compared(columns: Sequence[Column], rows: Sequence[Row], across: bool) -> Iterator[list[tuple[int, int]]]:
    """Places (row, column) whose figures are compared with each other, two or more."""
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    block = 0
    for row, found in enumerate(rows):
        block += bool(row and found.block != rows[row - 1].block)
        for place, column in enumerate(columns):
            cell = found.cells.get(column.key)
            if not isinstance(cell, Figure) or math.isnan(cell.mean) or not (found.like or column).better:
                continue
            if found.marked and column.marked:
                groups.setdefault((row, 0) if across else (block, place), []).append((row, place))
    yield from (places for places in groups.values() if len(places) > 1)


def _number(value: float, column: Column) -> str:
    text = f"{value * column.factor:z,.{column.decimals}f}"
    return f"+{text}" if column.signed and float(text.replace(",", "")) > 0 else text
