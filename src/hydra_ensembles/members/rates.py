"""The choice of a learning rate by validation: a whole fine-tuning for each."""

import copy
import math
from dataclasses import replace
from pathlib import Path

from torch import nn

from hydra_ensembles.data import Data
from hydra_ensembles.members.finetuning import merit_of
from hydra_ensembles.members.history import Show
from hydra_ensembles.members.recipes import Diverged, Recipe, changed, recipe_named
from hydra_ensembles.members.tasks import tasks_in, train_once


def choose_learning_rate(
    model: nn.Module,
    train: Data,
    val: Data,
    recipe: Recipe | str,
    *,
    seed: int | None = None,
    freeze_blocks: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every_s: float = 60.0,
    progress: bool | Show | None = None,
) -> Recipe:
    """The recipe with that rate of its grid whose weights, as they are kept, do best on `val`; `model` stays as it is.

    Each rate is a whole fine-tuning of a copy, with options as in `finetune`; one without a finite loss is not taken.
    With `checkpoint`, a killed choice goes on where it was, and rates that were done are not tried again.
    """
    recipe = recipe_named(recipe)
    rates = list(dict.fromkeys(recipe.learning_rate_grid or (recipe.learning_rate,)))
    merits: dict[float, float] = {}
    titles = {f"rate-{rate}": f"learning rate {rate:g}" for rate in rates}
    with tasks_in(checkpoint, titles, checkpoint_every_s) as tasks:
        for rate, task in zip(rates, tasks, strict=True):
            trial = changed(recipe, learning_rate=rate, seed=seed, freeze_blocks=freeze_blocks)
            try:
                kept = train_once(copy.deepcopy(model), train, val, trial, task, progress).kept
            except Diverged:
                continue
            assert kept is not None
            if math.isfinite(kept.nll):
                merits[rate] = merit_of(kept, recipe)
        if not merits:
            raise Diverged(
                f"recipe '{recipe.name}': the loss is not finite at any learning rate of {rates}; give lower ones, or "
                "set warm_up or clip_norm"
            )
    return replace(recipe, learning_rate=max(merits, key=lambda rate: merits[rate]))
