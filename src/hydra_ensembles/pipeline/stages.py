"""Which stages a recipe has, what each reads, and what it depends on; what they do is in `making` and `judging`."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hydra_ensembles.pipeline.budget import draws_where_two_coincide
from hydra_ensembles.pipeline.judging import evaluate_model, measure_costs, write_results
from hydra_ensembles.pipeline.making import (
    calibration_split,
    choose_members,
    fit_decisions,
    fit_temperature,
    fuse_members,
    make_member,
    rank_by_circuit,
    rank_by_taylor,
    train_base,
    unknown_source,
)
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import Splits
from hydra_ensembles.pipeline.stage import Stage, Work

_OF_COSTS = {"models", "latency_rounds", "latency_batch"}
"""Settings of evaluation that change no figure."""


def stages_of(recipe: RunRecipe) -> list[Stage]:
    """Every stage of a recipe, in an order in which they can run."""
    data, ranking = recipe.data, recipe.ranking.model_dump()
    chosen_with = ("id_val",) if data.ood_val is None else ("id_val", "ood_val")
    base: tuple[str, ...] = ()
    stages = []
    if recipe.backbone.finetune is not None:
        training = recipe.backbone.finetune.settings(recipe.seed).to_json()
        settings = {"training": training, "augment": data.augment}
        stages.append(Stage("base", train_base, settings, ("train", "id_val"), trains=True))
        base = ("base",)
    rankings = []
    if recipe.members.how != "joint":
        for name, work, more, reads in _rankings(recipe, chosen_with):
            # What is ranked beside it does not matter: one more objective leaves the circuits that are there.
            alone = recipe.ranking.model_dump(exclude={"objectives"}) | recipe.members.model_dump(exclude={"number"})
            # Format 2: of more heads than a member loses.
            format = 2 if draws_where_two_coincide(recipe) else 1
            stages.append(Stage(name, work, {**alone, **more}, reads, base, format=format))
            rankings.append(name)
    stages.append(
        Stage(
            "members",
            choose_members,
            {**recipe.members.model_dump(), "ranking": ranking},
            chosen_with if recipe.members.how == "joint" else (),
            (*base, *rankings),
        )
    )
    members = [f"member-{m}" for m in range(recipe.members.number)]
    for m, name in enumerate(members):
        tuned = None if recipe.finetuning is None else recipe.finetuning.settings(recipe.seed + m).to_json()
        settings = {"training": tuned, "augment": data.augment, "trunk": recipe.members.shared}
        reads = ("train", "id_val") if tuned else ()
        work = partial(make_member, m)
        stages.append(Stage(name, work, settings, reads, (*base, "members"), trains=tuned is not None))
    settings = {**recipe.fusion.model_dump(), "chosen_with": unknown_source(recipe)}
    stages.append(Stage("fusion", fuse_members, settings, (), tuple(members)))
    after = {"base": base, "members": tuple(members), "hydra": ("fusion",)}
    if recipe.decisions is not None:
        reads = ("id_val",) if data.id_cal is None else ("id_cal",)
        # Format 2: halves of the rows are drawn.
        settings = recipe.decisions.model_dump()
        stages.append(Stage("decisions", fit_decisions, settings, reads, ("fusion",), format=2))
        after["hydra"] = ("decisions",)
        # A hydra with a temperature is compared with models that have theirs, from the same rows.
        for model in ("base", "members"):
            if model in recipe.evaluation.models and recipe.decisions.temperature != "none":
                name, settings = f"temperature-{model}", {"on": recipe.decisions.temperature}
                stages.append(Stage(name, partial(fit_temperature, model), settings, reads, after[model], format=2))
                after[model] = (*after[model], name)
    tests = [name for name in Splits(data, Path()).references if name.startswith(("near/", "far/"))]
    for model in recipe.evaluation.models:
        settings = {**recipe.evaluation.model_dump(exclude=_OF_COSTS), "allow_seen": data.allow_seen}
        settings |= {"shifts": data.shifts, "model": model}
        reads = (*_known_to_protocol(recipe, model), "id_test", *tests)
        work = partial(evaluate_model, model)
        # Format 2: rows keep their answer and label.
        stages.append(Stage(f"evaluation-{model}", work, settings, reads, after[model], chooses=False, format=2))
    evaluated = tuple(f"evaluation-{model}" for model in recipe.evaluation.models)
    measured = recipe.evaluation.model_dump(include=_OF_COSTS)
    measured |= {"threads": recipe.threads, "max_tokens": data.max_tokens}
    # What is fitted after training costs nothing, so costs do not wait for it; heads are counted in the base.
    networks = {"base": (), "members": tuple(members), "hydra": ("fusion",)}
    made = tuple(stage for model in recipe.evaluation.models for stage in networks[model])
    stages.append(Stage("costs", measure_costs, measured, (), (*base, *made), chooses=False, alone=True))
    # Format 2: the names of the classes as labels were numbered.
    told = recipe.model_dump(mode="json", exclude={"output"})  # they say names and places, which no other stage needs
    stages.append(Stage("results", write_results, told, (), ("members", *evaluated, "costs"), chooses=False, format=2))
    return stages


def _rankings(
    recipe: RunRecipe, chosen_with: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[Work], None], dict[str, Any], tuple[str, ...]]]:
    """By ranking: its name, what is done, what it depends on besides the recipe's settings, and what it reads."""
    if recipe.ranking.method == "circuit":
        for objective in recipe.ranking.objectives:
            reads = chosen_with if objective != "acc" else ("id_val",)
            yield f"ranking-{objective}", partial(rank_by_circuit, objective), {"objective": objective}, reads
    else:
        number = recipe.members.number if recipe.members.how == "calibration" else 1
        for m in range(number):
            sample = {"sample": m, "samples": number}
            yield f"ranking-{m}", partial(rank_by_taylor, m, number), sample, (calibration_split(recipe),)


def _known_to_protocol(recipe: RunRecipe, model: str) -> tuple[str, ...]:
    named = {name: getattr(recipe.data, name) for name in ("id_val", "ood_val", "id_cal")}
    named["train"] = recipe.data.train if recipe.evaluation.detectors and model == "base" else None
    return tuple(name for name, reference in named.items() if reference is not None)
