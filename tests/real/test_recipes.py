"""The two smoke recipes on real data and weights."""

import pytest

import smoke
from hydra_ensembles.pipeline import Splits, read_recipe
from hydra_ensembles.pipeline.checks import check_fits


@pytest.mark.real
@pytest.mark.parametrize("name", smoke.NAMES)
def test_a_smoke_recipe_fits_its_model_and_data(name, repository, tmp_path, monkeypatch, real_data, real_models):
    monkeypatch.setenv("HYDRA_DATA", str(real_data))
    monkeypatch.setenv("HYDRA_MODELS", str(real_models))
    recipe = read_recipe(repository / "recipes" / f"{name}.yaml")
    check_fits(recipe, Splits(recipe.data, tmp_path / "hashes.json"))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", smoke.NAMES)
def test_a_smoke_recipe_takes_minutes_and_a_second_run_seconds(
    name, tmp_path, monkeypatch, real_data, real_models, repository
):
    monkeypatch.chdir(repository)
    monkeypatch.setenv("HYDRA_DATA", str(real_data))
    monkeypatch.setenv("HYDRA_MODELS", str(real_models))
    found = smoke.measured(name, tmp_path / "out")
    assert found["seconds"]["first_run"] < 600
    assert found["seconds"]["second_run"] < 10
    accuracy = {model: parts["answers"]["id_test"]["accuracy"] for model, parts in found["figures"].items()}
    assert all(0.6 < value < 1 for value in accuracy.values()), accuracy
