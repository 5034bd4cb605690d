"""Ray, joined where it runs, else started on this machine alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra_ensembles.errors import HydraError
from hydra_ensembles.optional import import_extra

LOCALHOST = "127.0.0.1"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 it keeps Ray on the loopback interface, on Linux too; Ray reads it when it is first imported."""
_STARTS = 3


class ScaleError(HydraError):
    """Work that cannot be spread as it was asked for."""


@contextmanager
def cluster(cpus: int | None = None) -> Iterator[Any]:
    """Ray, ready for work: the one this process is connected to, the one at `RAY_ADDRESS`, or one of our own.

    One of our own runs on this machine, listens on 127.0.0.1 only, has `cpus` CPUs (all by default) and ends with the
    block.
    """
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts workers at nice 15, for the sake of its own processes; beside anything else they would hardly run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    is_too_late = "ray" in sys.modules and _LOOPBACK not in os.environ
    if not address:
        os.environ.setdefault(_LOOPBACK, "0")
    ray = import_extra("ray", "scale", "work on Ray")
    if ray.is_initialized():
        yield ray
        return
    if is_too_late and not address:
        raise ScaleError(
            "ray was imported before hydra_ensembles could tell it to stay on 127.0.0.1, so it would listen on every "
            f"interface; set {_LOOPBACK}=0 in the environment, or call ray.init() as you want it"
        )
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, **quiet)
    else:
        # "local": else a Ray that anybody started on this machine would be joined.
        _start(ray, address="local", num_cpus=cpus, include_dashboard=False, _node_ip_address=LOCALHOST, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, **settings: Any) -> None:
    """Ray gives itself 30 seconds to start, which a busy machine may not keep; then once more, and once more."""
    for _ in range(_STARTS):
        try:
            ray.init(**settings)
            return
        except Exception as error:  # a bare one
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
    raise ScaleError(
        f"Ray did not start within its 30 seconds, {_STARTS} times over: this machine is too busy; end other work, or "
        "start Ray yourself (ray start --head) and set RAY_ADDRESS"
    )


def is_there() -> bool:
    """Is there a Ray to join, which others may use as well?"""
    return bool(os.environ.get("RAY_ADDRESS")) or ("ray" in sys.modules and sys.modules["ray"].is_initialized())


def workers_of(ray: Any, wanted: int | None, threads: int, gpus: float = 0) -> int:
    """How many workers, with so many threads and GPUs each, the cluster holds; refused where it holds fewer."""
    found = ray.cluster_resources()
    fit = int(found.get("CPU", 0)) // threads
    if gpus:
        fit = min(fit, int(found.get("GPU", 0) / gpus))
    if (wanted or 1) > fit:
        raise ScaleError(
            f"{wanted or 1} workers with {threads} threads{f' and {gpus:g} GPUs' if gpus else ''} each do not fit: Ray "
            f"has {found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"
        )
    return wanted or fit


def result_of(ray: Any, asked: Any) -> Any:
    """What a worker, or each of several, answered; an error of ours is raised as if it had happened here."""
    try:
        return ray.get(asked)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HydraError):
            raise error.cause from None
        raise
