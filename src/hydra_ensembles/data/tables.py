"""Tables: rows with named columns, read a few rows at a time. One file a format; none knows what a column is for."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CACHE_BYTES = 256 << 20
"""How much of a table may be held in memory while it is read in a mixed order."""


class Table(ABC):
    """Rows with named columns. Rows are numbered from 0.

    `columns` says by name what the values are: "image" (encoded bytes, pixels), "text" (strings), "number", "other".
    """

    where: str
    num_rows: int
    columns: Mapping[str, str]

    @abstractmethod
    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        """Some rows: for each column, its values in the order asked for."""

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """All values of one small column: labels, class names."""

    def names(self, column: str) -> list[str] | None:
        """What the numbers of a column stand for, where the file says so."""
        return None

    def row_names(self, rows: np.ndarray) -> list[str] | None:
        """What rows are called, where each is a file of its own."""
        return None

    @property
    def blocks(self) -> Sequence[range]:
        """Rows that are read together; one block where any row can be had by itself."""
        return [range(self.num_rows)]

    @property
    def blocks_in_memory(self) -> int:
        """How many blocks may be held at once."""
        return 1


def rows_by_block(blocks: Sequence[range], rows: np.ndarray) -> list[np.ndarray]:
    """For each block, which of the ascending `rows` lie in it, as positions in `rows`.

    >>> rows_by_block([range(0, 10), range(10, 20)], np.array([3, 9, 12]))
    [array([0, 1]), array([2])]
    """
    cuts = np.searchsorted(rows, [block.stop for block in blocks[:-1]])
    return np.split(np.arange(len(rows)), cuts)
