"""One Ray for the tests of a process: two CPUs, on 127.0.0.1 only."""

from importlib.util import find_spec

import pytest

from hydra_ensembles.scale.cluster import cluster

if find_spec("ray") is None:
    pytest.skip("the 'scale' extra is not installed", allow_module_level=True)


@pytest.fixture(scope="session")
def two_cpus():
    with cluster(2) as started:
        yield started
