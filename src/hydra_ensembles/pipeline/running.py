"""Running a recipe: stages that are done are passed over, one that was killed goes on where it was."""

import filecmp
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from hydra_ensembles.backbones.references import expand, files_of
from hydra_ensembles.data import DataError
from hydra_ensembles.errors import HydraError
from hydra_ensembles.members.checkpoint import is_first_process
from hydra_ensembles.pipeline.checks import check_fits, counted, splits_of
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import Splits, files_digest
from hydra_ensembles.pipeline.stage import Kept, Stage, StageError, Work, read_json
from hydra_ensembles.pipeline.stages import stages_of
from hydra_ensembles.store import StoreError, check_whole, whole

Tell = Callable[[str, str, float], None]
"""Takes a stage's name, what happened (`started`, `done`, `was done before`) and how many seconds it took."""


@dataclass(frozen=True)
class Planned:
    """A stage with the place where its result is, or will be."""

    stage: Stage
    kept: Kept
    key: str


class Engine(Protocol):
    """Where stages run: here, or in other processes that see the same files."""

    at_once: int

    def start(self, stage: Stage, job: Callable[[], None]) -> None:
        """Begin a stage."""

    def finished(self) -> str:
        """Wait for one that was begun, and give its name; an error of a stage is raised here."""


class Here:
    """In this process, one after another."""

    at_once = 1

    def start(self, stage: Stage, job: Callable[[], None]) -> None:
        job()
        self._last = stage.name

    def finished(self) -> str:
        return self._last


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    directory: Path
    stages: dict[str, Path]

    @property
    def results(self) -> dict[str, Any]:
        """The figures of all models."""
        found: dict[str, Any] = read_json(self.stages["results"] / "results.json")
        return found


def output_of(recipe: RunRecipe, output: str | Path | None = None) -> Path:
    """Where a run writes: as told, or as the recipe says, or `runs/NAME`."""
    return Path(expand(str(output or recipe.output or Path("runs") / recipe.name)))


def planned(recipe: RunRecipe, output: str | Path | None = None) -> list[Planned]:
    """Every stage with its key; reads what has changed since the last time, and opens every split."""
    recipe = counted(recipe)
    directory = output_of(recipe, output)
    memory = directory / "hashes.json"
    model = recipe.backbone.model
    files = files_of(model)
    splits = splits_of(recipe, memory)
    check_splits(splits)
    # An architecture has no files that would tell which it is.
    named = model if files else expand(model)
    backbone = json.dumps([named, recipe.backbone.classes, files_digest(files, memory)])
    keys: dict[str, str] = {}
    found = []
    recipe_hash = hashlib.sha256(recipe.model_dump_json().encode()).hexdigest()[:16]
    for stage in stages_of(recipe):
        keys[stage.name] = key = stage.key(recipe, splits, keys, backbone)
        facts: dict[str, Any] = {"key": key, "recipe": recipe.name, "recipe_hash": recipe_hash, "backbone": model}
        facts |= {"data": {name: splits.digest(name) for name in stage.reads}}
        facts |= {"after": {name: keys[name] for name in stage.after}}
        found.append(Planned(stage, Kept(directory / "stages" / f"{stage.name}-{key}", facts), key))
    return found


def check_splits(splits: Splits) -> None:
    """Can every split be read? Asked before hours of work; files that have not changed are not read again."""
    for name in splits.references:
        try:
            splits.digest(name)
        except DataError as error:
            raise DataError(f"data.{name.replace('/', '.')}: {error}") from None


def run(
    recipe: RunRecipe,
    output: str | Path | None = None,
    *,
    until: str | None = None,
    engine: Engine | None = None,
    tell: Tell | None = None,
    progress: bool | None = None,
    device: str = "cpu",
) -> Run:
    """Run every stage that is not done yet.

    Args:
        recipe: from `read_recipe`.
        output: a directory instead of the recipe's.
        until: the last stage to run.
        engine: where stages run; `hydra_ensembles.scale` has one for many machines.
        tell: is told of every stage.
        progress: show bars; by default on a terminal.
        device: where models search and answer, `"cpu"` or `"cuda"`; a training takes a GPU that is there by itself.
    """
    told = tell or (lambda name, what, seconds: None)
    recipe = counted(recipe)
    directory = output_of(recipe, output)
    plan = planned(recipe, directory)
    wanted = cut(plan, until)
    if not all(one.kept.is_done for one in plan):
        check_fits(recipe, splits_of(recipe, directory / "hashes.json"))
    work = partial(_work, recipe=recipe, directory=directory, progress=progress, device=device)
    done = _run(wanted, engine or Here(), work, told)
    _publish(directory, done, next(one.kept for one in plan if one.stage.name == "results"))
    return Run(directory, done)


def cut(plan: list[Planned], until: str | None) -> list[Planned]:
    """The plan up to a stage."""
    names = [one.stage.name for one in plan]
    if until is not None and until not in names:
        raise StageError(f"there is no stage '{until}'; this recipe has {', '.join(names)}")
    return plan if until is None else plan[: 1 + names.index(until)]


def _run(plan: list[Planned], engine: Engine, work: Callable[..., None], told: Tell) -> dict[str, Path]:
    """Each stage as soon as those it comes after are done and the engine has room; the directories, in plan order."""
    left, running, done = list(plan), dict[str, Planned](), dict[str, Path]()
    while left or running:
        for one in [one for one in left if all(name in done for name in one.stage.after)]:
            name, kept = one.stage.name, one.kept
            if kept.is_done:
                left.remove(one)
                told(name, "was done before", kept.seconds)
                done[name] = kept.directory
            elif _has_room(engine, running, one.stage):
                left.remove(one)
                told(name, "started", 0.0)
                running[name] = one
                engine.start(one.stage, partial(work, one, dict(done)))
        if running:
            name = engine.finished()
            kept = running.pop(name).kept
            told(name, "done", kept.seconds)
            done[name] = kept.directory
    return {one.stage.name: done[one.stage.name] for one in plan}


def _has_room(engine: Engine, running: Mapping[str, Planned], stage: Stage) -> bool:
    is_alone = stage.alone or any(one.stage.alone for one in running.values())
    return len(running) < (1 if is_alone else engine.at_once)


def _work(
    one: Planned, done: dict[str, Path], recipe: RunRecipe, directory: Path, progress: bool | None, device: str
) -> None:
    """One stage, in whichever process; of several that a launcher started, the first writes."""
    started = time.monotonic()
    stage, place = one.stage, one.kept.directory
    place.mkdir(parents=True, exist_ok=True)
    splits = splits_of(recipe, directory / "hashes.json").only(*stage.reads)
    inputs = {name: done[name] for name in stage.after}
    seconds = {name: Kept(kept).seconds for name, kept in done.items()}
    try:
        with _threads(recipe.threads):
            stage.work(
                Work(recipe, splits, inputs, seconds, place, directory, progress, "cpu" if stage.trains else device)
            )
            if is_first_process():
                one.kept.finish(stage, recipe, started, device)
    except HydraError as error:
        raise type(error)(f"stage '{stage.name}': {error}") from error


def _publish(directory: Path, done: dict[str, Path], results: Kept) -> None:
    """Put the hydra, the evaluations and the results where a person looks for them; of a run cut short, what it has."""
    hydra = done.get("decisions") or done.get("fusion")
    stores = {} if hydra is None else {"hydra": hydra / "hydra"}
    for name, kept in done.items():
        if name.startswith("evaluation-"):
            stores[f"evaluations/{name.removeprefix('evaluation-')}"] = kept / "evaluation"
    for name, store in stores.items():
        try:
            check_whole(store)
        except StoreError as error:
            raise StoreError(f"{error}; delete {store.parent} and run again") from None
        for file in ("model.safetensors", "config.json"):
            _copy(store / file, directory / name / file)
    figures = directory / "results.json"
    if "results" in done:
        _copy(done["results"] / "results.json", figures)
    elif figures.is_file():
        current = results.directory / "results.json"
        if not (results.is_done and filecmp.cmp(current, figures, shallow=False)):
            figures.unlink(missing_ok=True)  # of another recipe, or of other data


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all; what is there already stays."""
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole(target) as draft:
        shutil.copyfile(source, draft)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
