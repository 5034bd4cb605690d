"""Head-count sweeps: what is left of a model as its heads go (the paper, B.3, Figures 5 and 6)."""

import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track
from torch import nn

from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.evaluation.analyses.figures import Figures, check_score, figures_of
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, check_unknown
from hydra_ensembles.evaluation.answers import model_digest
from hydra_ensembles.heads import HeadRanking, HeadSet, Member, RankingError, prune
from hydra_ensembles.scoring.candidates import heads_in
from hydra_ensembles.scoring.journal import Journal

Line: TypeAlias = HeadRanking | Sequence[HeadRanking]
"""A ranking; or several, where each holds at its own budget only (Taylor per layer): one a number of heads."""

RANDOM = "random/"
"""What the names of random lines begin with; their seed follows."""


@dataclass(frozen=True)
class Point:
    """One pruned model."""

    line: str
    heads: HeadSet
    figures: Figures

    @property
    def kept(self) -> int:
        """How many heads it keeps."""
        return len(self.heads)


@dataclass(frozen=True)
class Sweep:
    """All points, by line, most heads first."""

    points: tuple[Point, ...]
    score: str

    @property
    def lines(self) -> list[str]:
        """Their names: the rankings', then `random/SEED`."""
        return list(dict.fromkeys(point.line for point in self.points))

    def curve(self, line: str, name: str, metric: str) -> list[tuple[int, float]]:
        """(heads kept, figure) of one line on one set."""
        if line not in self.lines:
            raise AnalysisError(f"there is no line '{line}'; there are {', '.join(self.lines)}")
        return [(point.kept, _figure(point, name, metric)) for point in self.points if point.line == line]

    def control(self, name: str, metric: str) -> list[tuple[int, float, float]]:
        """(heads kept, mean, standard deviation) over the seeds of random removal; of one seed the latter is 0."""
        by_kept: dict[int, list[float]] = {}
        for point in self.points:
            if point.line.startswith(RANDOM):
                by_kept.setdefault(point.kept, []).append(_figure(point, name, metric))
        return [
            (kept, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
            for kept, values in by_kept.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything; where removals were random, also their mean and standard deviation."""
        lines = {
            line: [
                {"kept": point.kept, "heads": point.heads.to_json(), "figures": point.figures}
                for point in self.points
                if point.line == line
            ]
            for line in self.lines
        }
        control: list[dict[str, Any]] = []
        if any(line.startswith(RANDOM) for line in self.lines):
            figures = self.points[0].figures
            named = {(name, metric): self.control(name, metric) for name in figures for metric in figures[name]}
            for place, (kept, _, _) in enumerate(next(iter(named.values()))):
                mean: Figures = {name: {} for name in figures}
                spread: Figures = {name: {} for name in figures}
                for (name, metric), rows in named.items():
                    _, mean[name][metric], spread[name][metric] = rows[place]
                control.append({"kept": kept, "mean": mean, "std": spread})
        return {"score": self.score, "lines": lines, "random": control}


def head_count_sweep(
    model: nn.Module,
    rankings: Mapping[str, Line],
    id_data: Data,
    ood_data: Mapping[str, Data],
    *,
    keep: Sequence[int] | None = None,
    random_seeds: Collection[int] = (),
    random_layers: Collection[int] | None = None,
    then: Callable[[Member], nn.Module] | None = None,
    then_is: str = "",
    score: str = "msp",
    journal: str | Path | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> Sweep:
    """Prune to one number of heads after another and measure: one pass over each set a head set.

    Args:
        model: the model or `Member` that was ranked.
        rankings: by name, see `Line`.
        id_data: known inputs with labels.
        ood_data: unknown inputs by name.
        keep: numbers of heads to keep in all; by default all that a ranking can answer.
        random_seeds: of controls that remove heads in a random order, a line each.
        random_layers: where those may remove heads; everywhere by default.
        then: what is done to a pruned model before it is measured, such as fine-tuning (Figure 6).
        then_is: its description, for the journal: results of something else are not taken for its own.
        score: what unknown inputs are told by.
        journal: a file that keeps each measured head set; a killed sweep goes on where it was, and another one of the
            same model and data takes from it what it has.
        batch_size: for data given as tensors.
        progress: show a bar; by default on a terminal.
    """
    check_score(score)
    check_unknown(ood_data)
    if then is not None and journal is not None and not then_is:
        raise AnalysisError("a journal must know what is done to pruned models; describe it in then_is")
    lines = _lines(rankings, keep, random_seeds, random_layers)
    known = as_batches(id_data, batch_size)
    unknown = {name: as_batches(data, batch_size) for name, data in ood_data.items()}
    task: dict[str, Any] = {"analysis": "head-count sweep", "score": score, "then": then_is}
    if journal is not None:  # hashes read all rows and all weights once more
        digests = {name: batches.digest for name, batches in unknown.items()}
        task |= {"model": model_digest(model), "id_data": known.digest, "ood_data": digests}
    book = Journal(journal, task)
    done = {HeadSet.from_json(entry["heads"]): entry["figures"] for entry in book.entries}
    missing = [
        heads for heads in dict.fromkeys(heads for sets in lines.values() for heads in sets) if heads not in done
    ]
    console = Console(stderr=True)
    disable = not (console.is_terminal if progress is None else progress)
    for heads in track(missing, "sweeping head counts", console=console, transient=True, disable=disable):
        started, pruned = time.perf_counter(), prune(model, heads)
        done[heads] = figures_of(pruned if then is None else then(pruned), known, unknown, score)
        seconds = round(time.perf_counter() - started, 3)
        book.append({"heads": heads.to_json(), "figures": done[heads], "seconds": seconds})
    return Sweep(tuple(Point(line, heads, done[heads]) for line, sets in lines.items() for heads in sets), score)


def random_ranking(start: HeadSet, seed: int, layers: Collection[int] | None = None) -> HeadRanking:
    """Heads in a random order; its scores mean nothing and are 0."""
    order = heads_in(start, layers, None)
    random.Random(seed).shuffle(order)
    how = {"method": "random", "seed": seed}
    return HeadRanking(start, tuple(order), (0.0,) * len(order), how=how)


def _lines(
    rankings: Mapping[str, Line], keep: Sequence[int] | None, seeds: Collection[int], layers: Collection[int] | None
) -> dict[str, list[HeadSet]]:
    """By line, the head sets to measure, most heads first."""
    lists = {name: [line] if isinstance(line, HeadRanking) else list(line) for name, line in rankings.items()}
    starts = {ranking.start for line in lists.values() for ranking in line}
    if len(starts) != 1 or not all(lists.values()):
        raise AnalysisError("a sweep takes rankings of one model that start from the same heads, one or more a line")
    for name in lists:
        if name.startswith(RANDOM):
            raise AnalysisError(f"line '{name}' is named like a random control; name it otherwise")
    lines = {name: _head_sets(name, line, keep) for name, line in lists.items()}
    (start,) = starts
    asked = sorted({len(heads) for sets in lines.values() for heads in sets}) if keep is None else keep
    for seed in seeds:
        ranking = random_ranking(start, seed, layers)
        can = [number for number in asked if len(start) - number <= len(ranking)]
        lines[f"{RANDOM}{seed}"] = _head_sets(f"{RANDOM}{seed}", [ranking], can if keep is None else asked)
    return lines


def _head_sets(name: str, rankings: Sequence[HeadRanking], keep: Sequence[int] | None) -> list[HeadSet]:
    if keep is None:
        total = len(rankings[0].start)
        keep = sorted({total - removed for ranking in rankings for removed in _budgets(ranking)})
    return [_keeping(name, rankings, number) for number in sorted(set(keep), reverse=True)]


def _budgets(ranking: HeadRanking) -> Sequence[int]:
    return range(len(ranking) + 1) if ranking.budget is None else (0, ranking.budget)


def _keeping(name: str, rankings: Sequence[HeadRanking], number: int) -> HeadSet:
    """By the first ranking that holds at this number."""
    why: RankingError | None = None
    for ranking in rankings:
        try:
            return ranking.keep(number)
        except RankingError as error:
            why = error
    raise AnalysisError(f"line '{name}' cannot keep {number} heads: {why}")


def _figure(point: Point, name: str, metric: str) -> float:
    sets = point.figures
    if name not in sets or metric not in sets[name]:
        there = ", ".join(sets) if name not in sets else ", ".join(sets[name])
        raise AnalysisError(f"there is no '{metric}' of set '{name}'; there are {there}")
    return sets[name][metric]
