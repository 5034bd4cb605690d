"""Circuits: greedy removal of the head that is missed least (the paper, D.1.2, Algorithm 1).

Three searches. `plain` is Algorithm 1 as printed, the reference. `fast` gives the same answer: it never computes a
prefix of the network twice and runs the candidates of a layer together. `lazy` passes over candidates that can hardly
win; it says what it saved and how sure it is.
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones.backbone import dtype_of
from hydra_ensembles.data import Data
from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.heads import Head, HeadRanking, ablate, own_logits
from hydra_ensembles.optional import made_with
from hydra_ensembles.scoring.candidates import heads_in
from hydra_ensembles.scoring.journal import Journal, JournalError
from hydra_ensembles.scoring.objectives import Outcome, ScoringError, check_objective, outcome, scores
from hydra_ensembles.scoring.racing import Ask, Race
from hydra_ensembles.scoring.working import SearchData, Working, own_copy
from hydra_ensembles.store import tensors_digest

SEARCHES = ("fast", "plain", "lazy")


Engine = Callable[[Working, SearchData, list[list[Tensor]] | None], Ask]
"""Takes the working copy, the data and, by batch, what companions say; returns who answers for the candidates."""


def here(working: Working, data: SearchData, beside: list[list[Tensor]] | None) -> Ask:
    """This process answers."""

    def ask(candidates: Sequence[Head], start: float, end: float) -> tuple[Outcome, Outcome]:
        return working.outcomes(candidates, data.part(start, end), beside, remember=data.is_held)

    return ask


class Step(NamedTuple):
    """One removal: the head, the score without it and before, and what else the journal must know."""

    head: Head
    score: float
    score_before: float
    more: dict[str, Any]


def circuit_ranking(
    model: nn.Module,
    id_data: Data,
    ood_data: Data | None = None,
    objective: str = "avg",
    remove: int = 1,
    *,
    search: str = "fast",
    layers: Collection[int] | None = None,
    towers: Collection[str] | str | None = None,
    journal: str | Path | None = None,
    batch_size: int = 32,
    companions: Sequence[nn.Module] = (),
    risk: float = 0.1,
    engine: Engine | None = None,
    progress: bool | None = None,
) -> HeadRanking:
    """Rank heads by removing, again and again, the one whose absence leaves the highest score.

    Args:
        model: a model of a supported family, or a `Member` (its heads keep the numbers of the backbone it came from).
        id_data: known inputs with labels: tensors, `Batches`, a loader.
        ood_data: unknown inputs; not needed for `objective="acc"`.
        objective: `"acc"` (accuracy), `"ood"` (AUROC of the maximum softmax probability) or `"avg"` (their mean).
        remove: how many heads to remove, at most all candidates but one.
        search: `"fast"` (exact), `"plain"` (Algorithm 1 as printed: slow, the reference) or `"lazy"` (approximate).
        layers: where heads may be removed; everywhere by default.
        towers: likewise: `"vision"`, `"text"`, several, or `"both"`.
        journal: a file that keeps each removal; a killed search with the same journal goes on where it was, and one
            with a larger `remove` goes on from there.
        batch_size: for data given as tensors.
        companions: members that answer together with the candidate; the score is the ensemble's.
        risk: of a lazy search: a candidate is passed over when it is the better one with less than this probability.
        engine: who asks the candidates: this process, or for instance the workers of `hydra_ensembles.scale`.
        progress: show a bar; by default on a terminal.
    """
    data = SearchData(id_data, ood_data, batch_size)
    check_objective(objective, data.unknown is not None)
    if search not in SEARCHES:
        raise ScoringError(f"search '{search}' is not known; known: {', '.join(SEARCHES)}")
    if search == "plain" and engine is not None:
        raise ScoringError("search 'plain' is the reference and runs in this process; with workers take fast or lazy")
    if not 0 < risk < 0.5:
        raise ScoringError(f"risk is a probability between 0 and 0.5, found {risk}")
    working = Working(model)
    candidates = heads_in(working.start, layers, towers)
    if not 1 <= remove < len(candidates):
        raise ScoringError(f"remove={remove}: between 1 and {len(candidates) - 1} of {len(candidates)} heads can go")
    task = {
        "objective": objective,
        "search": search if search != "lazy" else f"lazy, risk {risk}",
        "model": tensors_digest(working.model.state_dict().items()),
        "settings": tensors_digest([], json.dumps(working.backbone.spec(), sort_keys=True)),
        "candidates": [list(head) for head in candidates],
        "companions": [tensors_digest(companion.state_dict().items()) for companion in companions],
        **data.digests,
    }
    book = Journal(journal, task)
    beside = companion_log_probs(companions, data)
    ask = (engine or here)(working, data, beside)
    run: Any
    if search == "plain":
        run = _Plain(model, working, data, objective, beside)
    else:
        run = _Fast(ask, objective) if search == "fast" else _Lazy(ask, objective, risk)
    with _bar(progress, remove) as show:
        for number in range(remove):
            if number < len(book.entries):
                step = _from_entry(book.entries[number])
                if step.head not in candidates:
                    raise JournalError(
                        f"{book.path} removes {step.head} twice, as two searches at once write it; name another file"
                    )
                run.replay(step)
            else:
                started, working.work.block_forwards = time.perf_counter(), 0.0
                step = run.step(candidates)
                cost = {"block_forwards": working.work.block_forwards}
                book.append({**_to_entry(step), **cost, "seconds": round(time.perf_counter() - started, 3)})
            working.remove([step.head])
            candidates.remove(step.head)
            show(number + 1, step)
    taken = [_from_entry(entry) for entry in book.entries[:remove]]
    cost = {name: sum(entry[name] for entry in book.entries[:remove]) for name in ("block_forwards", "seconds")}
    how: dict[str, Any] = {"method": "circuit", **{key: task[key] for key in ("objective", "search", "model")}}
    how |= {**data.digests, "rows": data.num_rows, **cost}
    how["made_with"] = made_with(dtype_of(working.model))
    if search == "lazy":
        how |= {key: max(step.more[key] for step in taken) for key in ("rival", "regret")}
    return HeadRanking(
        working.start,
        tuple(step.head for step in taken),
        tuple(step.score for step in taken),
        taken[0].score_before,
        how=how,
    )


class _Plain:
    """Algorithm 1, line by line, with the model's own forward."""

    def __init__(self, model: nn.Module, working: Working, data: SearchData, objective: str, beside: Any):
        self.subject = own_copy(model)
        self.working, self.data, self.objective, self.beside = working, data, objective, beside
        self.layers = sum(1 for _ in working.backbone.blocks())

    def replay(self, step: Step) -> None:
        pass

    def step(self, candidates: Sequence[Head]) -> Step:
        keep = self.working.keep
        best, chosen = float("-inf"), candidates[0]
        for head in candidates:
            with ablate(self.subject, keep.without([head])):
                score = self._evaluate()
            if score > best:  # strictly: of equal scores the first stays, in (tower, layer, head) order
                best, chosen = score, head
        with ablate(self.subject, keep):
            before = self._evaluate()
        self.working.work.block_forwards += len(candidates) * self.layers * self.data.num_rows
        return Step(chosen, best, before, {})

    @torch.inference_mode()
    def _evaluate(self) -> float:
        found: list[Outcome] = []
        device = self.working.device
        with torch.autocast(device.type, enabled=False):
            for place, batch in enumerate(self.data):
                labels = None if batch.labels is None else batch.labels.to(device)
                logits = own_logits(self.subject, inputs_to(batch.inputs, device))
                found.append(outcome(logits[None], labels, self.beside[place] if self.beside else ()))
        return float(scores(self.objective, Outcome.join(found))[0])


class _Fast:
    """The same scores, each from its own layer on."""

    def __init__(self, ask: Ask, objective: str):
        self.ask, self.objective = ask, objective

    def replay(self, step: Step) -> None:
        pass

    def step(self, candidates: Sequence[Head]) -> Step:
        found, own = self.ask(candidates, 0.0, 1.0)
        points = scores(self.objective, found).tolist()
        best = max(range(len(candidates)), key=points.__getitem__)  # max keeps the first of equals
        return Step(candidates[best], points[best], float(scores(self.objective, own)[0]), {})


class _Lazy:
    """A race on growing parts of the data, entered by those whose last known score says that they can win."""

    def __init__(self, ask: Ask, objective: str, risk: float):
        self.ask, self.race = ask, Race(objective, risk)

    def replay(self, step: Step) -> None:
        self.race.restore(step.head, step.more["memory"])

    def step(self, candidates: Sequence[Head]) -> Step:
        found = self.race.run(candidates, self.ask)
        more = {"rival": found.rival, "regret": found.regret, "memory": self.race.memory_json()}
        return Step(found.winner, found.score, found.score_before, more)


@torch.no_grad()
def companion_log_probs(companions: Sequence[nn.Module], data: SearchData) -> list[list[Tensor]] | None:
    """By batch, each companion's log-probabilities `(B, C)`."""
    if not companions:
        return None
    asked = [own_copy(companion) for companion in companions]
    answers: list[list[Tensor]] = []
    for batch in data:
        row = []
        for companion in asked:
            device = next(companion.parameters()).device
            with torch.autocast(device.type, enabled=False):
                logits = own_logits(companion, inputs_to(batch.inputs, device))
            row.append(logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1))
        answers.append(row)
    return answers


def _to_entry(step: Step) -> dict[str, Any]:
    return {"head": list(step.head), "score": step.score, "score_before": step.score_before, **step.more}


def _from_entry(entry: dict[str, Any]) -> Step:
    known = ("head", "score", "score_before", "block_forwards", "seconds")
    more = {key: value for key, value in entry.items() if key not in known}
    return Step(Head(*entry["head"]), entry["score"], entry["score_before"], more)


@contextmanager
def _bar(wanted: bool | None, total: int) -> Iterator[Callable[[int, Step], None]]:
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda number, step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("removing heads"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)

        def show(number: int, step: Step) -> None:
            head = f"{step.head.tower} layer {step.head.layer} head {step.head.index}"
            bar.update(task, completed=number, description=f"S = {step.score:.4f}  last: {head}")

        yield show
