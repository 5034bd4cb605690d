"""The stages of a run: base, rankings, members, fine-tuning, fusion, decisions, evaluation, results.

Each is a function of its `Work`; `stages_of` says which of them a recipe has, what they read and what they depend on.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from hydra_ensembles.backbones.references import load_model, settings_for_classes
from hydra_ensembles.data import Batches
from hydra_ensembles.data.opening import split_range
from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation import (
    Answers,
    ConformalSets,
    Evaluation,
    OODDetector,
    Protocol,
    TemperatureScaler,
    answers,
    compare,
    evaluate,
)
from hydra_ensembles.evaluation.shift import shifted_batches
from hydra_ensembles.fusion import Hydra, fuse
from hydra_ensembles.heads import HeadRanking, HeadSet, Member, name_classes, prune
from hydra_ensembles.members import finetune, select_members
from hydra_ensembles.members.checkpoint import own_randomness, seed_all
from hydra_ensembles.members.selection import POOL_SHARE
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.splits import Splits
from hydra_ensembles.pipeline.stage import Stage, Work
from hydra_ensembles.scoring import circuit_ranking, taylor_ranking
from hydra_ensembles.uncertainty import Fitted


class StageError(HydraError):
    """A recipe that does not fit its model."""


def stages_of(recipe: RunRecipe) -> list[Stage]:
    """Every stage of a recipe, in an order in which they can run."""
    data, ranking = recipe.data, recipe.ranking.model_dump()
    chosen_with = ("id_val",) if data.ood_val is None else ("id_val", "ood_val")
    base: tuple[str, ...] = ()
    stages = []
    if recipe.backbone.finetune is not None:
        training = recipe.backbone.finetune.settings(recipe.seed).to_json()
        stages.append(Stage("base", train_base, {"training": training, "augment": data.augment}, ("train", "id_val")))
        base = ("base",)
    rankings = []
    if recipe.members.how != "joint":
        for name, work, more, reads in _rankings(recipe, chosen_with):
            # What is ranked beside it does not matter: one more objective leaves the circuits that are there.
            alone = recipe.ranking.model_dump(exclude={"objectives"}) | recipe.members.model_dump(exclude={"number"})
            stages.append(Stage(name, work, {**alone, **more}, reads, base))
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
        settings = {"training": tuned, "augment": data.augment, "trunk": recipe.members.trunk}
        reads = ("train", "id_val") if tuned else ()
        stages.append(Stage(name, partial(make_member, m), settings, reads, (*base, "members")))
    stages.append(Stage("fusion", fuse_members, recipe.fusion.model_dump(), (), tuple(members)))
    after = {"base": base, "members": tuple(members), "hydra": ("fusion",)}
    if recipe.decisions is not None:
        reads = ("id_val",) if data.id_cal is None else ("id_cal",)
        stages.append(Stage("decisions", fit_decisions, recipe.decisions.model_dump(), reads, ("fusion",)))
        after["hydra"] = ("decisions",)
        # A hydra with a temperature is compared with models that have theirs, from the same rows.
        for model in ("base", "members"):
            if model in recipe.evaluation.models and recipe.decisions.temperature != "none":
                name, settings = f"temperature-{model}", {"on": recipe.decisions.temperature}
                stages.append(Stage(name, partial(fit_temperature, model), settings, reads, after[model]))
                after[model] = (*after[model], name)
    tests = [name for name in Splits(data, Path()).references if name.startswith(("near/", "far/"))]
    for model in recipe.evaluation.models:
        settings = {**recipe.evaluation.model_dump(exclude={"models"}), "allow_seen": data.allow_seen}
        settings |= {"shifts": data.shifts, "model": model}
        reads = (*_known_to_protocol(recipe, model), "id_test", *tests)
        work = partial(evaluate_model, model)
        stages.append(Stage(f"evaluation-{model}", work, settings, reads, after[model], chooses=False))
    evaluated = tuple(f"evaluation-{model}" for model in recipe.evaluation.models)
    stages.append(Stage("results", write_results, {}, (), evaluated, chooses=False))
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
            yield f"ranking-{m}", partial(rank_by_taylor, m, number), sample, (_calibration_split(recipe),)


def _calibration_split(recipe: RunRecipe) -> str:
    return "id_val" if recipe.data.train is None else "train"


def _known_to_protocol(recipe: RunRecipe, model: str) -> tuple[str, ...]:
    named = {name: getattr(recipe.data, name) for name in ("id_val", "ood_val", "id_cal")}
    named["train"] = recipe.data.train if recipe.evaluation.detectors and model == "base" else None
    return tuple(name for name, reference in named.items() if reference is not None)


def train_base(work: Work) -> None:
    """Fine-tune the whole backbone."""
    training = work.recipe.backbone.finetune
    assert training is not None
    model = subject(work)
    settings = training.settings(work.recipe.seed)
    train, val = _training_data(work, model, settings.batch_size, settings.seed)
    finetune(model, train, val, settings, checkpoint=work.directory / "training", progress=work.progress)
    prune(model, HeadSet.all(model)).save(work.directory / "model")


def rank_by_circuit(objective: str, work: Work) -> None:
    """One circuit search."""
    model, ranking = subject(work), work.recipe.ranking
    circuit_ranking(
        model,
        _searched(work, "id_val", model),
        _searched(work, "ood_val", model) if objective != "acc" else None,
        objective,
        _to_remove(work.recipe, model),
        search=ranking.search,
        layers=_branches(work.recipe, model),
        journal=work.directory / "journal.jsonl",
        progress=work.progress,
    ).save(work.directory / "ranking.json")


def rank_by_taylor(m: int, number: int, work: Work) -> None:
    """One Taylor ranking, on the m-th of `number` disjoint samples."""
    recipe, model = work.recipe, subject(work)
    rows = work.splits.rows(_calibration_split(recipe))
    size = min(recipe.ranking.rows or len(rows), len(rows) // number)
    sample, left = rows.split(size, recipe.seed) if size < len(rows) else (rows, rows)
    for _ in range(m):
        sample, left = left.split(size, recipe.seed) if size < len(left) else (left, left)
    data = work.splits.batches(_calibration_split(recipe), model, sample)
    is_global = recipe.ranking.method == "taylor-global"
    remove = _to_remove(recipe, model) if is_global else _to_remove_by_layer(recipe, model)
    layers = _branches(recipe, model)
    taylor_ranking(model, data, remove, scope="global" if is_global else "layer", layers=layers).save(
        work.directory / "ranking.json"
    )


def choose_members(work: Work) -> None:
    """Head sets from rankings, or by a joint search."""
    recipe, members = work.recipe, work.recipe.members
    rankings = [
        HeadRanking.load(path / "ranking.json") for name, path in work.done.items() if name.startswith("ranking-")
    ]
    more: dict[str, Any] = {}
    if members.how == "joint":
        model = subject(work)
        more = {"model": model, "id_data": _searched(work, "id_val", model)}
        more["ood_data"] = None if recipe.data.ood_val is None else _searched(work, "ood_val", model)
        more |= {"objective": recipe.ranking.objectives[0], "search": recipe.ranking.search}
        more["journal"] = work.directory / "journal.jsonl"
    selection = select_members(
        rankings,
        keep=members.keep,
        members=members.number,
        how=members.how,
        trunk=members.trunk,
        pool=members.pool,
        seed=recipe.seed,
        progress=work.progress,
        **more,
    )
    (work.directory / "selection.json").write_text(json.dumps(selection.to_json(), indent=1) + "\n")


def make_member(m: int, work: Work) -> None:
    """Prune one member, and fine-tune it where the recipe says so."""
    selection = json.loads((work.done["members"] / "selection.json").read_text())
    member = prune(subject(work), HeadSet.from_json(selection["members"][m]))
    if work.recipe.finetuning is not None:
        settings = work.recipe.finetuning.settings(work.recipe.seed + m)
        train, val = _training_data(work, member, settings.batch_size, settings.seed)
        trunk = work.recipe.members.trunk
        finetune(
            member,
            train,
            val,
            settings,
            freeze_blocks=max(trunk, settings.freeze_blocks),
            checkpoint=work.directory / "training",
            progress=work.progress,
            title=f"fine-tuning member {m}",
        )
    member.save(work.directory / "member")


def fuse_members(work: Work) -> None:
    """One network of all members, which knows what its heads were chosen with."""
    members = [Member.load(path / "member") for path in work.done.values()]
    hydra = fuse(members, mlp=work.recipe.fusion.mlp, last_block=work.recipe.fusion.last_block)
    hydra.provenance = {"recipe": work.recipe.name, "seed": work.recipe.seed, "made_from": _names(work)}
    if work.recipe.data.ood_val is not None:
        source = Path(split_range(work.recipe.data.ood_val)[0])
        hydra.provenance["chosen_with"] = [{"source": "/".join(source.parts[-2:])}]
    hydra.save(work.directory / "hydra")


def fit_decisions(work: Work) -> None:
    """Temperature, OOD threshold and prediction sets, on known data that no test has."""
    hydra, settings = Hydra.load(next(iter(work.done.values())) / "hydra"), work.recipe.decisions
    assert settings is not None
    others = _calibrating(work, hydra)
    if settings.temperature != "none":
        # Promises are exact only on rows that the temperature has not seen.
        TemperatureScaler(hydra, on=settings.temperature).fit(_every_other(others, 0))
        others = _every_other(others, 1)
    OODDetector(hydra, score=settings.score).fit(others, accept=settings.accept)
    ConformalSets(hydra, method=settings.sets).fit(others, coverage=settings.coverage)
    hydra.save(work.directory / "hydra")


def fit_temperature(name: str, work: Work) -> None:
    """A temperature of the base or of the members together, on the rows that the hydra's is fitted on."""
    model, settings = answering(name, work), work.recipe.decisions
    assert settings is not None
    scaler = TemperatureScaler(model, on=settings.temperature).fit(_every_other(_calibrating(work, model), 0))
    (work.directory / "fitted.json").write_text(json.dumps(scaler.fitted.to_json(), indent=1) + "\n")


def _calibrating(work: Work, model: Any) -> Answers:
    """Answers to the rows that are fitted on."""
    split = "id_val" if work.recipe.data.id_cal is None else "id_cal"
    return answers(model, work.splits.batches(split, _one(model)), digest=False, progress=work.progress)


def _every_other(found: Answers, start: int) -> Answers:
    assert found.labels is not None
    return Answers(found.logits[start::2], found.labels[start::2])


def answering(name: str, work: Work) -> Any:
    """The base, the members, or the hydra, from the stages before."""
    if name == "members":
        return [Member.load(path / "member") for stage, path in work.done.items() if stage.startswith("member-")]
    if name == "hydra":
        return Hydra.load(next(iter(work.done.values())) / "hydra")
    return subject(work)


def _one(model: Any) -> nn.Module:
    one: nn.Module = model[0] if isinstance(model, list) else model
    return one


def evaluate_model(name: str, work: Work) -> None:
    """Every figure of one model; answers are kept set by set, so that a killed evaluation goes on."""
    recipe, model = work.recipe, answering(name, work)
    detectors = recipe.evaluation.detectors and name == "base"
    fitted = work.done.get(f"temperature-{name}")
    evaluate(
        model,
        protocol_of(work, _one(model), detectors),
        detectors=detectors,
        fitted=None if fitted is None else Fitted.from_json(json.loads((fitted / "fitted.json").read_text())),
        keep=work.directory / "answers",
        score=recipe.evaluation.score,
        resamples=recipe.evaluation.resamples,
        seed=recipe.seed,
        progress=work.progress,
    ).save(work.directory / "evaluation")


def protocol_of(work: Work, model: nn.Module, detectors: bool) -> Protocol:
    """The recipe's test sets, as a model takes them."""
    data, splits = work.recipe.data, work.splits
    near, far = (
        {name: splits.batches(f"{group}/{name}", model) for name in getattr(data, group)} for group in ("near", "far")
    )
    prepared = {"batch_size": data.batch_size, "max_tokens": data.max_tokens, "first_size": data.first_size}
    options: dict[str, Any] = {key: value for key, value in prepared.items() if value is not None}
    clean = splits.rows("id_test")
    shifts = {
        shift.replace("/", "-"): shifted_batches(model, clean, shift, work.shared / "shifts", **options)
        for shift in data.shifts
    }
    return Protocol(
        splits.batches("id_test", model),
        near,
        far,
        shifts,
        id_val=splits.batches("id_val", model),
        ood_val=None if data.ood_val is None else splits.batches("ood_val", model),
        id_cal=None if data.id_cal is None else splits.batches("id_cal", model),
        id_train=splits.batches("train", model) if detectors and data.train is not None else None,
        allow_seen=data.allow_seen,
    )


def write_results(work: Work) -> None:
    """The figures of all models, and how they differ from the base on the same rows."""
    found = {name.removeprefix("evaluation-"): Evaluation.load(path / "evaluation") for name, path in work.done.items()}
    figures = {name: evaluation.to_json() for name, evaluation in found.items()}
    against: dict[str, Any] = {}
    if "base" in found and work.recipe.evaluation.resamples:
        for name, evaluation in found.items():
            if name != "base":
                against[f"{name} minus base"] = {
                    part: {row: {metric: vars(d) for metric, d in metrics.items()} for row, metrics in sets.items()}
                    for part, sets in compare(evaluation, found["base"]).items()
                }
    results = {"recipe": work.recipe.model_dump(), "models": figures, "compared": against}
    (work.directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def load_backbone(recipe: RunRecipe) -> nn.Module:
    """The model that the recipe starts from; what is random in it comes from the recipe's seed."""
    reference = recipe.backbone.model
    with own_randomness():
        seed_all(recipe.seed)
        settings: dict[str, Any] = {**settings_for_classes(reference, recipe.backbone.classes)}
        return load_model(reference, **settings)


def subject(work: Work) -> nn.Module:
    """The base model: fine-tuned, or as it was loaded."""
    if "base" in work.done:
        return Member.load(work.done["base"] / "model")
    model = load_backbone(work.recipe)
    name_classes(model, work.splits.classes)
    return model


def _training_data(work: Work, model: nn.Module, batch_size: int, seed: int) -> tuple[Batches, Batches]:
    augment = work.recipe.data.augment
    more: dict[str, Any] = {} if augment == "none" else {"augment": augment}
    train = work.splits.batches("train", model, batch_size=batch_size, shuffle=True, seed=seed, **more)
    return train, work.splits.batches("id_val", model)


def _searched(work: Work, split: str, model: nn.Module) -> Batches:
    rows, wanted = work.splits.rows(split), work.recipe.ranking.rows
    sample = rows if wanted is None or wanted >= len(rows) else rows.sample(wanted, work.recipe.seed)
    return work.splits.batches(split, model, sample, batch_size=work.recipe.ranking.batch_size)


def _branches(recipe: RunRecipe, model: nn.Module) -> range | None:
    """The layers behind the trunk."""
    if not recipe.members.trunk:
        return None
    return range(recipe.members.trunk, max(len(layers) for layers in HeadSet.all(_module(model)).kept))


def _behind(recipe: RunRecipe, model: nn.Module) -> list[int]:
    return [head.layer for head in HeadSet.all(_module(model)) if head.layer >= recipe.members.trunk]


def _to_remove(recipe: RunRecipe, model: nn.Module) -> int:
    heads = len(_behind(recipe, model))
    if recipe.members.how == "sample":
        return recipe.members.pool or round(heads * POOL_SHARE)
    return heads - recipe.members.keep


def _to_remove_by_layer(recipe: RunRecipe, model: nn.Module) -> int:
    layers = _behind(recipe, model)
    depth = len(set(layers))
    remove, rest = divmod(len(layers) - recipe.members.keep, depth)
    if rest:
        raise StageError(
            f"a Taylor ranking per layer removes as many heads in every layer: members.keep {recipe.members.keep} of "
            f"{len(layers)} heads in {depth} layers does not; keep a multiple of {depth}"
        )
    return remove


def _module(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, Member) else model


def _names(work: Work) -> dict[str, str]:
    """Which stages, by the hash of their inputs, an artefact was made from."""
    return {name: path.name.rpartition("-")[2] for name, path in work.done.items()}
