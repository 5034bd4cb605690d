"""One Ray for the tests of a file: two CPUs, on 127.0.0.1 only."""

import fcntl
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hydra_ensembles.scale.cluster import cluster

if find_spec("ray") is None:
    pytest.skip("the 'scale' extra is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def two_cpus():
    """Another process of the tests waits for its own: two Rays are too much for two cores to start in time."""
    with (Path(tempfile.gettempdir()) / "hydra-ensembles-ray.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        with cluster(2) as started:
            yield started
