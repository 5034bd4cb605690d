"""`hydra-ens run`: from a recipe to a table, and to JSON."""

import json

import pytest

from kitchen import Kitchen, stocked


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    (tmp_path / "kitchen").mkdir()
    monkeypatch.chdir(stocked(tmp_path / "kitchen"))
    return Kitchen(tmp_path / "kitchen")


def test_a_recipe_runs_by_the_command_and_its_hydra_predicts(kitchen, run):
    path = kitchen.recipe(evaluation__resamples=0)
    first = run("run", str(path))
    assert first.returncode == 0, first.stderr
    assert "evaluation-hydra     started" in first.stderr
    assert "accuracy %" in first.stdout
    assert "wrote runs/tiny  (hydra/, evaluations/, results.json, stages/)" in first.stdout
    again = run("run", str(path), "--json")
    assert again.stderr.count("was done before") == first.stderr.count("started")
    told = json.loads(again.stdout)
    assert set(told["models"]) == set(told["costs"]["models"]) == {"base", "members", "hydra"}
    predicted = run("predict", "runs/tiny/hydra", "near.npz", "--json")
    assert predicted.returncode == 0, predicted.stderr
    rows = [json.loads(line) for line in predicted.stdout.splitlines()]
    assert len(rows) == 12
    assert {row["decision"] for row in rows} <= {"accept", "abstain", "out-of-distribution"}
    # The hydra remembers which unknown inputs its heads were chosen with.
    refused = run("evaluate", "runs/tiny/hydra", "--id-test", "test.npz", "--near", "seen=oodval.npz")
    assert refused.returncode == 1
    assert "seen" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_run_can_stop_after_a_stage(kitchen, run):
    done = run("run", str(kitchen.recipe()), "--until", "members", "--out", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert "stopped after 'members'" in done.stdout
    again = run("run", str(kitchen.recipe()), "--until", "members", "--out", "elsewhere", "--json")
    assert json.loads(again.stdout)["until"] == "members"
    refused = run("run", str(kitchen.recipe()), "--threads", "2", "--gpus", "1")
    assert "--threads and --gpus say what a stage gets on Ray; add --engine ray" in refused.stderr
    assert "stage 'lunch'" in run("run", str(kitchen.recipe()), "--until", "lunch", "--dry-run").stderr
    plan = json.loads(run("run", str(kitchen.recipe()), "--until", "members", "--dry-run", "--json").stdout)
    assert plan[-1]["name"] == "members"
    refused = run("run", str(kitchen.recipe()), "--until", "lunch")
    assert refused.returncode == 1
    assert "there is no stage 'lunch'; this recipe has base, ranking-acc" in refused.stderr


def test_without_a_recipe_the_command_says_so_and_the_schema_is_json(run):
    refused = run("run")
    assert refused.returncode == 1
    assert "name a recipe" in refused.stderr
    schema = run("run", "--schema")
    assert json.loads(schema.stdout)["properties"]["members"]
