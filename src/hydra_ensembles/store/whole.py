"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def draft_of(path: Path) -> Path:
    """Where a file is written before it takes its place; what a killed write leaves."""
    return path.with_name(f".{path.name}.draft")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write to; it takes the place of `path` if nothing fails, and is gone otherwise."""
    draft = draft_of(path)
    try:
        yield draft
        draft.chmod(0o666 & ~_umask())
        draft.replace(path)
    finally:
        if path.parent.is_dir():
            draft.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
