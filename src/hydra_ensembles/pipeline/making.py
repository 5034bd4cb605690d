"""The stages that make a hydra: base, rankings, members, fine-tuning, fusion, and what is fitted after training."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data import Batches
from hydra_ensembles.data.opening import split_range
from hydra_ensembles.evaluation import (
    Answers,
    ConformalSets,
    OODDetector,
    TemperatureScaler,
    answers,
)
from hydra_ensembles.fusion import fuse
from hydra_ensembles.heads import HeadRanking, HeadSet, Member, prune
from hydra_ensembles.members import finetune, select_members
from hydra_ensembles.members.checkpoint import is_first_process
from hydra_ensembles.pipeline.budget import draws_where_two_coincide, lost, may_go, ranked
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.stage import StageError, Work, read_json
from hydra_ensembles.pipeline.subjects import answering, one_of, subject
from hydra_ensembles.scoring import circuit_ranking, taylor_ranking


def train_base(work: Work) -> None:
    """Fine-tune the whole backbone."""
    training = work.recipe.backbone.finetune
    assert training is not None
    model = subject(work)
    settings = training.settings(work.recipe.seed)
    train, val = _training_data(work, model, settings.batch_size, settings.seed)
    finetune(model, train, val, settings, checkpoint=work.directory / "training", progress=work.progress)
    if is_first_process():
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
        towers=ranking.towers,
        journal=work.directory / "journal.jsonl",
        progress=work.progress,
    ).save(work.directory / "ranking.json")


def rank_by_taylor(m: int, number: int, work: Work) -> None:
    """One Taylor ranking, on the m-th of `number` disjoint samples."""
    recipe, model = work.recipe, subject(work)
    rows = work.splits.rows(calibration_split(recipe))
    size = min(recipe.ranking.rows or len(rows), len(rows) // number)
    sample, left = rows.split(size, recipe.seed) if size < len(rows) else (rows, rows)
    for _ in range(m):
        sample, left = left.split(size, recipe.seed) if size < len(left) else (left, left)
    data = work.splits.batches(calibration_split(recipe), model, sample)
    is_global = recipe.ranking.method == "taylor-global"
    remove = _to_remove(recipe, model) if is_global else _to_remove_by_layer(recipe, model)
    scope = "global" if is_global else "layer"
    where: dict[str, Any] = {"layers": _branches(recipe, model), "towers": recipe.ranking.towers}
    taylor_ranking(model, data, remove, scope=scope, **where).save(work.directory / "ranking.json")


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
        keep=members.kept,
        members=members.number,
        how=members.how,
        trunk=members.shared,
        pool=len(rankings[0]) if members.how == "sample" or draws_where_two_coincide(recipe) else members.pool,
        seed=recipe.seed,
        progress=work.progress,
        **more,
    )
    (work.directory / "selection.json").write_text(json.dumps(selection.to_json(), indent=1) + "\n")


def make_member(m: int, work: Work) -> None:
    """Prune one member, and fine-tune it where the recipe says so."""
    selection = read_json(work.done["members"] / "selection.json")
    member = prune(subject(work), HeadSet.from_json(selection["members"][m]))
    if work.recipe.finetuning is not None:
        settings = work.recipe.finetuning.settings(work.recipe.seed + m)
        train, val = _training_data(work, member, settings.batch_size, settings.seed)
        trunk = work.recipe.members.shared
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
    if is_first_process():
        member.save(work.directory / "member")


def fuse_members(work: Work) -> None:
    """One network of all members, which knows what its heads were chosen with."""
    members = [Member.load(path / "member") for path in work.done.values()]
    hydra = fuse(members, mlp=work.recipe.fusion.mlp, last_block=work.recipe.fusion.last_block)
    hydra.provenance = {"recipe": work.recipe.name, "seed": work.recipe.seed, "made_from": _names(work)}
    if (source := unknown_source(work.recipe)) is not None:
        hydra.provenance["chosen_with"] = [{"source": source}]
    hydra.save(work.directory / "hydra")


def unknown_source(recipe: RunRecipe) -> str | None:
    """The end of the path of the unknown inputs that heads are chosen with; None where they are chosen with none."""
    joint = recipe.members.how == "joint"
    objectives = recipe.ranking.objectives[: 1 if joint else None]
    looks = (joint or recipe.ranking.method == "circuit") and any(one != "acc" for one in objectives)
    if recipe.data.ood_val is None or not looks:
        return None
    return "/".join(Path(split_range(expand(recipe.data.ood_val))[0]).parts[-2:])


def fit_decisions(work: Work) -> None:
    """Temperature, OOD threshold and prediction sets, on known data that no test has."""
    hydra, settings = answering("hydra", work), work.recipe.decisions
    assert settings is not None
    others = _calibrating(work, hydra)
    if settings.temperature != "none":
        # Promises are exact only on rows that the temperature has not seen.
        on_these, others = _halves(others, work.recipe.seed)
        TemperatureScaler(hydra, on=settings.temperature).fit(on_these)
    OODDetector(hydra, score=settings.score).fit(others, accept=settings.accept)
    ConformalSets(hydra, method=settings.sets).fit(others, coverage=settings.coverage)
    hydra.save(work.directory / "hydra")


def fit_temperature(name: str, work: Work) -> None:
    """A temperature of the base or of the members together, on the rows that the hydra's is fitted on."""
    model, settings = answering(name, work), work.recipe.decisions
    assert settings is not None
    on_these, _ = _halves(_calibrating(work, model), work.recipe.seed)
    scaler = TemperatureScaler(model, on=settings.temperature).fit(on_these)
    (work.directory / "fitted.json").write_text(json.dumps(scaler.fitted.to_json(), indent=1) + "\n")


def _calibrating(work: Work, model: Any) -> Answers:
    """Answers to the rows that are fitted on."""
    split = "id_val" if work.recipe.data.id_cal is None else "id_cal"
    return answers(model, work.splits.batches(split, one_of(model)), digest=False, progress=work.progress)


def _halves(found: Answers, seed: int) -> tuple[Answers, Answers]:
    """Two halves, drawn: rows may come in an order of their labels, whatever it is."""
    assert found.labels is not None
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
    first, second = (Answers(found.logits[half], found.labels[half]) for half in (order[0::2], order[1::2]))
    return first, second


def calibration_split(recipe: RunRecipe) -> str:
    return "id_val" if recipe.data.train is None else "train"


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
    if not recipe.members.shared:
        return None
    return range(recipe.members.shared, max(len(layers) for layers in HeadSet.all(_module(model)).kept))


def _to_remove(recipe: RunRecipe, model: nn.Module) -> int:
    return ranked(recipe, HeadSet.all(_module(model)))


def _to_remove_by_layer(recipe: RunRecipe, model: nn.Module) -> int:
    heads = HeadSet.all(_module(model))
    candidates = may_go(recipe, heads)
    depth = len({(head.tower, head.layer) for head in candidates})
    remove, rest = divmod(lost(recipe, heads), depth)
    if rest:
        raise StageError(
            f"a Taylor ranking per layer removes as many heads in every layer: members.keep {recipe.members.kept} "
            f"takes {lost(recipe, heads)} of {len(candidates)} heads in {depth} layers; remove a multiple of {depth}"
        )
    return remove


def _module(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, Member) else model


def _names(work: Work) -> dict[str, str]:
    """Which stages, by the hash of their inputs, an artefact was made from."""
    return {name: path.name.rpartition("-")[2] for name, path in work.done.items()}
