"""A kitchen for each test, stocked once."""

import shutil
from pathlib import Path

import pytest

from kitchen import Kitchen, stocked


@pytest.fixture(scope="session")
def ingredients(tmp_path_factory) -> Path:
    return stocked(tmp_path_factory.mktemp("ingredients"))


@pytest.fixture
def kitchen(ingredients, tmp_path, monkeypatch) -> Kitchen:
    """A copy of model and sets in the working directory."""
    place = tmp_path / "kitchen"
    shutil.copytree(ingredients, place)
    monkeypatch.chdir(place)
    return Kitchen(place)
