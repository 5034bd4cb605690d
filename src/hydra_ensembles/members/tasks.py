"""Several trainings under one checkpoint directory: each has a place of its own, and what is done is not done again."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from hydra_ensembles.data import Data
from hydra_ensembles.members.checkpoint import is_first_process, own_randomness
from hydra_ensembles.members.finetuning import finetune, identity_of, prepared
from hydra_ensembles.members.history import History, Show
from hydra_ensembles.members.recipes import Recipe
from hydra_ensembles.members.trainee import as_trainee
from hydra_ensembles.store import read_config, read_store, write_store


@dataclass(frozen=True)
class Task:
    """One training, and where its files are (nowhere: None)."""

    number: int
    title: str
    place: Path | None
    checkpoint_every_s: float

    @property
    def start(self) -> Path:
        """The model before training, for a process to read."""
        assert self.place is not None
        return self.place / "start"

    @property
    def training(self) -> Path:
        """The checkpoint while it trains."""
        assert self.place is not None
        return self.place / "training"

    @property
    def done(self) -> Path:
        """Its weights and history after training."""
        assert self.place is not None
        return self.place / "done"


@contextmanager
def tasks_in(
    checkpoint: str | Path | None, titles: Mapping[str, str], every_s: float, needed: bool = False
) -> Iterator[list[Task]]:
    """A task for each title, by the name of its directory; deleted after success, and a temporary one in any case.

    Without a checkpoint directory there is a temporary one where one is needed, else none.
    """
    root = None if checkpoint is None else Path(checkpoint).expanduser()
    with (
        tempfile.TemporaryDirectory(prefix="hydra-ensembles-")
        if needed and root is None
        else nullcontext(root) as place
    ):
        tasks = [
            Task(number, title, None if place is None else Path(place) / name, every_s)
            for number, (name, title) in enumerate(titles.items())
        ]
        yield tasks
    if root is not None:
        for task in tasks:
            for ours in (task.start, task.training, task.done):  # and nothing that somebody else put there
                shutil.rmtree(ours, ignore_errors=True)
            assert task.place is not None
            _remove_if_empty(task.place)
        _remove_if_empty(root)


def train_once(
    model: nn.Module, train: Data, val: Data | None, recipe: Recipe, task: Task, progress: bool | Show | None
) -> History:
    """Fine-tune the model in place, or give it the weights that the same training has left in the task's place."""
    if task.place is None:
        return finetune(model, train, val, recipe, progress=progress, title=task.title)
    with own_randomness():
        identity = identity_of(as_trainee(model), recipe, *prepared(train, val, recipe))
    if (task.done / "config.json").is_file() and read_config(task.done).get("identity") == identity:
        return take_result(model, task.done)
    history = finetune(
        model,
        train,
        val,
        recipe,
        checkpoint=task.training,
        checkpoint_every_s=task.checkpoint_every_s,
        progress=progress,
        title=task.title,
    )
    if is_first_process():
        shutil.rmtree(task.done, ignore_errors=True)  # what a kill left there
        write_store(task.done, "finetuned", {"identity": identity, "history": history.to_json()}, model.state_dict())
    return history


def take_result(model: nn.Module, done: Path) -> History:
    """Give the model the weights of a training that is done."""
    config, tensors = read_store(done, "finetuned")
    model.load_state_dict(tensors)
    model.eval()
    return History.from_json(config["history"])


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()
