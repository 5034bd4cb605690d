"""Shares in a recipe: of heads, and of blocks that members share."""

import json

import pytest

from hydra_ensembles import HeadSet
from hydra_ensembles.pipeline import RecipeError, parse_recipe, planned, read_recipe, run
from hydra_ensembles.pipeline.checks import counted
from hydra_ensembles.pipeline.plan import estimates
from kitchen import Kitchen, stocked


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Kitchen(stocked(tmp_path))


@pytest.mark.parametrize(
    ("keep", "trunk", "expected"),
    [("2/3", 0, (8, 0)), (9, "1/3", (9, 1)), ("3/4", "2/3", (3, 2)), ("1/2", "1/2", (4, 1)), (9, 0, (9, 0))],
)
def test_shares_are_counted_on_the_model(keep, trunk, expected, kitchen):
    """Three blocks of four heads; a share of blocks is rounded down."""
    found = counted(read_recipe(kitchen.recipe(members__keep=keep, members__trunk=trunk))).members
    assert (found.kept, found.shared) == expected


def test_a_share_and_its_number_are_the_same_run(kitchen):
    first, second = (
        [one.key for one in planned(read_recipe(kitchen.recipe(members__keep=keep)))] for keep in ("3/4", 9)
    )
    assert first == second


def test_a_recipe_with_shares_is_planned_and_run(kitchen):
    recipe = read_recipe(kitchen.recipe(members__keep="3/4", members__trunk="1/3"))
    assert all(one.forwards >= 0 for one in estimates(recipe, planned(recipe)))
    found = run(recipe, until="members")
    (members,) = [path for name, path in found.stages.items() if name == "members"]
    sets = [HeadSet.from_json(one) for one in json.loads((members / "selection.json").read_text())["members"]]
    assert {len(one) for one in sets} == {4 + 6}


@pytest.mark.parametrize(("field", "value"), [("keep", "half"), ("keep", "0/3"), ("trunk", "1.5"), ("keep", 0)])
def test_what_is_no_share_is_refused_by_name(field, value, kitchen):
    text = kitchen.recipe(**{f"members__{field}": value}).read_text()
    with pytest.raises(RecipeError, match=rf"members\.{field}"):
        parse_recipe(text)
