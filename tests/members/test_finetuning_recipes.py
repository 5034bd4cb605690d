"""The paper's recipes are data, and a learning rate is a function of the step."""

import json
import math
from dataclasses import replace

import pytest

from hydra_ensembles.members.recipes import RECIPES, FineTuningError, Recipe, rate_at, recipe_named

PLAIN = Recipe("plain", learning_rate=2.0, steps=100)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name):
    recipe = RECIPES[name]
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert recipe_named(name) is recipe
    assert recipe.name == name


def test_numbers_of_the_paper():
    """D.2, C.1.2, C.1.3 and C.2, typed again from the paper."""
    imagenet, cifar, head, sst2 = (RECIPES[name] for name in ("imagenet", "cifar100", "cifar100-head", "sst2"))
    assert (imagenet.warm_up, imagenet.steps, imagenet.floor) == (5_000, 120_000, 1e-5)
    assert (imagenet.label_smoothing, imagenet.dropout, imagenet.optimiser) == (0.1, 0.1, "sgd")
    assert imagenet.learning_rate_grid == (0.003, 0.01, 0.03, 0.06)
    assert (cifar.warm_up, cifar.steps, cifar.floor, cifar.label_smoothing) == (500, 10_000, 1e-5, 0.1)
    assert (cifar.train_last_blocks, cifar.zero_head, cifar.head_only) == (5, True, False)
    assert (head.train_last_blocks, head.zero_head, head.head_only) == (None, True, True)
    assert (sst2.learning_rate, sst2.warm_up, sst2.decay, sst2.clip_norm) == (1e-5, 0.1, "linear", 1.0)
    assert (sst2.optimiser, sst2.label_smoothing, sst2.dropout) == ("adamw", 0.0, None)
    base = RECIPES["sst2-base"]
    assert (base.learning_rate, base.weight_decay, base.epochs, base.patience, base.min_delta) == (
        8e-6,
        0.01,
        7,
        2,
        5e-4,
    )
    for name, steps in {"imagenet-base": 20_000, "cifar100-base": 10_000}.items():
        recipe = RECIPES[name]
        assert (recipe.steps, recipe.warm_up, recipe.momentum, recipe.weight_decay) == (steps, 500, 0.9, 0.0)
        assert recipe.learning_rate in recipe.learning_rate_grid
    for name, recipe in RECIPES.items():
        assert recipe.freeze_stem == (not name.endswith("-base"))


def test_the_rate_rises_to_its_peak_and_falls_to_its_floor():
    for decay in ("cosine", "linear"):
        recipe = replace(PLAIN, warm_up=20, decay=decay, floor=0.1)
        assert rate_at(0, 100, recipe) == pytest.approx(2.0 / 20)
        assert rate_at(9, 100, recipe) == pytest.approx(1.0)
        assert rate_at(19, 100, recipe) == rate_at(20, 100, recipe) == 2.0
        assert rate_at(60, 100, recipe) == pytest.approx(2.0 * 0.55)  # half-way, both decays stand in the middle
        assert rate_at(100, 100, recipe) == pytest.approx(0.2)
        rates = [rate_at(step, 100, recipe) for step in range(20, 101)]
        assert rates == sorted(rates, reverse=True)
    quarter = rate_at(40, 100, replace(PLAIN, warm_up=20, decay="cosine"))
    assert quarter == pytest.approx(1 + math.cos(math.pi / 4))
    assert rate_at(40, 100, replace(PLAIN, warm_up=20, decay="linear")) == pytest.approx(1.5)
    assert rate_at(99, 100, replace(PLAIN, decay="none")) == 2.0


def test_a_warm_up_may_be_a_fraction():
    fraction, steps = replace(PLAIN, warm_up=0.1), replace(PLAIN, warm_up=10)
    assert [rate_at(step, 100, fraction) for step in range(100)] == [rate_at(step, 100, steps) for step in range(100)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epochs": 3}, "either epochs or steps"),
        ({"steps": None}, "either epochs or steps"),
        ({"optimiser": "lion"}, "'adamw', 'sgd'"),
        ({"decay": "step"}, "'cosine', 'linear', 'none'"),
        ({"precision": "fp16"}, "'fp32', 'bf16'"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"batch_size": 0}, "above 0"),
        ({"warm_up": -1}, "negative"),
        ({"train_last_blocks": -1}, "train_last_blocks must not be negative"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(change, said):
    with pytest.raises(FineTuningError, match=said):
        replace(PLAIN, **change)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("learning_rate", "1e-3", "learning_rate must be a number, found '1e-3'; YAML takes 1e-3 for text"),
        ("learning_rate_grid", [0.1, "1e-3"], r"learning_rate_grid must be a list of numbers, found \[0.1, '1e-3'\]"),
        ("learning_rate_grid", 0.1, "learning_rate_grid must be a list of numbers, found 0.1"),
        ("steps", [3], r"steps must be a number, found \[3\]"),
        ("batch_size", None, "batch_size must be a number, found None"),
        ("freeze_stem", "false", "freeze_stem must be true or false, found 'false'"),
    ],
)
def test_a_field_of_another_kind_says_what_it_must_be(field, value, said):
    with pytest.raises(FineTuningError, match=said):
        Recipe.from_json({**PLAIN.to_json(), field: value})


def test_unknown_names_list_the_known():
    with pytest.raises(FineTuningError, match=r"no recipe 'sst3'; there are .*sst2"):
        recipe_named("sst3")
    with pytest.raises(FineTuningError, match=r"no 'epoch'; it has .*epochs"):
        Recipe.from_json({"name": "x", "learning_rate": 1.0, "epoch": 2})
    with pytest.raises(FineTuningError, match="'learning_rate'"):
        Recipe.from_json({"name": "x", "steps": 2})


def as_markdown():
    """The table of recipes in docs/finetuning.md; `python tests/members/test_finetuning_recipes.py` prints it."""
    lines = ["| | optimiser | rate | warm-up | decay | length | smoothing, dropout, clip | stops | trains |"]
    lines.append("|---" * 9 + "|")
    for name, recipe in RECIPES.items():
        rest = {"smoothing": recipe.label_smoothing, "dropout": recipe.dropout, "clip": recipe.clip_norm}
        if recipe.patience is None:
            stops = "never"
        else:
            stops = f"{recipe.stop_on}, patience {recipe.patience}"
        if recipe.head_only:
            trains = "classifier"
        elif recipe.train_last_blocks is not None:
            trains = f"last {recipe.train_last_blocks} blocks, readout"
        else:
            trains = "all but the stem" if recipe.freeze_stem else "all"
        cells = [
            f"`{name}`",
            f"{recipe.optimiser}, weight decay {recipe.weight_decay:g}, batch {recipe.batch_size}",
            f"{recipe.learning_rate:g}"
            + (f" of {list(recipe.learning_rate_grid)}" if recipe.learning_rate_grid else ""),
            f"{recipe.warm_up:.0%}" if recipe.warm_up < 1 else f"{recipe.warm_up:,}",
            f"{recipe.decay} to {recipe.floor:g}",
            f"{recipe.epochs} epochs" if recipe.epochs else f"{recipe.steps:,} steps",
            ", ".join(f"{what} {value:g}" for what, value in rest.items() if value is not None),
            stops,
            trains + (", classifier from zero" if recipe.zero_head else ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_in_the_docs_is_that_of_the_recipes(repository):
    page = (repository / "docs" / "finetuning.md").read_text()
    assert f"<!-- recipes -->\n{as_markdown()}\n<!-- /recipes -->" in page


if __name__ == "__main__":
    print(as_markdown())
