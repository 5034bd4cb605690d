"""Corrupted texts: slips of a hand on a keyboard, and words out of place.

A text's places (characters that are no space, words, neighbours to swap) are brought into a random order once; a
severity touches the first of them, so what is wrong at one severity is wrong at the next. Texts are made as they are
read, not kept in files: a text of 200 words takes about a millisecond, and batches keep their token ids anyway.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hydra_ensembles.data import Rows
from hydra_ensembles.evaluation.shift.names import ShiftError, check_shift, seed_of
from hydra_ensembles.evaluation.shift.tables import ShiftedTable, rows_under

PERCENT_TOUCHED = {"character": (2, 5, 10, 20, 30), "word": (5, 10, 20, 30, 50)}
"""How many of a text's characters or words a severity touches; rounded up, so one at least where there is any."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_KEYBOARD = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")


def corrupted_texts(rows: Rows, corruption: str, severity: int, seed: int = 0) -> Rows:
    """The same rows with corrupted texts; of a pair, both.

    What becomes of a text depends on (seed, number of its row in what was opened, corruption, severity) alone.
    """
    check_shift(corruption, severity, "text")
    if rows.kind != "text":
        raise ShiftError(f"{corruption} is for texts, but {rows.where} holds {rows.kind}s")
    return rows_under(TextsTable(rows, corruption, severity, seed), rows)


class TextsTable(ShiftedTable):
    """A table whose texts are corrupted as they are read."""

    def __init__(self, rows: Rows, corruption: str, severity: int, seed: int):
        super().__init__(rows, f"{corruption}/{severity}")
        self._corruption, self._severity, self._seed = corruption, severity, seed

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        return [
            [self._changed(value, int(row), part) for row, value in zip(rows, values, strict=True)]
            for part, values in enumerate(self.original.read(rows, columns))
        ]

    def _changed(self, value: Any, row: int, part: int) -> Any:
        if not isinstance(value, str):  # `Rows` says which row is no text
            return value
        return corrupted_text(value, self._corruption, self._severity, seed_of(self._seed, row, self._corruption, part))


def corrupted_text(text: str, corruption: str, severity: int, seed: int) -> str:
    """One text corrupted. What has a word keeps one; what has no place to touch stays as it is.

    Args:
        text: in any script; characters are code points.
        corruption: one of `TEXT_CORRUPTIONS`. Inserted characters are letters from a to z; replaced are letters and
            digits of an English keyboard, by a neighbour there; swapped are neighbours that differ, each once.
        severity: 1 to 5, see `PERCENT_TOUCHED`.
        seed: of the places and of what is put there.

    >>> [corrupted_text("one two three", "word_swap", severity, seed=0) for severity in (1, 5)]
    ['two one three', 'two one three']
    """
    check_shift(corruption, severity, "text")
    unit, _, action = corruption.partition("_")
    percent = PERCENT_TOUCHED[unit][severity - 1]
    if unit == "character":
        return "".join(_touched(list(text), action, percent, seed))
    parts = re.split(r"(\S+)", text)
    spaces, words = parts[::2], _touched(parts[1::2], action, percent, seed)
    if not words:
        return text
    # A word that is gone takes the space before it along; the first that stays has what the text began with.
    kept = [place for place, word in enumerate(words) if word]
    body = "".join(spaces[place] + words[place] for place in kept[1:])
    return spaces[0] + words[kept[0]] + body + spaces[-1]


def _touched(units: list[str], action: str, percent: int, seed: int) -> list[str]:
    """Characters or words, some of them touched; one that is deleted is empty."""
    random = np.random.default_rng(seed)
    order: list[int] = random.permutation(_places(units, action)).tolist()
    # Drawn for every unit, so that what is put in a place does not depend on how many are touched.
    draws: list[int] = random.integers(0, 1 << 31, len(units)).tolist()
    count = -(-percent * len(order) // 100)
    if action == "swap":  # it touches two
        order, count = _apart(order), -(-percent * sum(not unit.isspace() for unit in units) // 200)
    elif action == "delete":
        order = order[:-1]
    new = list(units)
    for place in order[:count]:
        unit, draw = units[place], draws[place]
        if action == "swap":
            new[place], new[place + 1] = units[place + 1], unit
        elif action == "delete":
            new[place] = ""
        elif action == "insert":
            new[place] = unit + _LETTERS[draw % len(_LETTERS)]
        elif action == "replace":
            new[place] = _neighbour(unit, draw)
        else:
            new[place] = f"{unit} {unit}"
    return new


def _places(units: list[str], action: str) -> list[int]:
    """Where something can be done; a swap is of a unit and the next."""
    if action == "replace":
        return [place for place, unit in enumerate(units) if unit.lower() in _NEIGHBOURS]
    solid = [not unit.isspace() for unit in units]
    if action == "swap":
        pairs = zip(units, units[1:], solid, solid[1:], strict=False)
        return [place for place, (one, other, *both) in enumerate(pairs) if all(both) and one != other]
    return [place for place, there in enumerate(solid) if there]


def _apart(order: list[int]) -> list[int]:
    """The same order without the pairs that share a unit with one before them.

    >>> _apart([3, 2, 1, 0])
    [3, 1]
    """
    taken: set[int] = set()
    kept = []
    for place in order:
        if taken.isdisjoint((place, place + 1)):
            taken.update((place, place + 1))
            kept.append(place)
    return kept


def _neighbour(character: str, draw: int) -> str:
    near = _NEIGHBOURS[character.lower()]
    found = near[draw % len(near)]
    return found.upper() if character.isupper() else found


def _neighbours(rows: Sequence[str]) -> dict[str, str]:
    """The keys that touch each key; every row of keys lies half a key to the right of the one above it.

    >>> _neighbours(["qwe", "asd"])["w"]
    'qeas'
    """
    near = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
    keys = {(down, right): key for down, row in enumerate(rows) for right, key in enumerate(row)}
    return {
        key: "".join(keys.get((down + by_down, right + by_right), "") for by_down, by_right in near)
        for (down, right), key in keys.items()
    }


_NEIGHBOURS = _neighbours(_KEYBOARD)
