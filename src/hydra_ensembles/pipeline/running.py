"""Running a recipe: stages that are done are passed over, one that was killed goes on where it was."""

import filecmp
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hydra_ensembles.backbones.references import files_of
from hydra_ensembles.data import DataError
from hydra_ensembles.errors import HydraError
from hydra_ensembles.pipeline.checks import check_fits
from hydra_ensembles.pipeline.making import StageError
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import Splits, files_digest
from hydra_ensembles.pipeline.stage import Kept, Stage, Work
from hydra_ensembles.pipeline.stages import stages_of
from hydra_ensembles.store import whole

Tell = Callable[[str, str, float], None]
"""Takes a stage's name, what happened (`started`, `done`, `was done before`) and how many seconds it took."""


@dataclass(frozen=True)
class Planned:
    """A stage with the place where its result is, or will be."""

    stage: Stage
    kept: Kept
    key: str


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    directory: Path
    stages: dict[str, Path]

    @property
    def results(self) -> dict[str, Any]:
        """The figures of all models."""
        found: dict[str, Any] = json.loads((self.stages["results"] / "results.json").read_text())
        return found


def output_of(recipe: RunRecipe, output: str | Path | None = None) -> Path:
    """Where a run writes: as told, or as the recipe says, or `runs/NAME`."""
    return Path(output or recipe.output or Path("runs") / recipe.name).expanduser()


def planned(recipe: RunRecipe, output: str | Path | None = None) -> list[Planned]:
    """Every stage with its key; reads what has changed since the last time, and opens every split."""
    directory = output_of(recipe, output)
    memory = directory / "hashes.json"
    splits = Splits(recipe.data, memory)
    check_splits(splits)
    model = recipe.backbone.model
    backbone = json.dumps([model, recipe.backbone.classes, files_digest(files_of(model), memory)])
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
    tell: Tell | None = None,
    progress: bool | None = None,
) -> Run:
    """Run every stage that is not done yet.

    Args:
        recipe: from `read_recipe`.
        output: a directory instead of the recipe's.
        until: the last stage to run.
        tell: is told of every stage.
        progress: show bars; by default on a terminal.
    """
    told = tell or (lambda name, what, seconds: None)
    directory = output_of(recipe, output)
    plan = planned(recipe, directory)
    names = [one.stage.name for one in plan]
    if until is not None and until not in names:
        raise StageError(f"there is no stage '{until}'; this recipe has {', '.join(names)}")
    if not all(one.kept.is_done for one in plan):
        check_fits(recipe, Splits(recipe.data, directory / "hashes.json"))
    done: dict[str, Path] = {}
    with _threads(recipe.threads):
        for one in plan:
            stage, kept = one.stage, one.kept
            if kept.is_done:
                told(stage.name, "was done before", kept.seconds)
            else:
                told(stage.name, "started", 0.0)
                _work(one, recipe, Splits(recipe.data, directory / "hashes.json"), done, directory, progress)
                told(stage.name, "done", kept.seconds)
            done[stage.name] = kept.directory
            if stage.name == until:
                break
    _publish(directory, done)
    return Run(directory, done)


def _work(
    one: Planned, recipe: RunRecipe, splits: Splits, done: dict[str, Path], directory: Path, progress: bool | None
) -> None:
    started = time.monotonic()
    stage, place = one.stage, one.kept.directory
    place.mkdir(parents=True, exist_ok=True)
    inputs = {name: done[name] for name in stage.after}
    seconds = {name: Kept(kept).seconds for name, kept in done.items()}
    try:
        stage.work(Work(recipe, splits.only(*stage.reads), inputs, seconds, place, directory, progress))
    except HydraError as error:
        raise type(error)(f"stage '{stage.name}': {error}") from error
    one.kept.finish(stage, recipe, started)


def _publish(directory: Path, done: dict[str, Path]) -> None:
    """Put the hydra, the evaluations and the results where a person looks for them; of a run cut short, what it has."""
    hydra = done.get("decisions") or done.get("fusion")
    stores = {} if hydra is None else {"hydra": hydra / "hydra"}
    for name, kept in done.items():
        if name.startswith("evaluation-"):
            stores[f"evaluations/{name.removeprefix('evaluation-')}"] = kept / "evaluation"
    for name, store in stores.items():
        for file in ("model.safetensors", "config.json"):
            _copy(store / file, directory / name / file)
    if "results" in done:
        _copy(done["results"] / "results.json", directory / "results.json")


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
