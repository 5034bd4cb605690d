"""Runs that nobody trained: logits drawn at random, in the format that `hydra-ens run` leaves, inputs beside them.

Shapes: R rows, M members, C classes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data import open_data
from hydra_ensembles.evaluation import Evaluation, compare
from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.results import differences_json
from hydra_ensembles.heads import HeadSet
from hydra_ensembles.heads.head_set import layer_divergence, overlap

CLASSES = ("cat", "dog", "bird", "fish")
_MEMBERS = {"base": 1, "members": 3, "hydra": 3}
_COSTS = {"base": (22e6, 170e6, 10.0), "members": (63e6, 450e6, 27.0), "hydra": (26e6, 390e6, 20.0)}


def constructed_run(
    directory: Path,
    *,
    name: str = "constructed",
    unknown: int = 2,
    rows: int = 300,
    seed: int = 0,
    kind: str = "text",
    resamples: int = 100,
    models: Sequence[str] = ("base", "members", "hydra"),
    texts: Sequence[str] = (),
    inputs: Path | None = None,
) -> Path:
    """Write a run of three models, with so many unknown sets.

    `texts` are the first inputs of every set; `inputs` is where they are written, in the run's own `data` unless said.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    sets = [f"set-{number}" for number in range(unknown)]
    groups = {"near": sets[: unknown // 2], "far": sets[unknown // 2 :], "shifts": ["noise-2"]}
    data = {one: _inputs(inputs or directory / "data", one, rows, kind, texts, seed) for one in ("id_test", *sets)}
    labels = torch.randint(len(CLASSES), (rows,), generator=generator)
    gains = {"id_test": 4.0, "noise-2": 2.0} | {one: 3.0 * place / max(unknown, 1) for place, one in enumerate(sets)}
    shared = {one: torch.randn(rows, 1, len(CLASSES), generator=generator) for one in gains}
    evaluations = {}
    for model in models:
        found = {
            one: judged(_logits(labels, gain, shared[one], _MEMBERS[model], generator), None if one in sets else labels)
            for one, gain in gains.items()
        }
        digests = {one: _digest(data[one], has_labels=one == "id_test") for one in data}
        evaluations[model] = Evaluation(found, groups, digests, _about(model, found), resamples, seed)
        evaluations[model].save(directory / "evaluations" / model)
    results = {
        "recipe": {
            "name": name,
            "seed": seed,
            "backbone": {"model": "made/of-chance"},
            "data": {
                "id_test": str(data["id_test"]),
                **{group: {one: str(data[one]) for one in groups[group]} for group in ("near", "far")},
            },
        },
        "models": {model: found.to_json() for model, found in evaluations.items()},
        "compared": {
            f"{model} minus base": differences_json(compare(found, evaluations["base"]))
            for model, found in evaluations.items()
            if model != "base" and "base" in evaluations and resamples
        },
        "costs": _costs(models),
        "heads": _heads(seed),
        "seconds": {"base": 60.0, "fusion": 1.5},
    }
    (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "hydra").mkdir(exist_ok=True)
    (directory / "hydra" / "config.json").write_text(json.dumps({"classes": list(CLASSES)}))
    return directory


def _logits(labels_R: Tensor, gain: float, shared: Tensor, members: int, generator: torch.Generator) -> Tensor:
    """Right answers stand out by `gain` from what all members see alike and from each one's own noise."""
    noise_RMC = torch.randn(len(labels_R), members, len(CLASSES), generator=generator)
    truth = torch.nn.functional.one_hot(labels_R, len(CLASSES))[:, None]
    return 1.5 * shared + noise_RMC + gain * truth


def _about(model: str, found: dict[str, Judged]) -> dict[str, Any]:
    about: dict[str, Any] = {"members": _MEMBERS[model], "classes": len(CLASSES), "allow_seen": False, "seen": []}
    if model != "hydra":
        return {**about, "fitted": {}, "decisions": {}}
    threshold = found["id_test"].scores["msp"].quantile(0.95).item()
    decisions = {}
    for name, rows in found.items():
        strange = rows.scores["msp"] > threshold
        unsure = ~strange & (rows.confidence < 0.7)
        shares = {"accept": ~strange & ~unsure, "abstain": unsure, "out-of-distribution": strange}
        decisions[name] = {decision: where.double().mean().item() for decision, where in shares.items()}
        if rows.right is not None:
            decisions[name]["accuracy of accepted"] = rows.right[shares["accept"]].mean().item()
    fitted = {"ood": {"score": "msp", "threshold": threshold, "accept": 0.95}}
    return {**about, "fitted": fitted, "decisions": decisions}


def _inputs(directory: Path, name: str, rows: int, kind: str, texts: Sequence[str], seed: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "image":
        path = directory / f"{name}.npz"
        pixels = np.random.default_rng([seed, len(name), *name.encode()]).integers(0, 256, (rows, 32, 32, 3), np.uint8)
        np.savez(path, images=pixels, labels=np.zeros(rows, dtype=np.int64))
        return path
    path = directory / f"{name}.jsonl"
    lines = [*texts, *(f"{name} says sentence {place}" for place in range(rows - len(texts)))]
    path.write_text("".join(json.dumps({"text": line, "label": 0}) + "\n" for line in lines))
    return path


def _digest(path: Path, has_labels: bool) -> str:
    return open_data(path, label=None if has_labels else False).digest


def _costs(models: Sequence[str]) -> dict[str, Any]:
    costs = {}
    for model in models:
        params, mult_adds, ms = _COSTS[model]
        latency = {"median": ms, "low": 0.95 * ms, "high": 1.05 * ms}
        costs[model] = {"params": int(params), "mult_adds": int(mult_adds), "latency_ms": latency}
    settings = {"batch": 4, "dtype": "float32", "threads": 2, "rounds": 20, "text_tokens": 16}
    return {"models": costs, "settings": settings}


def _heads(seed: int) -> dict[str, Any]:
    heads = {"text": [12] * 6}
    chance = np.random.default_rng(seed)
    kept = [[sorted(chance.choice(12, 8, replace=False).tolist()) for _ in range(6)] for _ in range(3)]
    sets = [HeadSet.of({"text": one}, heads) for one in kept]
    return {
        "members": [one.to_json() for one in sets],
        "names": ["acc", "ood", "avg"],
        "overlap": [[overlap(a, b) for b in sets] for a in sets],
        "divergence": [[layer_divergence(a, b) for b in sets] for a in sets],
    }
