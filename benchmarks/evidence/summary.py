"""From results files to a summary: by method and metric the mean over seeds, as `hydra_ensembles.report` has it."""

import json
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from hydra_ensembles.report.summaries import PERCENT, over_seeds
from provenance import RESULTS

SCORE = "msp"


def results_of(setting: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Every row's results file, by method and seed."""
    found = {}
    for path in sorted((RESULTS / setting).glob("*-[0-9].json")):
        result = json.loads(path.read_text())
        if "columns" in result:
            found[result["method"], result["seed"]] = result
    return found


def first_seed(results: Mapping[tuple[str, int], dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Claims of one seed stand beside rows of the same seed."""
    return {(method, seed): result for (method, seed), result in results.items() if seed == 0}


def shifts_of(setting: str) -> dict[str, dict[str, Any]]:
    """By method and severity, the metrics on corrupted inputs."""
    found = [json.loads(path.read_text()) for path in sorted((RESULTS / setting / "shift").glob("*-[0-9].json"))]
    return {one["method"]: one["severities"] for one in found}


def summary_of(
    results: Mapping[tuple[str, int], Mapping[str, Any]],
    column: str,
    groups: Mapping[str, Any],
    latency: Mapping[str, float],
    score: str = SCORE,
    averages: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """All methods in a column of known tests, unknown inputs told by a score; `averages` are more of AUROC by name."""
    values: dict[str, dict[str, list[float]]] = {}
    heads: dict[str, str] = {}
    for (method, _), result in results.items():
        heads[method] = result["heads"]
        flat = dict(_flat(result, column, groups, score))
        flat |= {name: fmean(flat[f"auroc/{one}"] for one in sets) for name, sets in (averages or {}).items()}
        for metric, value in flat.items():
            values.setdefault(method, {}).setdefault(metric, []).append(value)
    methods: dict[str, dict[str, Any]] = {}
    for method, metrics in values.items():
        methods[method] = {"heads": heads[method]}
        methods[method] |= {metric: over_seeds(found) for metric, found in metrics.items()}
        if method in latency:
            methods[method]["latency_ratio"] = {"mean": latency[method], "std": None, "seeds": 1}
    return {"methods": methods, "groups": {name: list(groups[name]) for name in ("near", "far")}}


def _flat(result: Mapping[str, Any], column: str, groups: Mapping[str, Any], score: str) -> Iterator[tuple[str, float]]:
    """(metric, value) of one results file."""
    found = result["columns"][column]
    for metric, value in found["answers"].items():
        yield metric, 100 * value if metric in PERCENT else value
    yield from ((f"{metric}_tempered", found["tempered"][metric]) for metric in ("nll", "ece", "aece", "brier"))
    unknown = [*groups["near"], *groups["far"]]
    for metric in ("mutual_information", "disagreement") if unknown else ():
        yield f"{metric}_ood", fmean(found["diversity"][name][metric] for name in unknown)
    sets = {**found["apart"].get(score, {}), **found["ood"].get(score, {})}
    for name, figures in sets.items():
        place = "" if name == "average" else f"_{name}" if name in ("near", "far") else f"/{name}"
        yield from ((f"{metric}{place}", 100 * figures[metric]) for metric in ("auroc", "fpr95", "aupr"))
    yield from ((key, float(result["cost"][key])) for key in ("params", "mult_adds"))
    if "validation" in result:
        yield "auroc_val", 100 * result["validation"]["ood"][SCORE]["auroc"]
        yield "accuracy_val", 100 * result["validation"]["answers"]["accuracy"]
