"""Circuit search by many workers: shards are the local search's batches, so the ranking is the same.

Workers hold the backbone and are told with every shard which heads are left, so that one that died and was started
again by Ray catches up by itself. The driver keeps the greedy state and the journal; a dead driver goes on from there,
on Ray or without it.
"""

import copy
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles import scoring
from hydra_ensembles.data import Batch, Data
from hydra_ensembles.heads import Head, HeadRanking, HeadSet
from hydra_ensembles.scale.cluster import cluster, result_of, workers_of
from hydra_ensembles.scoring.objectives import Outcome
from hydra_ensembles.scoring.racing import Ask
from hydra_ensembles.scoring.working import SearchData, Working

LATE, LATE_S = 4.0, 30.0
"""A shard that takes so many times the median, and so many seconds, is given to an idle worker as well."""
Shard = tuple[Outcome, Outcome, float]
"""The candidates' outcomes, that of the network as it is, and block forwards."""


def circuit_ranking(
    model: nn.Module,
    id_data: Data,
    ood_data: Data | None = None,
    objective: str = "avg",
    remove: int = 1,
    *,
    workers: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    **options: Any,
) -> HeadRanking:
    """`hydra_ensembles.circuit_ranking` on Ray: the same ranking as there with the same threads.

    Args:
        model: see `hydra_ensembles.circuit_ranking`, as for `id_data`, `ood_data`, `objective`, `remove` and all other
            options. A family of your own must be registered in the workers too (Ray's `worker_process_setup_hook`).
        id_data: see `model`.
        ood_data: see `model`.
        objective: see `model`.
        remove: see `model`.
        workers: how many; as many as Ray has room for by default.
        threads: CPU threads of each.
        gpus: of each; a share below 1 lets several workers use one.
        options: see `model`.
    """
    with cluster(None if workers is None else workers * threads) as ray:
        number = workers_of(ray, workers, threads, gpus)

        def engine(working: Working, data: SearchData, beside: list[list[Tensor]] | None) -> Ask:
            return Crew(ray, model, number, threads, gpus, working, data, beside).ask

        return scoring.circuit_ranking(model, id_data, ood_data, objective, remove, engine=engine, **options)


class Searcher:
    """What a worker holds: the backbone, as far as it is pruned."""

    def __init__(self, threads: int, has_gpu: bool):
        torch.set_num_threads(threads)
        self.has_gpu = has_gpu
        self.working: Working | None = None

    def ready(self, held: list[Any]) -> Working:
        """The copy of the model, fetched at the first call after a start."""
        import ray

        if self.working is None:
            model: nn.Module = ray.get(held[0])
            self.working = Working(model.cuda() if self.has_gpu else model)
        return self.working

    def start(self, held: list[Any]) -> None:
        """Fetch the model before the first shard comes."""
        self.ready(held)

    def outcomes(
        self, held: list[Any], keep: HeadSet, candidates: Sequence[Head], shard: tuple[Batch, list[Tensor] | None]
    ) -> Shard:
        """One batch."""
        working, (batch, beside) = self.ready(held), shard
        working.remove(set(working.keep) - set(keep))
        working.work.block_forwards = 0.0
        found, own = working.outcomes(candidates, [(0, batch)], None if beside is None else [beside])
        return found.cpu(), own.cpu(), working.work.block_forwards  # a driver may have no GPU


class Crew:
    """The driver's side: hands out shards, one a worker at a time, and joins what comes back in the data's order."""

    def __init__(
        self,
        ray: Any,
        model: nn.Module,
        number: int,
        threads: int,
        gpus: float,
        working: Working,
        data: SearchData,
        beside: list[list[Tensor]] | None,
    ):
        self.ray, self.working, self.data = ray, working, data
        # Ray starts a dead worker again and sends it again what it was asked.
        options = {"num_cpus": threads, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": -1}
        # In a list Ray hands on the reference as it is; it comes with every shard, for workers that are started again.
        self.model = [ray.put(copy.deepcopy(model).cpu())]
        searcher = ray.remote(Searcher).options(**options)
        self.workers = [searcher.remote(threads, gpus > 0) for _ in range(number)]
        result_of(ray, [worker.start.remote(self.model) for worker in self.workers])
        self.shards = [ray.put((batch, None if beside is None else beside[m])) for m, batch in enumerate(data)]
        self.running: dict[Any, tuple[Any, int, int, float]] = {}
        """By what is awaited: the worker, the question, the shard, and since when."""
        self.question = 0

    def ask(self, candidates: Sequence[Head], start: float, end: float) -> tuple[Outcome, Outcome]:
        """The outcomes on a part of the data."""
        self.question += 1
        places = self.data.places(start, end)
        waiting, found, took = list(places), dict[int, Shard](), list[float]()
        while len(found) < len(places):
            busy = {id(worker) for worker, *_ in self.running.values()}
            for worker in self.workers:
                if id(worker) not in busy and (place := self._next(waiting, found, took)) is not None:
                    asked = worker.outcomes.remote(self.model, self.working.keep, list(candidates), self.shards[place])
                    self.running[asked] = (worker, self.question, place, time.monotonic())
            ready, _ = self.ray.wait(list(self.running), timeout=1.0)
            for asked in ready:
                _, question, place, since = self.running.pop(asked)
                if question == self.question and place not in found:
                    found[place] = result_of(self.ray, asked)
                    took.append(time.monotonic() - since)
        shards = [found[place] for place in places]
        self.working.work.block_forwards += sum(work for *_, work in shards)
        return Outcome.join([one for one, *_ in shards], len(candidates)), Outcome.join([own for _, own, _ in shards])

    def _next(self, waiting: list[int], found: dict[int, Shard], took: list[float]) -> int | None:
        """The next shard, or one that somebody is late with."""
        if waiting:
            return waiting.pop(0)
        now, patience = time.monotonic(), max(LATE_S, LATE * median(took)) if took else LATE_S
        asked_twice = [place for _, question, place, _ in self.running.values() if question == self.question]
        for _, question, place, since in self.running.values():
            is_late = question == self.question and place not in found and now - since > patience
            if is_late and asked_twice.count(place) == 1:
                return place
        return None
