"""Settings of every test, and where the real data and weights are."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, settings

phases = [Phase.explicit, Phase.generate, Phase.shrink]
settings.register_profile("ours", deadline=None, max_examples=12, derandomize=True, phases=phases)
settings.load_profile("ours")
torch.set_num_threads(1)  # of fixtures that are made before the first test, too

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The models are tiny: a second thread only waits for the first. A test before may have asked for more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


def _real(variable: str, default: str) -> Path:
    directory = Path(os.environ.get(variable) or REPOSITORY.parent / "shared" / default)
    if not directory.is_dir():
        pytest.skip(f"{directory} is not there; set {variable} to the directory with the real {default}")
    return directory


@pytest.fixture(scope="session")
def real_data() -> Path:
    return _real("HYDRA_DATA", "data")


@pytest.fixture(scope="session")
def real_models() -> Path:
    return _real("HYDRA_MODELS", "models")
