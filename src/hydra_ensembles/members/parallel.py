"""Fine-tuning of all members, one after another or at once in processes of their own."""

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from hydra_ensembles.data import Data
from hydra_ensembles.data.batches import counted_on
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.fusion.merging import check_alike
from hydra_ensembles.heads import Member
from hydra_ensembles.members.history import History, Show
from hydra_ensembles.members.recipes import FineTuningError, Recipe, changed
from hydra_ensembles.members.tasks import Task, take_result, tasks_in, train_once
from hydra_ensembles.members.trainee import dropout_rates, set_dropout_rates


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
        train: as in `finetune`, and so are `val`, `recipe`, `freeze_blocks` and `checkpoint_every_s`. Batches that
            shuffle count on as the members' seeds do: each member sees its own order.
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
    recipe = changed(recipe, freeze_blocks=freeze_blocks)
    if all(isinstance(member, Member) for member in members):
        check_alike([member.backbone for member in members])  # type: ignore[misc]
    seeds = [recipe.seed + m for m in range(len(members))] if seeds is None else list(seeds)
    if len(seeds) != len(members):
        raise FineTuningError(f"there are {len(members)} members but {len(seeds)} seeds")
    recipes = [replace(recipe, seed=seed) for seed in seeds]
    titles = {f"finetuning-{m}": f"fine-tuning member {m}" for m in range(len(members))}
    with tasks_in(checkpoint, titles, checkpoint_every_s, needed=bool(parallel)) as tasks:
        if parallel:
            workers = len(members) if parallel is True else min(int(parallel), len(members))
            _in_processes(members, train, val, recipes, tasks, workers, threads, progress)
            return [take_result(member, task.done) for member, task in zip(members, tasks, strict=True)]
        with _threads(threads):
            return [
                train_once(member, counted_on(train, recipe.seed - min(seeds)), val, recipe, task, progress)
                for member, recipe, task in zip(members, recipes, tasks, strict=True)
            ]


def _in_processes(
    members: Sequence[nn.Module],
    train: Data,
    val: Data | None,
    recipes: list[Recipe],
    tasks: list[Task],
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
            by = recipe.seed - min(one.seed for one in recipes)
            jobs.append(pool.submit(_work, data, by, recipe, task, frozen, dropout_rates(member), share))
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


def _work(
    data: bytes, by: int, recipe: Recipe, task: Task, frozen: list[str], dropout: dict[str, float], threads: int
) -> None:
    """What a process does: read the member, with what its store does not hold, train it, write the result."""
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(task.number % torch.cuda.device_count())
    train, val = pickle.loads(data)
    member = Member.load(task.start)
    for name in frozen:
        member.get_parameter(name).requires_grad_(False)
    set_dropout_rates(member, dropout)
    train_once(member, counted_on(train, by), val, recipe, task, progress=False)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)
