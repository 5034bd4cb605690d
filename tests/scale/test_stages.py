"""Recipes on Ray: the figures of a run in one process, at once, whatever happens to a worker."""

import json
import os
import shutil
import threading

import pytest

from hydra_ensembles import Hydra
from hydra_ensembles.cli.main import main
from hydra_ensembles.data import DataError
from hydra_ensembles.pipeline import read_recipe, run
from hydra_ensembles.scale import each, run_recipe
from hydra_ensembles.scale.stages import StagesOnRay
from hydra_ensembles.store import tensors_digest
from kitchen import Kitchen, stocked
from ray_workers import signal_one


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    monkeypatch.chdir(stocked(tmp_path))
    return Kitchen(tmp_path)


def figures(done):
    """Everything that a run found out, to the bit."""
    hydra = Hydra.load(done.directory / "hydra")
    return done.results["models"], done.results["compared"], tensors_digest(hydra.state_dict().items()), hydra.fitted


def test_two_workers_find_what_one_process_does(two_cpus, kitchen):
    recipe = read_recipe(kitchen.recipe(threads=1))  # as the workers: two threads add up in another order
    here = run(recipe, kitchen.place / "here", progress=False)
    killed, told = [], []

    def tell(name, what, _):
        told.append((name, what))
        if name == "ranking-avg" and what == "started":
            threading.Thread(target=lambda: killed.append(signal_one("_in_worker"))).start()

    there = run_recipe(recipe, "there", workers=2, tell=tell)
    assert figures(here) == figures(there)
    assert list(there.stages) == list(here.stages)
    assert len(killed) == 1
    happened = [one for one in told if one[0].startswith("ranking-")]
    assert [what for _, what in happened] == ["started", "started", "done", "done"]  # at once
    alone = told.index(("costs", "started"))
    assert told[alone + 1] == ("costs", "done")


def test_the_command_takes_an_engine(two_cpus, kitchen, capsys):
    recipe = str(kitchen.recipe(backbone__finetune=None, finetuning=None))
    with pytest.raises(SystemExit, match="0"):
        main(["run", recipe, "--engine", "ray", "--workers", "1", "--until", "ranking-acc"])
    assert "stopped after 'ranking-acc'" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        main(["run", recipe, "--engine", "sun"])
    assert "--engine sun is not known; known: here, ray" in capsys.readouterr().err


def test_errors_of_stages_are_ours(two_cpus, kitchen):
    recipe = read_recipe(kitchen.recipe(members__number=3, ranking__objectives=["acc", "avg", "ood"]))
    shutil.rmtree(kitchen.place / "there", ignore_errors=True)
    engine = StagesOnRay(two_cpus, 1, 1)

    def tell(name, what, _):
        if what == "started" and name == "base":
            os.remove("train.npz")

    with pytest.raises(DataError, match=r"stage 'base'.*train\.npz"):
        run(recipe, kitchen.place / "there", engine=engine, tell=tell)


def test_a_training_can_share_several_processes(two_cpus, kitchen):
    """As it would share several GPUs."""
    recipe = read_recipe(kitchen.recipe())
    done = run(recipe, kitchen.place / "out", until="base", engine=StagesOnRay(two_cpus, 1, 1, processes=2))
    assert (done.stages["base"] / "model" / "model.safetensors").is_file()
    assert json.loads((done.stages["base"] / "provenance.json").read_text())["stage"] == "base"


def test_each_keeps_the_order(two_cpus):
    assert each(lambda number: number**3, [3, 1, 2]) == [27, 1, 8]
