"""A training's private scratch: one file that appears whole or not at all, holds no code, and is deleted when done."""

import os
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydra_ensembles.errors import in_one_line
from hydra_ensembles.members.recipes import FineTuningError
from hydra_ensembles.store import draft_of, whole

_FILE = "training.pt"
_VERSION = 2


def write_checkpoint(directory: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Replace the checkpoint in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with whole(directory / _FILE) as draft:
        torch.save({"version": _VERSION, "identity": dict(identity), "state": dict(state)}, draft)


def read_checkpoint(directory: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state in a directory's checkpoint, None where there is none; one of another training is refused."""
    path = directory / _FILE
    if not path.exists():
        return None
    try:
        # On the CPU first: random states live there, weights are copied into place.
        found = torch.load(path, map_location="cpu", weights_only=True)
        version, theirs, state = found["version"], found["identity"], found["state"]
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise FineTuningError(f"{path} is not a checkpoint of ours ({in_one_line(error)}); delete it") from None
    if version != _VERSION:
        raise FineTuningError(f"{path} has version {version!r}, this library writes {_VERSION}; delete it")
    for what, ours in identity.items():
        if theirs.get(what) != ours:
            raise FineTuningError(
                f"{path} belongs to a training with another {what}{_difference(theirs.get(what), ours)}; "
                "delete it, or give another checkpoint directory"
            )
    assert isinstance(state, dict)
    return state


def delete_checkpoint(directory: Path) -> None:
    """Remove the checkpoint, and the directory if nothing else is in it."""
    for path in (directory / _FILE, draft_of(directory / _FILE)):
        path.unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def is_first_process() -> bool:
    """Is this the process that writes and shows, of those that a launcher such as `accelerate launch` started?"""
    return os.environ.get("RANK", "0") == "0"


def random_states() -> dict[str, Any]:
    """Where the random generators of Python, numpy and torch stand."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, [int(key) for key in keys], *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put the generators where `random_states` found them."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Whatever is drawn within, the caller's generators stand afterwards where they stood."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


def _difference(theirs: Any, ours: Any) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            if theirs.get(key) != ours.get(key):
                return f" ({key} {theirs.get(key)!r}, now {ours.get(key)!r})"
    return ""
