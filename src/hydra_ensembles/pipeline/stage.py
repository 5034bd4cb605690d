"""A stage: one step of a run, kept in a directory named by the hash of everything that it depends on."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hydra_ensembles.errors import HydraError
from hydra_ensembles.optional import versions
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import SplitError, Splits, is_test
from hydra_ensembles.store import json_digest, whole

_DONE = "provenance.json"


class StageError(HydraError):
    """A stage that a recipe has not, or whose files cannot be read."""


def read_json(path: Path) -> Any:
    """What an earlier stage wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(
            f"{path} cannot be read ({error}); delete {path.parent} and run again, which makes it anew"
        ) from None


@dataclass(frozen=True)
class Work:
    """What a stage is given to work with."""

    recipe: RunRecipe
    splits: Splits
    """Only those that the stage declares."""
    done: Mapping[str, Path]
    """The directories of the stages that it comes after."""
    seconds: Mapping[str, float]
    """How long every stage so far took."""
    directory: Path
    shared: Path
    """Scratch that runs share: corrupted images."""
    progress: bool | None
    device: str = "cpu"
    """Where models compute; a training asks Accelerate."""


@dataclass(frozen=True)
class Stage:
    """What is done, with which data, after which stages."""

    name: str
    work: Callable[[Work], None]
    settings: Mapping[str, Any]
    """What of the recipe it depends on, as JSON."""
    reads: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    chooses: bool = True
    """Does it train, choose or fit anything? Then it cannot read a test split."""
    trains: bool = False
    """Can several processes, started by a launcher, share its work?"""
    alone: bool = False
    """Does it measure time, so that nothing should run beside it?"""
    format: int = 1
    """Part of the key; raised when the stage does something else with the same settings."""

    def __post_init__(self) -> None:
        tests = [name for name in self.reads if is_test(name)]
        if self.chooses and tests:
            raise SplitError(f"stage '{self.name}' chooses something and so cannot read the test split '{tests[0]}'")

    def key(self, recipe: RunRecipe, splits: Splits, keys: Mapping[str, str], backbone: str) -> str:
        """A hash of everything that the result depends on."""
        about = {
            "format": self.format,
            "stage": self.name,
            "settings": dict(self.settings),
            "data": {name: splits.only(*self.reads).digest(name) for name in self.reads},
            "classes": splits.classes if self.reads else None,
            "after": {name: keys[name] for name in self.after},
            "backbone": backbone,
            "seed": recipe.seed,
        }
        return json_digest(about)


@dataclass(frozen=True)
class Kept:
    """The directory of a stage with a certain key."""

    directory: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        try:
            return "seconds" in json.loads((self.directory / _DONE).read_text())
        except (OSError, ValueError):  # not there, or cut off by a full disk
            return False

    def finish(self, stage: Stage, recipe: RunRecipe, started: float, device: str) -> None:
        """Write down how the stage came about; only then it counts as done."""
        about = {
            **self.facts,
            "stage": stage.name,
            "settings": dict(stage.settings),
            "seed": recipe.seed,
            "dtype": "float32",  # of weights and searches; the precision of a training is among its settings
            "versions": versions(),
            "threads": torch.get_num_threads(),
            **({} if stage.trains else {"device": device}),  # Accelerate chooses for a training
            "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round(time.monotonic() - started, 2),
        }
        with whole(self.directory / _DONE) as draft:
            draft.write_text(json.dumps(about, indent=1) + "\n")

    @property
    def seconds(self) -> float:
        """How long the stage took."""
        return float(json.loads((self.directory / _DONE).read_text())["seconds"])
