"""What a report is made of: the directories that `hydra-ens run` and `hydra-ens evaluate --out` leave."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.heads import HeadSet
from hydra_ensembles.store import StoreError, check_store, read_config

BASE, MEMBERS, HYDRA = "base", "members", "hydra"
SHOWN = 8
"""More lines than this in one figure cannot be told apart: then only hydras and bases are drawn."""


class ReportError(HydraError):
    """Something that no report can be made of."""


@dataclass(frozen=True, eq=False)
class Heads:
    """Which heads the members keep, by the members' names."""

    members: Mapping[str, HeadSet]
    overlap: Sequence[Sequence[float]]
    divergence: Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Run:
    """One run, or one evaluation by itself; what it lacks is empty, and `notes` say so."""

    name: str
    directory: Path
    results: Mapping[str, Any]
    """All of its `results.json`; of an evaluation, what that would say."""
    models: Mapping[str, Mapping[str, Any]]
    """Figures, intervals and what else `Evaluation.to_json` says, by model."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """The judged rows behind the figures."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    compared: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    heads: Heads | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    classes: Sequence[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """The model that the summary speaks of: the hydra, else the last one that is not the base."""
        others = [name for name in self.models if name != BASE]
        return HYDRA if HYDRA in self.models else [BASE, *others][-1]

    @property
    def base(self) -> str | None:
        """The one network that the subject is held against, where there is one."""
        return BASE if BASE in self.models and self.subject != BASE else None

    @property
    def against_base(self) -> Mapping[str, Any]:
        """Subject minus base, by part, set and metric; empty where they were not compared."""
        found: Mapping[str, Any] = self.compared.get(f"{self.subject} minus {self.base}", {})
        return found


@dataclass(frozen=True, eq=False)
class Series:
    """One model of one run: a line in a figure, a column in a table."""

    label: str
    run: Run
    model: str

    @property
    def told(self) -> Mapping[str, Any]:
        """Its figures and what is known about them."""
        return self.run.models[self.model]

    @property
    def evaluation(self) -> Evaluation | None:
        """Its judged rows, where they were kept."""
        return self.run.evaluations.get(self.model)


def read_runs(directories: str | Path | Sequence[str | Path]) -> list[Run]:
    """Every run, in the order given; those of one name are told apart by seed, or by number."""
    if isinstance(directories, str | Path):
        directories = [directories]
    if not directories:
        raise ReportError("a report needs a run; give the directory that `hydra-ens run` wrote")
    runs = [read_run(directory) for directory in directories]
    same = Counter(run.name for run in runs)
    seeds = Counter((run.name, run.recipe.get("seed")) for run in runs)
    counted: Counter[str] = Counter()
    named = []
    for run in runs:
        counted[run.name] += 1
        seed = run.recipe.get("seed")
        if same[run.name] == 1:
            named.append(run)
        elif seed is not None and seeds[run.name, seed] == 1:
            named.append(replace(run, name=f"{run.name}, seed {seed}"))
        else:
            named.append(replace(run, name=f"{run.name} ({counted[run.name]})"))
    return named


def read_run(directory: str | Path) -> Run:
    """A run's directory, or that of an evaluation."""
    directory = Path(directory).expanduser()
    if (directory / "results.json").is_file():
        return _run(directory)
    try:
        told = check_store(directory, "evaluation")
    except StoreError as error:
        raise ReportError(
            f"{directory} is neither a run (it has no results.json) nor an evaluation ({error}); "
            "give a directory that `hydra-ens run` or `hydra-ens evaluate --out` wrote"
        ) from None
    name = directory.resolve().name
    notes = ("An evaluation by itself has no costs, heads and inputs; `hydra-ens run` keeps them.",)
    return Run(
        name,
        directory,
        {"recipe": {"seed": told.get("seed")}, "models": {name: told}},
        {name: told},
        {name: Evaluation.load(directory)},
        notes=notes,
    )


def series_of(runs: Sequence[Run]) -> list[Series]:
    """Every model of every run."""
    return [
        Series(model if len(runs) == 1 else f"{run.name}: {model}" if run.recipe else run.name, run, model)
        for run in runs
        for model in run.models
    ]


def drawn(series: Sequence[Series]) -> list[Series]:
    """Those that figures show: all, or where they are too many, each run's subject and base; then the first of them."""
    if len(series) > SHOWN:
        series = [one for one in series if one.model in (one.run.subject, one.run.base)]
    return list(series[:SHOWN])


def _run(directory: Path) -> Run:
    try:
        results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
        models, recipe = dict(results["models"]), dict(results["recipe"])
        for told in models.values():
            told["figures"]["answers"]["id_test"], told["rows"]["id_test"], told["about"]["members"]
        heads = _heads(results["heads"]) if results.get("heads") else None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ReportError(
            f"{directory / 'results.json'} is not that of a run ({type(error).__name__}: {error}); run the recipe again"
        ) from None
    if not models:
        raise ReportError(f"{directory / 'results.json'} holds no model; name some under evaluation.models")
    notes = []
    evaluations = {
        name: Evaluation.load(directory / "evaluations" / name)
        for name in models
        if (directory / "evaluations" / name).is_dir()
    }
    again = "run the recipe again with this version: stages that are done are passed over"
    if len(evaluations) < len(models):
        lacking = ", ".join(name for name in models if name not in evaluations)
        notes.append(f"No judged rows of {lacking}, so no curves and no inputs; {again}.")
    if not results.get("costs"):
        notes.append(f"No costs; {again}.")
    if not results.get("heads"):
        notes.append(f"No head maps; {again}.")
    return Run(
        str(recipe.get("name") or directory.resolve().name),
        directory,
        results,
        models,
        evaluations,
        recipe,
        results.get("compared") or {},
        results.get("costs") or {},
        heads,
        results.get("seconds") or {},
        _classes(directory),
        tuple(notes),
    )


def _heads(found: Mapping[str, Any]) -> Heads:
    sets = [HeadSet.from_json(one) for one in found["members"]]
    names = found["names"]
    if len(set(names)) < len(names):  # samples of one ranking
        names = [f"{name} {number}" for number, name in enumerate(names)]
    return Heads(dict(zip(names, sets, strict=True)), found["overlap"], found["divergence"])


def _classes(directory: Path) -> Sequence[str] | None:
    if not (directory / "hydra" / "config.json").is_file():
        return None
    classes: Sequence[str] | None = read_config(directory / "hydra").get("classes")
    return classes
