"""Several processes at the same units, each with one thread."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from evidence.units import Units

_WORKER = "HYDRA_EVIDENCE_WORKER"


def run(plans: Mapping[Units, Sequence[str]], workers: int, minutes: float | None) -> None:
    """Work as one of the workers, or start them and wait; the same command again goes on where it was.

    `plans` are the wanted units of one benchmark, or of several, one after another.
    """
    if is_worker():
        torch.set_num_threads(1)
        stop_at = float(os.environ[_WORKER])
        for units, wanted in plans.items():
            units.run(wanted, stop_at or None)
        return
    stop_at = 0.0 if minutes is None else time.time() + 60 * minutes
    environment = {**os.environ, _WORKER: str(stop_at), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, *sys.argv], env=environment) for _ in range(workers)]
    codes = [one.wait() for one in running]
    left = [one for units, wanted in plans.items() for one in units.needed(wanted) if not units.is_done(one)]
    print(f"{len(left)} units are left" if left else "all is done")
    if any(codes):
        raise SystemExit(f"a worker failed: {codes}")


def is_worker() -> bool:
    """Is this process one of those that were started?"""
    return _WORKER in os.environ


def argument(name: str, default: float | None, read: Callable[[str], float] = float) -> float | None:
    """`--name VALUE` of the command line."""
    return read(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else default


def hours(units: Units) -> float:
    """How long all finished units took, one after another on one thread."""
    return sum(float(units.done(name)["seconds"]) for name in units.units if units.is_done(name)) / 3600
