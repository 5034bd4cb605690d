"""A hydra to a hub and back, through huggingface_hub itself, against a hub on this machine."""

import os
import subprocess
import sys

import pytest
import torch

from fake_hub import fake_hub
from families import BY_NAME, model_of
from hydra_ensembles import HeadSet, Hydra, fuse, prune
from hydra_ensembles.store import StoreError
from patience import PATIENCE_S

PUSH = """
import sys
from hydra_ensembles import Hydra
hydra = Hydra.load(sys.argv[1])
print(hydra.push_to_hub("me/tiny", card="# Tiny", token="hf_secret"))
Hydra.load(sys.argv[2]).push_to_hub("me/tiny", revision="try", private=True, token="hf_secret")
"""
FETCH = """
import sys
from hydra_ensembles import Hydra
Hydra.from_pretrained("me/tiny", revision=sys.argv[2]).save(sys.argv[1])
"""


def run(script, address, home, *arguments):
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def hydra():
    model = model_of("timm")
    return fuse([prune(model, HeadSet.sample(model, keep=8, seed=seed)) for seed in range(2)])


def test_a_hydra_comes_back_from_a_hub_to_the_bit(hydra, tmp_path):
    hydra.save(tmp_path / "mine")
    other = fuse([prune(model_of("timm"), HeadSet.sample(model_of("timm"), keep=6, seed=seed)) for seed in range(2)])
    other.save(tmp_path / "other")
    with fake_hub() as (address, repos):
        pushed = run(PUSH, address, tmp_path / "home", tmp_path / "mine", tmp_path / "other")
        assert pushed.returncode == 0, pushed.stderr
        assert pushed.stdout.startswith(f"{address}/me/tiny/commit/")
        assert sorted(repos["me/tiny"]["main"]) == ["README.md", "config.json", "model.safetensors"]
        assert repos["me/tiny"]["main"]["README.md"] == b"# Tiny"
        assert "try" in repos["me/tiny"]
        for branch in ("main", "try"):
            fetched = run(FETCH, address, tmp_path / "home", tmp_path / branch, branch)
            assert fetched.returncode == 0, fetched.stderr
    images = BY_NAME["timm"].inputs(2, 0, 0)
    with torch.no_grad():
        assert torch.equal(Hydra.load(tmp_path / "main").members(images), hydra.members(images))
        assert torch.equal(Hydra.load(tmp_path / "try").members(images), other.members(images))


def test_without_a_right_to_write_the_hub_is_named(hydra, tmp_path):
    hydra.save(tmp_path / "mine")
    with fake_hub(token="another") as (address, _):
        found = run(PUSH, address, tmp_path / "home", tmp_path / "mine", tmp_path / "mine")
    assert found.returncode != 0
    assert "StoreError: 'me/tiny' cannot be written on the hub" in found.stderr


def test_what_is_not_there_is_said(tmp_path):
    with fake_hub() as (address, _):
        found = run(FETCH, address, tmp_path / "home", tmp_path / "theirs", "main")
    assert "StoreError: 'me/tiny' is not on this disk and cannot be fetched" in found.stderr
    with pytest.raises(StoreError, match="not a directory, and not 'owner/name' on a hub"):
        Hydra.from_pretrained(tmp_path / "nothing")
    with pytest.raises(StoreError, match="not a directory, and not 'owner/name' on a hub"):
        Hydra.from_pretrained("./runs/nothing")


def test_a_directory_is_read_as_it_is(hydra, tmp_path):
    again = Hydra.from_pretrained(hydra.save(tmp_path / "mine"))
    images = BY_NAME["timm"].inputs(2, 0, 0)
    with torch.no_grad():
        assert torch.equal(again.members(images), hydra.members(images))
