"""Units of work: each leaves one directory behind, is passed over when that is there, and waits for those before it.

A unit that leaves a results file is done where that file is, and what it was made of is then not made again: a new
checkout goes on where the repository is, and who deletes a results file has it made anew.

Several workers can go through the same units: each takes what no other has, so two processes with one thread each
use two cores better than one process with two. A killed worker leaves its unit to the next.
"""

import fcntl
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hydra_ensembles.store import whole

Work = Callable[[Path], Mapping[str, Any] | None]
"""Works in a directory of its own; what it returns is kept in `done.json`."""
PAUSE_S = 2.0


@dataclass(frozen=True)
class Unit:
    """One thing to do, after others."""

    name: str
    work: Work
    after: tuple[str, ...] = ()
    leaves: Path | None = None
    """A results file, which is part of the repository while the unit's directory is not."""


@dataclass(eq=False)
class Units:
    """All units of a benchmark by name; files lie under `root`."""

    root: Path
    units: dict[str, Unit] = field(default_factory=dict)

    def add(self, name: str, work: Work, after: Sequence[str] = (), leaves: Path | None = None) -> str:
        """One more unit; the same name twice is the same unit."""
        missing = [one for one in after if one not in self.units]
        assert not missing, f"'{name}' comes after {missing}, which are not there"
        self.units.setdefault(name, Unit(name, work, tuple(after), leaves))
        return name

    def directory(self, name: str) -> Path:
        return self.root / name

    def is_done(self, name: str) -> bool:
        leaves = self.units[name].leaves
        return self.has_directory(name) if leaves is None else leaves.is_file()

    def has_directory(self, name: str) -> bool:
        """Was it done in this checkout?"""
        return (self.directory(name) / "done.json").is_file()

    def done(self, name: str) -> dict[str, Any]:
        """What a finished unit said of itself."""
        found: dict[str, Any] = json.loads((self.directory(name) / "done.json").read_text())
        return found

    def needed(self, wanted: Sequence[str]) -> list[str]:
        """The wanted units that are not done, each right behind all that it needs, in the order they are wanted in."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in found and not self.is_done(name):
                for one in self.units[name].after:
                    visit(one)
                found[name] = None

        for name in wanted:
            visit(name)
        return list(found)

    def run(self, wanted: Sequence[str], stop_at: float | None = None) -> None:
        """Do what is wanted and not done; return when nothing is left, or when no unit may begin any more.

        A unit that fails leaves `failed.txt`, and what comes after it waits for another run; all else is done.
        """
        names, started = self.needed(wanted), time.time()
        while left := [name for name in names if not self.is_done(name)]:
            failed = self._failed(left, started)
            ready = [
                name for name in left if name not in failed and all(self.is_done(one) for one in self.units[name].after)
            ]
            if stop_at is not None and time.time() > stop_at:
                print(f"stopped in time; {len(left)} units are left", flush=True)
                return
            if len(failed) == len(left):
                raise SystemExit(f"failed, or after what failed: {', '.join(failed)}; failed.txt says why")
            if not any(self._try(name) for name in ready):
                time.sleep(PAUSE_S)

    def _failed(self, left: Sequence[str], since: float) -> list[str]:
        """Units that failed in this run, in whichever process, and all that come after them."""
        found: dict[str, None] = {}
        for name in left:
            why = self.directory(name) / "failed.txt"
            if (why.is_file() and why.stat().st_mtime >= since) or any(one in found for one in self.units[name].after):
                found[name] = None
        return list(found)

    def _try(self, name: str) -> bool:
        """Do a unit unless another worker is at it; was it done here?"""
        place = self.directory(name)
        place.mkdir(parents=True, exist_ok=True)
        with _held(place / "lock") as is_held:
            if not is_held or self.is_done(name):
                return False
            print(f"{datetime.now(UTC):%H:%M:%S}  {name}", flush=True)
            started = time.monotonic()
            try:
                said = dict(self.units[name].work(place) or {})
            except Exception:
                print(f"{name} failed", flush=True)
                (place / "failed.txt").write_text(traceback.format_exc())
                return True
            about = {"seconds": round(time.monotonic() - started, 1), "threads": torch.get_num_threads()}
            with whole(place / "done.json") as draft:
                draft.write_text(json.dumps({**said, **about}, indent=1) + "\n")
            return True


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """A lock that goes with its process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
