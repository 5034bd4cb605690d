"""A protocol: the sets that a model is evaluated on, and those that were used to choose it, which must be others."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import numpy as np

from hydra_ensembles.data import Batches, Data, DataError, as_batches
from hydra_ensembles.data.batches import is_shuffling_loader
from hydra_ensembles.data.fingerprints import fingerprints, source_of
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.evaluation.shift.tables import ShiftedTable

ID_TEST, SHIFTS, AVERAGE = "id_test", "shifts", "average"
GROUPS = ("near", "far")
TAKEN = (ID_TEST, SHIFTS, AVERAGE, *GROUPS, "id_val", "ood_val", "id_cal", "id_train")
"""Names of sets and of means over sets that no test set can have."""
NATURAL = 0.001
"""The share of its rows that a test set may have in common with others, as published ones do, CIFAR-100 among them."""

COPIES = 0.05
"""The share of its rows that a set which was used to choose may have in common with another of them, untold."""

_USED = {
    "id_val": "which was used to choose",
    "ood_val": "which heads were chosen with",
    "id_cal": "which temperature, threshold or sets were fitted on",
    "id_train": "which the model or its detectors were fitted on",
}


class ProtocolError(HydraError):
    """Sets that would not give an honest evaluation."""


@dataclass(frozen=True, eq=False)
class Protocol:
    """What a model is evaluated on: tensors, `Batches` or loaders.

    `id_val` and `ood_val` are what heads, stopping and thresholds were chosen with. A test set that shares rows with
    them, and an OOD test set from the same file as the OOD validation set, are refused: the paper (D.1.2) leaves the
    whole set out of its tables, not only the rows it has seen.
    """

    id_test: Data
    """Known inputs with labels, never seen before."""
    near: Mapping[str, Data] = field(default_factory=dict)
    """Unknown inputs that look much like known ones, by name; labels are not looked at."""
    far: Mapping[str, Data] = field(default_factory=dict)
    """Unknown inputs of another kind, by name."""
    shifts: Mapping[str, Data] = field(default_factory=dict)
    """Known inputs with labels under corruption, by name."""
    id_val: Data | None = None
    ood_val: Data | None = None
    id_cal: Data | None = None
    """Known inputs that temperature, threshold and prediction sets were fitted on, where not `id_val`."""
    id_train: Data | None = None
    """Known inputs with labels that feature detectors are fitted on; without it `id_val` is taken."""
    allow_seen: bool = False
    """Evaluate also on sets that were used to choose; the evaluation then says so."""
    batch_size: int = 64
    """For data given as tensors."""
    seen: tuple[str, ...] = field(default=(), init=False)
    """What the test sets have in common with what was used to choose, in words."""

    def __post_init__(self) -> None:
        self._check_names()
        batches = {name: self._batches(name, data) for name, data in self._all()}
        for part in (SHIFTS, *GROUPS):
            object.__setattr__(self, part, {name: batches[name] for name in getattr(self, part)})
        for part in (ID_TEST, *_USED):
            object.__setattr__(self, part, batches.get(part))
        for name in (ID_TEST, *self.shifts):
            if getattr(batches[name], "labels", self) is None:  # of a loader that is known when it is gone through
                raise ProtocolError(
                    f"set '{name}' has no labels; known inputs are judged against theirs: name their column with label="
                )
        object.__setattr__(self, "seen", tuple(self._compared(batches)))

    @property
    def tests(self) -> dict[str, Batches]:
        """Every test set by name, `id_test` first."""
        known: dict[str, Data] = {ID_TEST: self.id_test}
        return known | dict(self.shifts) | dict(self.near) | dict(self.far)  # type: ignore[return-value]

    @property
    def groups(self) -> dict[str, list[str]]:
        """The names of the near and of the far OOD sets, and of the shifts."""
        return {"near": list(self.near), "far": list(self.far), SHIFTS: list(self.shifts)}

    def _check_names(self) -> None:
        for part in (SHIFTS, *GROUPS):
            if not isinstance(getattr(self, part), Mapping):
                found = type(getattr(self, part)).__name__
                raise ProtocolError(f"{part} are sets by name, {{'a name': data}}, found {found}")
        names = [*self.shifts, *self.near, *self.far]
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*", name):
                raise ProtocolError(f"{name!r} cannot name a test set; use letters, digits, '-', '_' and '.'")
            if name in TAKEN:
                raise ProtocolError(f"'{name}' cannot name a test set, it means something else; choose another name")
            if names.count(name) > 1:
                raise ProtocolError(f"two test sets are called '{name}'; give each its own name")

    def _all(self) -> Iterator[tuple[str, Data]]:
        yield ID_TEST, self.id_test
        yield from chain(self.shifts.items(), self.near.items(), self.far.items())
        yield from ((name, getattr(self, name)) for name in _USED if getattr(self, name) is not None)

    def _batches(self, name: str, data: Data) -> Batches:
        if isinstance(data, str | Path):
            raise ProtocolError(f"set '{name}' is the path {data}; load_data(path, model) makes batches of it")
        # Rows in another order each time would be compared with other rows of another model.
        if is_shuffling_loader(data):
            raise ProtocolError(f"set '{name}' is a loader that shuffles; a test goes through rows in one order")
        try:
            return as_batches(data, self.batch_size)
        except DataError as error:
            raise ProtocolError(f"set '{name}': {error}") from None
        except TypeError as error:
            raise ProtocolError(f"set '{name}' is not data that can be read: {in_one_line(error)}") from None

    def _compared(self, batches: Mapping[str, Batches]) -> Iterator[str]:
        """What test sets share with others. Two that are one are refused, and, unless allowed, what was seen before."""
        used = [name for name in _USED if name in batches]
        # What is made from the clean rows has been seen if they have; to read each of many would take long.
        tests = [name for name in self.tests if not _is_made_from(batches[name], batches[ID_TEST])]

        @cache
        def distinct(name: str) -> np.ndarray:
            return np.unique(fingerprints(batches[name]))

        for a, b in combinations(tests, 2):
            if batches[a].num_rows == batches[b].num_rows and np.array_equal(distinct(a), distinct(b)):
                raise ProtocolError(f"test sets '{a}' and '{b}' hold the same rows; leave one out")
        for val in used:
            for name in tests:
                shared, total = len(np.intersect1d(distinct(val), distinct(name))), len(distinct(name))
                is_same_file = (
                    val == "ood_val"
                    and name in (*self.near, *self.far)
                    and source_of(batches[val]) == source_of(batches[name]) is not None
                )
                if not shared and not is_same_file:
                    continue
                has = f"shares {shared:,} of its {total:,} rows with" if shared else "comes from the same file as"
                told = f"test set '{name}' {has} {val}, {_USED[val]}"
                if not self.allow_seen and (is_same_file or shared > NATURAL * total):
                    raise ProtocolError(f"{told}; take other data, or say allow_seen=True (recipe: data.allow_seen)")
                yield told
        for one, other in combinations([name for name in reversed(_USED) if name in used], 2):
            shared, total = len(np.intersect1d(distinct(one), distinct(other))), len(distinct(other))
            if shared > COPIES * total:
                what = (
                    "unknown inputs that are known" if "ood_val" in (one, other) else "it flatters what is fitted there"
                )
                yield f"{other} shares {shared:,} of its {total:,} rows with {one}: {what}"


def _is_made_from(shifted: Batches, clean: Batches) -> bool:
    """Are these the clean rows under one of our shifts?"""
    rows, their = getattr(shifted, "rows", None), getattr(clean, "rows", None)
    if rows is None or their is None or not isinstance(rows.table, ShiftedTable):
        return False
    return rows.table.original.where == their.where and np.array_equal(rows.chosen, their.chosen)
