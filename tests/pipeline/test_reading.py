"""Reading a recipe: an error names the line and what is allowed there; the schema says what the reader takes."""

import json

import pytest
import yaml

from hydra_ensembles.members import RECIPES
from hydra_ensembles.pipeline import RecipeError, RunRecipe, parse_recipe, read_recipe
from kitchen import RECIPE

TEXT = yaml.safe_dump(RECIPE, sort_keys=False)


def line_of(text, start):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


def test_a_recipe_is_read_with_its_usual_values():
    recipe = parse_recipe(TEXT)
    assert recipe.members.how == "objectives"
    assert recipe.fusion.mlp == "average"
    settings = recipe.finetuning.settings(7)
    assert (settings.steps, settings.epochs, settings.seed) == (4, None, 7)
    assert settings.train_last_blocks == 2
    assert settings.label_smoothing == RECIPES["cifar100"].label_smoothing


@pytest.mark.parametrize(
    ("found", "instead", "where", "told"),
    [
        ("search: fast", "search: quick", "search:", "ranking.search is 'quick'; allowed: 'fast', 'lazy' or 'plain'"),
        ("  keep: 9", "  kept: 9", "members:", "'members' must say 'keep'"),
        ("  number: 2", "  numbr: 2", "numbr:", "did you mean 'number'?); it may say keep, number, how, trunk, pool"),
        ("seed: 3", "seed: three", "seed:", "seed is 'three': input should be a valid integer"),
        ("  coverage: 0.7", "  coverage: 1.5", "coverage:", "decisions.coverage is 1.5: input should be less than 1"),
        ("recipe: cifar100-base", "recipe: cifar", "recipe:", "allowed: 'imagenet-base', 'cifar100-base'"),
        ("  - acc", "  - accuracy", "- accuracy", "ranking.objectives.0 is 'accuracy'; allowed: 'acc', 'ood' or 'avg'"),
    ],
)
def test_an_error_names_the_line_and_what_is_allowed(found, instead, where, told):
    assert found in TEXT
    text = TEXT.replace(found, instead, 1)
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "recipe.yaml")
    assert told in str(error.value)
    assert str(error.value).startswith(f"recipe.yaml line {line_of(text, where)}: ")
    assert "\n" not in str(error.value)


def test_null_means_none_where_none_is_allowed_and_is_refused_elsewhere():
    settings = {**RECIPE["finetuning"], "train_last_blocks": None}
    read = parse_recipe(yaml.safe_dump(RECIPE | {"finetuning": settings}))
    assert RECIPES["cifar100"].train_last_blocks is not None
    assert read.finetuning.settings(0).train_last_blocks is None
    with pytest.raises(RecipeError, match="learning_rate"):
        parse_recipe(yaml.safe_dump(RECIPE | {"finetuning": {**settings, "learning_rate": None}}))


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(RecipeError, match=r"line \d+: 'seed' stands here and in line 2; keep one"):
        parse_recipe(TEXT + "seed: 4\n")


def test_a_day_that_no_month_has_is_one_line():
    with pytest.raises(RecipeError, match="not YAML: day is out of range"):
        parse_recipe("name: 2026-02-30")


def test_the_schema_in_the_repository_is_the_readers_own(repository):
    written = json.loads((repository / "recipes" / "recipe.schema.json").read_text())
    assert written == RunRecipe.model_json_schema(), "renew it: hydra-ens run --schema > recipes/recipe.schema.json"


@pytest.mark.parametrize("name", ["text-smoke", "vision-smoke", "zero-shot"])
def test_the_recipes_in_the_repository_can_be_read(repository, name):
    path = repository / "recipes" / f"{name}.yaml"
    assert read_recipe(path).name == name
    assert "$schema=recipe.schema.json" in path.read_text()
