"""Stages of recipes on Ray: rankings, members and evaluations at once, each with resources of its own.

Workers and driver see the same files: a run's directory, the data and the model lie on a shared disk.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra_ensembles.errors import HydraError
from hydra_ensembles.pipeline import Run, RunRecipe, run
from hydra_ensembles.pipeline.running import Tell, output_of
from hydra_ensembles.pipeline.stage import Stage
from hydra_ensembles.scale.cluster import ScaleError, cluster, result_of, workers_of


def run_recipe(
    recipe: RunRecipe,
    output: str | Path | None = None,
    *,
    until: str | None = None,
    workers: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    tell: Tell | None = None,
) -> Run:
    """`hydra_ensembles.pipeline.run` on Ray: stages that do not wait for one another run at once.

    Args:
        recipe: from `read_recipe`. Its `threads` are not used.
        output: a directory that all workers see.
        until: the last stage to run.
        workers: how many stages at once; as many as Ray has room for by default.
        threads: CPU threads of a stage.
        gpus: of a stage, which computes there; of more than one, a training shares its batches among them through
            Accelerate.
        tell: is told of every stage.
    """
    with cluster(None if workers is None else workers * threads) as ray:
        engine = StagesOnRay(ray, workers_of(ray, workers, threads, gpus), threads, gpus)
        own_threads = recipe.model_copy(update={"threads": threads})
        where, device = output_of(recipe, output).absolute(), "cuda" if gpus else "cpu"
        return run(own_threads, where, until=until, engine=engine, tell=tell, device=device)


class StagesOnRay:
    """An engine of `pipeline.run`: every stage a task, which Ray starts again elsewhere if its worker dies."""

    def __init__(self, ray: Any, at_once: int, threads: int, gpus: float = 0, processes: int | None = None):
        self.ray, self.at_once = ray, at_once
        self.processes = max(1, int(gpus)) if processes is None else processes
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": -1}
        self.remote = ray.remote(_in_worker).options(**options)
        self.running: dict[Any, str] = {}

    def start(self, stage: Stage, job: Callable[[], None]) -> None:
        """Begin a stage."""
        processes = self.processes if stage.trains else 1
        self.running[self.remote.remote(pickle.dumps(job), str(Path.cwd()), processes)] = stage.name

    def finished(self) -> str:
        """Wait for one that was begun."""
        (asked, *_), _ = self.ray.wait(list(self.running))
        result_of(self.ray, asked)
        return self.running.pop(asked)


def _in_worker(job: bytes, directory: str, processes: int) -> None:
    """One job; what is in the recipe is relative to the driver's directory."""
    os.chdir(directory)
    if processes == 1:
        pickle.loads(job)()
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job.pickle"
        path.write_bytes(job)
        launcher = ["-m", "accelerate.commands.launch", "--num_processes", str(processes), "--main_process_port", "0"]
        done = subprocess.run(
            [sys.executable, *launcher, *_device(), "-m", "hydra_ensembles.scale.stages", str(path)],
            stderr=subprocess.PIPE,
            text=True,
        )
    if done.returncode:
        raise ScaleError(f"a training in {processes} processes failed: {done.stderr[-2000:]}")


def _device() -> Sequence[str]:
    import torch

    return ["--multi_gpu"] if torch.cuda.is_available() else ["--cpu"]


def each(function: Callable[[Any], Any], items: Sequence[Any], *, threads: int = 1, gpus: float = 0) -> list[Any]:
    """`function` of every item, each in a worker of its own, for seeds and baselines; results in the items' order.

    >>> each(str.upper, ["a", "b"])  # doctest: +SKIP
    ['A', 'B']
    """
    with cluster() as ray:
        workers_of(ray, 1, threads, gpus)
        remote = ray.remote(lambda item: function(item))
        asked = [remote.options(num_cpus=threads, num_gpus=gpus, max_retries=-1).remote(item) for item in items]
        return [result_of(ray, one) for one in asked]


if __name__ == "__main__":  # one of the processes of a launcher
    try:
        pickle.loads(Path(sys.argv[1]).read_bytes())()
    except HydraError as error:
        sys.exit(f"{type(error).__name__}: {error}")
