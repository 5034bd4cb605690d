"""What a run will cost: forwards of the backbone by stage, and from one measured forward, time.

Shapes: T tokens.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hydra_ensembles.backbones import Backbone, family_of
from hydra_ensembles.evaluation.latency import WARM_UP, interleaved, sample_inputs
from hydra_ensembles.heads import HeadSet, hydra_cost, single_cost
from hydra_ensembles.heads.cost import DEFAULT_TEXT_TOKENS
from hydra_ensembles.pipeline.budget import may_go, ranked
from hydra_ensembles.pipeline.checks import check_fits, counted, splits_of
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.running import Planned
from hydra_ensembles.pipeline.subjects import load_backbone

BACKWARD = 3
"""A step of training costs about three forwards."""
SEARCH_SHARE = {"plain": 1.0, "fast": 0.45, "lazy": 0.12}
"""Of Algorithm 1's block forwards: measured in benchmarks/results/search.json, rounded up."""
_MEASURED = 32


@dataclass(frozen=True)
class Estimate:
    """What a stage is expected to cost."""

    name: str
    is_done: bool
    reads: tuple[str, ...]
    forwards: float
    """Of the whole backbone, on one input."""
    mult_adds: float
    seconds: float


def estimates(recipe: RunRecipe, plan: list[Planned], device: str = "cpu") -> list[Estimate]:
    """By stage, from the sizes of the sets, the shape of the model and one measured forward."""
    recipe = counted(recipe)
    splits = splits_of(recipe, plan[0].kept.directory.parents[1] / "hashes.json")
    check_fits(recipe, splits)
    model = load_backbone(recipe).to(device)
    rows = {name: len(splits.rows(name)) for name in splits.references}
    tokens = min(recipe.data.max_tokens or DEFAULT_TEXT_TOKENS, DEFAULT_TEXT_TOKENS)
    mult_adds, seconds = single_cost(Backbone.of(model), text_tokens=tokens).mult_adds, seconds_a_forward(model, tokens)
    found = []
    for one in plan:
        forwards = _forwards(one.stage.name, recipe, model, rows)
        costs = (forwards, forwards * mult_adds, forwards * seconds)
        found.append(Estimate(one.stage.name, one.kept.is_done, one.stage.reads, *costs))
    return found


@torch.inference_mode()
def seconds_a_forward(model: nn.Module, tokens: int) -> float:
    """The time of the model's own forward of a few inputs, divided by their number; the best of five."""
    inputs = sample_inputs(model, _MEASURED, tokens)
    *_, timings = interleaved({"own": lambda: family_of(model).own_forward(model, inputs)}, rounds=5)
    return min(timings["own"].times_ms) / 1e3 / _MEASURED


def _forwards(stage: str, recipe: RunRecipe, model: nn.Module, rows: dict[str, int]) -> float:
    if stage == "base":
        return _training(recipe.backbone.finetune, recipe, rows)
    if stage.startswith("ranking-") or (stage == "members" and recipe.members.how == "joint"):
        objective = recipe.ranking.objectives[0] if stage == "members" else stage.removeprefix("ranking-")
        return _searching(recipe, model, rows, objective) * (recipe.members.number if stage == "members" else 1)
    if stage.startswith("member-") and recipe.finetuning is not None:
        return _training(recipe.finetuning, recipe, rows)
    tested = rows["id_test"] * (1 + len(recipe.data.shifts))
    tested += sum(number for name, number in rows.items() if name.startswith(("near/", "far/")))
    calibrated = rows.get("id_cal", rows["id_val"])
    if stage == "decisions":
        return _hydra_share(recipe, model) * calibrated
    if stage.startswith("temperature-"):
        return float(calibrated * (recipe.members.number if stage == "temperature-members" else 1))
    if stage == "costs":
        share = {"base": 1.0, "members": float(recipe.members.number), "hydra": _hydra_share(recipe, model)}
        rounds = recipe.evaluation.latency_rounds
        answered = (WARM_UP + rounds) * recipe.evaluation.latency_batch if rounds else 0
        return answered * sum(share[name] for name in recipe.evaluation.models)
    if stage == "evaluation-base":
        return tested + (rows.get("train", rows["id_val"]) if recipe.evaluation.detectors else 0)
    if stage == "evaluation-members":
        return tested * recipe.members.number
    return tested * _hydra_share(recipe, model) if stage == "evaluation-hydra" else 0.0


def _training(training: Any, recipe: RunRecipe, rows: dict[str, int]) -> float:
    settings = training.settings(recipe.seed)
    steps = settings.steps or -(-rows["train"] // settings.batch_size) * settings.epochs
    epochs = max(1, steps * settings.batch_size // rows["train"])
    looks = steps // settings.evaluate_every if settings.evaluate_every else epochs
    return float(BACKWARD * steps * settings.batch_size + looks * rows["id_val"])


def _searching(recipe: RunRecipe, model: nn.Module, rows: dict[str, int], objective: str) -> float:
    read = ("id_val",) if objective == "acc" else ("id_val", "ood_val")
    used = sum(min(rows[name], recipe.ranking.rows or rows[name]) for name in read if name in rows)
    if recipe.ranking.method != "circuit":
        return float(BACKWARD * min(rows.get("train", rows["id_val"]), recipe.ranking.rows or 10**12))
    heads, fixed = HeadSet.all(model), Backbone.of(model).fixed
    candidates = may_go(recipe, heads)
    # A head of a tower that does not look at the inputs costs next to nothing.
    looking = sum(head.tower not in fixed for head in candidates) / len(candidates)
    tried = range(len(candidates), len(candidates) - ranked(recipe, heads), -1)
    return SEARCH_SHARE[recipe.ranking.search] * looking * sum(tried) * used


def _hydra_share(recipe: RunRecipe, model: nn.Module) -> float:
    """Multiply-adds of the hydra over those of the backbone, with heads taken out evenly."""
    backbone = Backbone.of(model)
    full = HeadSet.all(model)
    trunk, left = recipe.members.shared, recipe.members.kept
    spread = [head for head in full if head.layer >= trunk]
    gone = spread[:: max(1, len(spread) // max(1, len(spread) - left))][: len(spread) - left]
    keeps = [full.without(gone)] * recipe.members.number
    return hydra_cost(backbone, keeps, trunk, recipe.fusion.last_block).mult_adds / single_cost(backbone).mult_adds
