"""Fine-tuning of all members, one after another or at once in processes of their own."""

import multiprocessing
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from hydra_ensembles.data import Data
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.heads import Member
from hydra_ensembles.members.checkpoint import is_first_process, own_randomness
from hydra_ensembles.members.finetuning import finetune, identity_of, prepared
from hydra_ensembles.members.history import History, Show
from hydra_ensembles.members.recipes import FineTuningError, Recipe, recipe_named
from hydra_ensembles.members.trainee import as_trainee, dropout_rates, set_dropout_rates
from hydra_ensembles.store import read_config, read_store, write_store


def finetune_members(
    members: Sequence[nn.Module],
    train: Data,
    val: Data | None,
    recipe: Recipe | str,
    *,
    seeds: Sequence[int] | None = None,
    freeze_blocks: int | None = None,
    parallel: bool | int = False,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool | Show | None = None,
) -> list[History]:
    """Fine-tune every member in place, each with its own seed.

    Args:
        members: `Member`s; one after another, anything that `finetune` takes.
        train: as in `finetune`, and so are `val`, `recipe`, `freeze_blocks` and `checkpoint_every_s`.
        val: see `train`.
        recipe: see `train`.
        seeds: one a member; None counts on from the recipe's.
        freeze_blocks: see `train`.
        parallel: True trains all members at once, a number so many at a time, each in a process of its own. The
            weights are those of `parallel=False` where `threads` is the same. A script then needs the usual
            `if __name__ == "__main__":`, and the data must be such that Python can send them to a process.
        threads: CPU threads of each training; None: all, divided among the processes.
        checkpoint: a directory for private checkpoints, so that a killed run goes on where it was; members that were
            done are not trained again. What was put there is deleted when all are done.
        checkpoint_every_s: see `train`.
        progress: as in `finetune`; of processes, a bar of the members that are done.
    """
    recipe = recipe_named(recipe)
    if freeze_blocks is not None:
        recipe = replace(recipe, freeze_blocks=freeze_blocks)
    seeds = [recipe.seed + m for m in range(len(members))] if seeds is None else list(seeds)
    if len(seeds) != len(members):
        raise FineTuningError(f"there are {len(members)} members but {len(seeds)} seeds")
    recipes = [replace(recipe, seed=seed) for seed in seeds]
    with _scratch(checkpoint, bool(parallel), len(members), checkpoint_every_s) as tasks:
        if parallel:
            workers = len(members) if parallel is True else min(int(parallel), len(members))
            _in_processes(members, train, val, recipes, tasks, workers, threads, progress)
            return [_take_result(member, task.done) for member, task in zip(members, tasks, strict=True)]
        with _threads(threads):
            return [
                _train(member, train, val, recipe, task, progress)
                for member, recipe, task in zip(members, recipes, tasks, strict=True)
            ]


@dataclass(frozen=True)
class _Task:
    """One member's training, and where its files are (nowhere: None)."""

    member: int
    place: Path | None
    checkpoint_every_s: float

    @property
    def start(self) -> Path:
        """The member before training, for a process to read."""
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


def _train(
    model: nn.Module, train: Data, val: Data | None, recipe: Recipe, task: _Task, progress: bool | Show | None
) -> History:
    title = f"fine-tuning member {task.member}"
    if task.place is None:
        return finetune(model, train, val, recipe, progress=progress, title=title)
    with own_randomness():
        identity = identity_of(as_trainee(model), recipe, *prepared(train, val, recipe))
    if (task.done / "config.json").is_file() and read_config(task.done).get("identity") == identity:
        return _take_result(model, task.done)
    history = finetune(
        model,
        train,
        val,
        recipe,
        checkpoint=task.training,
        checkpoint_every_s=task.checkpoint_every_s,
        progress=progress,
        title=title,
    )
    if is_first_process():
        shutil.rmtree(task.done, ignore_errors=True)  # what a kill left there
        write_store(task.done, "finetuned", {"identity": identity, "history": history.to_json()}, model.state_dict())
    return history


def _take_result(model: nn.Module, done: Path) -> History:
    """Give the model the weights of a training that is done."""
    config, tensors = read_store(done, "finetuned")
    model.load_state_dict(tensors)
    model.eval()
    return History.from_json(config["history"])


def _in_processes(
    members: Sequence[nn.Module],
    train: Data,
    val: Data | None,
    recipes: list[Recipe],
    tasks: list[_Task],
    workers: int,
    threads: int | None,
    progress: bool | Show | None,
) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise FineTuningError("parallel starts processes of its own; under a launcher, train one after another")
    if callable(progress):
        raise FineTuningError("a progress function cannot follow other processes; give True, False or None")
    for m, member in enumerate(members):
        if not isinstance(member, Member):
            raise FineTuningError(
                f"member {m} is a {type(member).__name__}; only a Member can be sent to a process: "
                "prune(model, HeadSet.all(model)) is one"
            )
    try:
        data = pickle.dumps((train, val))
    except Exception as error:  # whatever a data set of somebody else's raises
        raise FineTuningError(f"the data cannot be sent to a process: {in_one_line(error)}") from error
    shown = Console(stderr=True).is_terminal if progress is None else progress
    share = threads or max(1, torch.get_num_threads() // workers)
    # spawn: a forked process inherits locks of thread pools that no longer run.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, max_tasks_per_child=1) as pool:
        jobs = []
        for member, recipe, task in zip(members, recipes, tasks, strict=True):
            assert isinstance(member, Member)
            shutil.rmtree(task.start, ignore_errors=True)  # what a kill left there
            member.save(task.start)
            frozen = [name for name, parameter in member.named_parameters() if not parameter.requires_grad]
            jobs.append(pool.submit(_work, data, recipe, task, frozen, dropout_rates(member), share))
        try:
            console = Console(stderr=True)
            for job in track(as_completed(jobs), "fine-tuning members", len(jobs), console=console, disable=not shown):
                job.result()
        except BrokenProcessPool:
            raise FineTuningError(
                "a process that trained a member was ended from outside, perhaps for want of memory; "
                "train fewer at a time, with parallel=1 or parallel=False"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _work(data: bytes, recipe: Recipe, task: _Task, frozen: list[str], dropout: dict[str, float], threads: int) -> None:
    """What a process does: read the member, with what its store does not hold, train it, write the result."""
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(task.member % torch.cuda.device_count())
    train, val = pickle.loads(data)
    member = Member.load(task.start)
    for name in frozen:
        member.get_parameter(name).requires_grad_(False)
    set_dropout_rates(member, dropout)
    _train(member, train, val, recipe, task, progress=False)


@contextmanager
def _scratch(checkpoint: str | Path | None, needed: bool, members: int, every_s: float) -> Iterator[list[_Task]]:
    """A task a member, each with a directory of its own; deleted after success, and a temporary one in any case."""
    root = None if checkpoint is None else Path(checkpoint).expanduser()
    with (
        tempfile.TemporaryDirectory(prefix="hydra-ensembles-")
        if needed and root is None
        else nullcontext(root) as place
    ):
        tasks = [_Task(m, None if place is None else Path(place) / f"finetuning-{m}", every_s) for m in range(members)]
        yield tasks
    if root is not None:
        for task in tasks:
            for ours in (task.start, task.training, task.done):  # and nothing that somebody else put there
                shutil.rmtree(ours, ignore_errors=True)
            assert task.place is not None
            _remove_if_empty(task.place)
        _remove_if_empty(root)


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
