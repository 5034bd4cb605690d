"""The plan of a run: what is done, what is left, and what it is expected to cost."""

import json

import pytest

from hydra_ensembles.cli.main import main
from hydra_ensembles.pipeline import planned, read_recipe, run
from hydra_ensembles.pipeline.plan import estimates
from kitchen import SETS


def test_the_costs_of_a_plan_are_those_counted_by_hand(kitchen):
    recipe = read_recipe(kitchen.recipe(evaluation__detectors=True))
    found = {one.name: one for one in estimates(recipe, planned(recipe, "out"))}
    tests = 2 * SETS["test"] + SETS["near"] + SETS["far"]  # the test set twice: as it is, and under one shift
    assert found["base"].forwards == 3 * 4 * 8 + 12  # four steps of eight, forward and backward; one look at 12 rows
    assert found["member-0"].forwards == 3 * 4 * 8 + 2 * 12
    assert found["ranking-acc"].forwards == pytest.approx(0.45 * (12 + 11 + 10) * 12)  # unknown inputs are not asked
    assert found["ranking-avg"].forwards == pytest.approx(0.45 * (12 + 11 + 10) * (12 + 12))
    assert found["temperature-members"].forwards == 2 * 12
    assert found["members"].forwards == found["fusion"].forwards == found["results"].forwards == 0
    assert found["evaluation-base"].forwards == tests + SETS["train"]
    assert found["evaluation-members"].forwards == 2 * tests
    assert 1 < found["evaluation-hydra"].forwards / tests < 2  # fewer heads, and a last block that is only read
    shares = 1 + 2 + found["evaluation-hydra"].forwards / tests
    assert found["costs"].forwards == pytest.approx((2 + 3) * 2 * shares)  # two rounds do not count; two inputs a round
    speed = {one.seconds / one.forwards for one in found.values() if one.forwards}
    assert max(speed) == pytest.approx(min(speed))
    assert min(speed) > 0


def test_without_latency_costs_are_only_counted(kitchen):
    recipe = read_recipe(kitchen.recipe(evaluation__latency_rounds=0))
    found = {one.name: one.forwards for one in estimates(recipe, planned(recipe, "out"))}
    assert found["costs"] == 0


def test_a_dry_run_does_nothing_and_says_what_is_done(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = kitchen.recipe()
    run(read_recipe(path), "out", until="members", progress=False)
    with pytest.raises(SystemExit) as done:
        main(["run", str(path), "--out", "out", "--dry-run", "--json"])
    assert done.value.code == 0
    states = {one["name"]: one["is_done"] for one in json.loads(capsys.readouterr().out)}
    assert [name for name, is_done in states.items() if is_done] == ["base", "ranking-acc", "ranking-avg", "members"]
    assert not (kitchen.place / "out" / "hydra").exists()
    with pytest.raises(SystemExit):
        main(["run", str(path), "--out", "out", "--dry-run"])
    shown = capsys.readouterr().out
    assert "left to do" in shown
    assert "id_val, ood_val, id_cal, tests" in shown
