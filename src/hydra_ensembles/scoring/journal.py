"""The journal of a search: one line a removal, on disk before the next begins, so that a killed search goes on."""

import json
import os
from pathlib import Path
from typing import Any

from hydra_ensembles.scoring.objectives import ScoringError

_BEGINNING = '{"task"'


class JournalError(ScoringError):
    """A journal that belongs to another search, or cannot be read."""


class Journal:
    """What a search has done so far. `task` says which search it is; a journal of another one is refused.

    Without a path it is kept in memory only.
    """

    def __init__(self, path: str | Path | None, task: dict[str, Any]):
        self.path = None if path is None else Path(path).expanduser()
        self.entries: list[dict[str, Any]] = []
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(self.path)
        if not lines:
            _append(self.path, json.dumps({"task": task}), fresh=True)
            return
        found = _parsed(self.path, lines)
        header = found[0].get("task")
        wanted = json.loads(json.dumps(task))
        if header != wanted:
            raise JournalError(
                f"{self.path} belongs to another search: {_difference(header, wanted)}; name another file"
            )
        self.entries = found[1:]
        # A line that was cut off by the kill must not stay in front of the next one.
        os.truncate(self.path, sum(len(line.encode()) + 1 for line in lines))

    def append(self, entry: dict[str, Any]) -> None:
        """Keep one removal; on return it is on disk."""
        self.entries.append(entry)
        if self.path is not None:
            _append(self.path, json.dumps(entry))


def _append(path: Path, line: str, fresh: bool = False) -> None:
    with path.open("w" if fresh else "a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(path: Path) -> list[str]:
    """Those of a journal, without one that was cut off; none of a file that is new."""
    content = path.read_text(errors="replace") if path.exists() else ""
    if content[: len(_BEGINNING)] != _BEGINNING[: len(content)]:
        raise JournalError(f"{path} is not a journal of ours; name another file")
    return content[: content.rfind("\n") + 1].splitlines()


def _parsed(path: Path, lines: list[str]) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in lines]
    except ValueError as error:
        raise JournalError(f"{path} is not a journal of ours ({error}); name another file") from None
    if not all(isinstance(entry, dict) for entry in found):
        raise JournalError(f"{path} is not a journal of ours; name another file")
    return found


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return "it does not say which"
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            return f"its {key} is {found.get(key)!r:.60}, now {wanted.get(key)!r:.60}"
    return "they differ"
