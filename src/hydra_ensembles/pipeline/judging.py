"""The stages that judge: every figure of each model, what each costs, then all of them side by side."""

import json
from datetime import UTC, datetime
from typing import Any

from torch import nn

from hydra_ensembles.evaluation import (
    Evaluation,
    Protocol,
    compare,
    costs,
    evaluate,
)
from hydra_ensembles.evaluation.results import differences_json
from hydra_ensembles.evaluation.shift import shifted_batches
from hydra_ensembles.optional import made_with
from hydra_ensembles.pipeline.stage import Work, read_json
from hydra_ensembles.pipeline.subjects import answering, load_base, one_of
from hydra_ensembles.uncertainty import Fitted


def evaluate_model(name: str, work: Work) -> None:
    """Every figure of one model; answers are kept set by set, so that a killed evaluation goes on."""
    recipe, model = work.recipe, answering(name, work)
    detectors = recipe.evaluation.detectors and name == "base"
    fitted = work.done.get(f"temperature-{name}")
    evaluate(
        model,
        protocol_of(work, one_of(model), detectors),
        detectors=detectors,
        fitted=None if fitted is None else Fitted.from_json(read_json(fitted / "fitted.json")),
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


def measure_costs(work: Work) -> None:
    """Parameters, multiply-adds and latency of the evaluated models, in one run; of inputs only the size matters."""
    base, settings = load_base(work), work.recipe.evaluation
    found = costs(
        {name: base if name == "base" else answering(name, work) for name in settings.models},
        base,
        batch=settings.latency_batch,
        rounds=settings.latency_rounds,
        text_tokens=work.recipe.data.max_tokens,
    )
    (work.directory / "costs.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")


def write_results(work: Work) -> None:
    """The figures of all models, how they differ from the base on the same rows, what they cost, which heads."""
    found = {
        name.removeprefix("evaluation-"): Evaluation.load(path / "evaluation")
        for name, path in work.done.items()
        if name.startswith("evaluation-")
    }
    figures = {name: evaluation.to_json() for name, evaluation in found.items()}
    against: dict[str, Any] = {}
    if "base" in found and work.recipe.evaluation.resamples:
        for name, evaluation in found.items():
            if name != "base":
                against[f"{name} minus base"] = differences_json(compare(evaluation, found["base"]))
    results = {
        "recipe": work.recipe.model_dump(),
        "models": figures,
        "compared": against,
        "costs": read_json(work.done["costs"] / "costs.json"),
        "heads": _heads(work),
        "classes": work.splits.classes,
        "seconds": dict(work.seconds),
        "made_with": {**made_with(), "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    (work.directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def _heads(work: Work) -> dict[str, Any]:
    """The heads that each member keeps, and how much members differ in those they lose."""
    chosen = read_json(work.done["members"] / "selection.json")
    by_objective = work.recipe.members.how == "objectives"
    numbered = [f"member {m}" for m in range(len(chosen["members"]))]
    names = list(work.recipe.ranking.objectives) if by_objective else numbered
    return {"names": names, **{part: chosen[part] for part in ("members", "overlap", "divergence")}}
