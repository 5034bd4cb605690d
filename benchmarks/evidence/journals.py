"""Searches whose journals are left among the results: a new checkout need not search again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hydra_ensembles.scoring.journal import JournalError

JOURNAL, JOURNALS = "journal.jsonl", "journal*.jsonl"
T = TypeVar("T")


def with_journal(place: Path, left: Path, search: Callable[[Path], T]) -> T:
    """Search, or go on with a search of the same network whose journal is among the results, in `left`."""
    # A joint search has a journal for every member.
    known = [] if list(place.glob(JOURNALS)) else [shutil.copy(one, place) for one in left.glob(JOURNALS)]
    try:
        found = search(place / JOURNAL)
    except JournalError:
        # The network was trained again, and on this processor it has become another one.
        if not known:
            raise
        for one in known:
            Path(one).unlink()
        found = search(place / JOURNAL)
    left.mkdir(parents=True, exist_ok=True)
    for one in place.glob(JOURNALS):
        shutil.copy(one, left)
    return found
