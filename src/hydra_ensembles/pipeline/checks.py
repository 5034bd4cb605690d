"""What can be wrong is looked for before hours of work: shapes, labels, shifts, budgets, rows that are shared."""

import warnings
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from hydra_ensembles.backbones.references import load_model, settings_for_classes
from hydra_ensembles.data import Batches, DataError
from hydra_ensembles.data.loading import classes_of, labels_for
from hydra_ensembles.errors import HydraError, HydraWarning
from hydra_ensembles.evaluation import Protocol
from hydra_ensembles.evaluation.shift import parse_shift
from hydra_ensembles.heads import HeadSet, name_classes
from hydra_ensembles.members.recipes import Recipe
from hydra_ensembles.optional import MissingExtra
from hydra_ensembles.pipeline.budget import behind_trunk, lost, may_go, ranked
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import Splits
from hydra_ensembles.uncertainty.known_rows import rank_of


class RecipeMismatch(HydraError):
    """A recipe that does not fit its model or its data."""


def check_fits(recipe: RunRecipe, splits: Splits) -> None:
    """Does the recipe fit the shape of its model, and do its sets fit the model and each other?"""
    for library in ("torchmetrics", "torch_uncertainty"):
        if find_spec(library) is None:
            raise MissingExtra("evaluating needs the 'eval' extra: pip install 'hydra-ensembles[eval]'")
    recipe = counted(recipe)
    model = _shape(recipe)
    name_classes(model, splits.classes)
    check_heads(recipe, model)
    batches = {name: _prepared(splits, name, model) for name in splits.references}
    for shift in recipe.data.shifts:
        parse_shift(shift, splits.rows("id_test").kind)
    if recipe.decisions is not None:
        check_promise(recipe, batches)
    protocol = Protocol(
        batches["id_test"],
        {name: batches[f"near/{name}"] for name in recipe.data.near},
        {name: batches[f"far/{name}"] for name in recipe.data.far},
        id_val=batches["id_val"],
        ood_val=batches.get("ood_val"),
        id_cal=batches.get("id_cal"),
        id_train=batches.get("train"),
        allow_seen=recipe.data.allow_seen,
    )
    for told in protocol.seen:
        warnings.warn(told, HydraWarning, stacklevel=2)


def counted(recipe: RunRecipe) -> RunRecipe:
    """The recipe with numbers in the place of shares, by the shape of its model."""
    members = recipe.members
    if isinstance(members.keep, int) and isinstance(members.trunk, int):
        return recipe
    heads = HeadSet.all(_shape(recipe))
    depth = min(len(layers) for layers in heads.kept)
    trunk = members.trunk if isinstance(members.trunk, int) else int(Fraction(members.trunk) * depth)
    behind = sum(head.layer >= trunk for head in heads)
    keep = members.keep if isinstance(members.keep, int) else max(1, round(Fraction(members.keep) * behind))
    return recipe.model_copy(update={"members": members.model_copy(update={"keep": keep, "trunk": trunk})})


def splits_of(recipe: RunRecipe, memory: Path) -> Splits:
    """The data of a recipe, its classes numbered by the model where that names its own."""
    return Splits(recipe.data, memory, known=tuple(classes_of(_shape(recipe)) or ()))


def _shape(recipe: RunRecipe) -> nn.Module:
    reference = recipe.backbone.model
    settings: dict[str, Any] = {**settings_for_classes(reference, recipe.backbone.classes)}
    return load_model(reference, weights=False, **settings)


def check_heads(recipe: RunRecipe, model: nn.Module) -> None:
    """Can the members keep so many heads behind the trunk, and can so many blocks be trained?"""
    heads = HeadSet.all(model)
    depth = min(len(layers) for layers in heads.kept)
    members = recipe.members
    if members.shared >= depth:
        raise RecipeMismatch(
            f"members.trunk {members.shared}: the model has {depth} blocks, and one at least must branch"
        )
    behind = len(behind_trunk(recipe, heads))
    if not members.kept < behind:
        raise RecipeMismatch(
            f"members.keep: {members.kept} of {behind} heads{' behind the trunk' * bool(members.shared)} would stay; "
            "one at least must go"
        )
    candidates, gone = len(may_go(recipe, heads)), lost(recipe, heads)
    if not candidates:
        raise RecipeMismatch(f"ranking.towers {recipe.ranking.towers}: the model has {', '.join(heads.towers)}")
    if not gone < candidates:
        raise RecipeMismatch(
            f"members.keep {members.kept} of {behind} takes {gone} heads, the tower '{recipe.ranking.towers}' has "
            f"{candidates} behind the trunk, of which one must stay; keep more"
        )
    pool = ranked(recipe, heads) if members.how == "sample" else members.pool
    if pool is not None and not gone <= pool < candidates:
        raise RecipeMismatch(
            f"members.pool {pool}: a member loses {gone} of {candidates} heads, so that between "
            f"{gone} and {candidates - 1} of them can be in the pool"
        )
    for section, training in (("backbone.finetune", recipe.backbone.finetune), ("finetuning", recipe.finetuning)):
        if training is not None:
            if len(heads.towers) > 1:
                raise RecipeMismatch(
                    f"{section}: the model compares images with texts and is not trained; leave it out"
                )
            trained: Recipe = training.settings(recipe.seed)
            if (trained.train_last_blocks or 0) > depth or trained.freeze_blocks > depth:
                asked = trained.train_last_blocks or trained.freeze_blocks
                raise RecipeMismatch(
                    f"{section}: recipe '{training.recipe}' speaks of {asked} blocks, the model has {depth}; set "
                    "train_last_blocks or freeze_blocks"
                )


def check_promise(recipe: RunRecipe, batches: dict[str, Batches]) -> None:
    """Are there rows enough for the coverage that is promised?"""
    assert recipe.decisions is not None
    split = "id_cal" if "id_cal" in batches else "id_val"
    rows = batches[split].num_rows
    left = rows if recipe.decisions.temperature == "none" else rows // 2
    if rank_of(recipe.decisions.coverage, left + 1) > left:
        raise RecipeMismatch(
            f"decisions.coverage {recipe.decisions.coverage} cannot be promised from {left} rows (those of "
            f"data.{split} that the temperature does not use); give more rows"
        )


def _prepared(splits: Splits, name: str, model: nn.Module) -> Batches:
    try:
        rows = splits.rows(name)
        batches = splits.batches(name, model, rows)
        if name in ("train", "id_val", "id_cal", "id_test") and labels_for(model, rows) is None:
            raise DataError(f"{Path(rows.where).name} has no labels; name their column with data.label")
    except DataError as error:
        raise DataError(f"data.{name.replace('/', '.')}: {error}") from None
    return batches
