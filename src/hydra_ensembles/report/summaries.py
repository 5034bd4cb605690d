"""Summaries: by method and metric a mean over seeds, with its standard deviation; what every table is made of.

`{"methods": {name: {metric: {"mean", "std", "seeds"}}}, "groups": {"near": [...], "far": [...]}}`. Accuracy, AUROC,
FPR95 and AUPR are percentages, everything else is as it was measured. `auroc` is the mean over unknown sets,
`auroc_near` and `auroc_far` over a group of them, `auroc/NAME` that of one set; `accuracy_shifts` is the mean over
shifts, `accuracy_severity_3` over those of a severity. In place of a figure there may be text, or true or false.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, TypeAlias

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.protocol import AVERAGE, GROUPS, ID_TEST, SHIFTS
from hydra_ensembles.report.cells import Cell, Figure

Summary: TypeAlias = Mapping[str, Any]

SEPARATION = ("auroc", "fpr95", "aupr")
PERCENT = ("accuracy", *SEPARATION)
_DIVERSITY = ("mutual_information", "disagreement")
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_MAY_DIFFER = ("seed", "name", "output", "threads")


class SummaryError(HydraError):
    """Results that do not make a summary together."""


def summarise(runs: Sequence[Mapping[str, Any]], score: str | None = None) -> dict[str, Any]:
    """Results of runs (`results.json`) of one recipe with different seeds: by model and metric, over the runs.

    Standard deviations are of a sample (n - 1). Of one run there are none; its 95 % intervals are kept in their place.
    Unknown rows are told by `score`, the one that was evaluated with intervals by default.
    """
    if not runs:
        raise SummaryError("there are no runs to summarise; give the contents of their results.json")
    for run in runs:
        if not isinstance(run, Mapping) or not {"recipe", "models"} <= set(run):
            raise SummaryError("a run without 'recipe' and 'models' is none; give the contents of its results.json")
    _check_one_recipe([run["recipe"] for run in runs])
    values: dict[str, dict[str, list[float]]] = {}
    intervals: dict[str, dict[str, list[float]]] = {}
    words: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, found in run["models"].items():
            told = score or found["score"]
            there = ", ".join(part.removeprefix("ood/") for part in found["figures"] if part.startswith("ood/"))
            if there and f"ood/{told}" not in found["figures"]:
                raise SummaryError(f"'{name}' was not evaluated with score '{told}'; there are {there}")
            # One network has nobody to disagree with: its zeros are no diversity.
            without = _DIVERSITY if found["about"].get("members") == 1 else ()
            for metric, value in _flat(found["figures"], found["groups"], told):
                if metric.startswith(without):
                    continue
                values.setdefault(name, {}).setdefault(metric, []).append(value)
            intervals[name] = dict(_flat_intervals(found["intervals"], told))
        for name, metric, value in _costs(run):
            values.setdefault(name, {}).setdefault(metric, []).append(value)
        words |= {name: {"heads": text} for name, text in _heads(run)}
    methods: dict[str, dict[str, Any]] = {}
    for name, metrics in values.items():
        methods[name] = dict(words.get(name, {}))
        for metric, found in metrics.items():
            methods[name][metric] = over_seeds(found)
            if len(runs) == 1 and (interval := intervals[name].get(metric)) is not None:
                methods[name][metric]["interval"] = interval
    first = next(iter(runs[0]["models"].values()))
    return {"methods": methods, "groups": {group: list(first["groups"].get(group, ())) for group in GROUPS}}


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (None of one value) and number.

    >>> over_seeds([1.0, 3.0])
    {'mean': 2.0, 'std': 1.4142135623730951, 'seeds': 2}
    """
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None, "seeds": len(values)}


def joined(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """One summary of several data sets: `METRIC/NAME` of each, and as METRIC the mean where all have it.

    Means over data sets have no standard deviation: seeds of different data sets do not belong together.
    """
    methods: dict[str, dict[str, Any]] = {}
    for data, summary in summaries.items():
        for name, metrics in summary["methods"].items():
            mine = methods.setdefault(name, {})
            mine |= {key if isinstance(value, str | bool) else f"{key}/{data}": value for key, value in _own(metrics)}
    for name, mine in methods.items():
        for metric in dict.fromkeys(key.partition("/")[0] for key in list(mine) if "/" in key):
            found = [as_cell(mine.get(f"{metric}/{data}")) for data in summaries]
            figures = [cell for cell in found if isinstance(cell, Figure)]
            if len(figures) == len(summaries):
                seeds = min(figure.seeds for figure in figures)
                methods[name][metric] = {"mean": fmean(f.mean for f in figures), "std": None, "seeds": seeds}
    return {"methods": methods}


def diversity_summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of diversity analyses (`Diversity.to_json()`) by name: `NAME (fused)` and `NAME (not fused)`, Tables 9 and 11."""
    methods = {}
    for name, analysis in found.items():
        for told, state in (("fused", "after"), ("not fused", "before")):
            sets = analysis[state]
            unknown = [set_ for set_ in sets if set_ not in (ID_TEST, AVERAGE)]
            figures = {"answers": {ID_TEST: sets[ID_TEST]}, "diversity": sets}
            figures["ood/score"] = {set_: sets[set_] for set_ in (*unknown, AVERAGE)}
            flat = _flat(figures, {"far": unknown}, "score")
            methods[f"{name} ({told})"] = {metric: over_seeds([value]) for metric, value in flat}
    return {"methods": methods}


def centroid_summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of centroid distances (`CentroidDistances.to_json()`) by model: the mean over the last layer's heads, Table 5."""
    methods: dict[str, dict[str, Any]] = {}
    for name, analysis in found.items():
        last = max(layer for _, layer, _ in analysis["heads"])
        places = [place for place, (_, layer, _) in enumerate(analysis["heads"]) if layer == last]
        methods[name] = {}
        for distance in ("euclidean", "mahalanobis"):
            by_set = {set_: fmean(row[place] for place in places) for set_, row in analysis[distance].items()}
            methods[name] |= {f"{distance}/{set_}": over_seeds([value]) for set_, value in by_set.items()}
            methods[name][distance] = over_seeds([fmean(by_set.values())])
    return {"methods": methods}


def as_cell(entry: Any, intervals: bool = False) -> Cell:
    """What a summary has under a metric as a cell of a table; claims as check marks."""
    if entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, bool):
        return "✓" if entry else "×"
    if not isinstance(entry, Mapping):
        return Figure(float(entry))
    if entry.get("mean") is None:
        return None
    interval = entry.get("interval") if intervals else None
    ends = None if interval is None else (float(interval[0]), float(interval[1]))
    return Figure(float(entry["mean"]), entry.get("std"), int(entry.get("seeds", 1)), ends)


def sets_with(summary: Summary, metric: str) -> list[str]:
    """The names of the sets that some method has this metric of."""
    keys = (key for metrics in summary["methods"].values() for key in metrics)
    return list(dict.fromkeys(key.partition("/")[2] for key in keys if key.startswith(f"{metric}/")))


def _check_one_recipe(recipes: Sequence[Mapping[str, Any]]) -> None:
    for one, other in pairwise(recipes):
        differ = sorted(key for key in {*one, *other} - {*_MAY_DIFFER} if one.get(key) != other.get(key))
        if differ:
            raise SummaryError(
                f"the runs are of different recipes, they differ in {', '.join(differ)}; only the seed may differ"
            )
    seeds = [recipe["seed"] for recipe in recipes]
    if len(set(seeds)) < len(seeds):
        raise SummaryError(f"the runs have seeds {', '.join(map(str, seeds))}; the same seed twice says nothing new")


def _flat(
    figures: Mapping[str, Mapping[str, Mapping[str, float]]], groups: Mapping[str, Collection[str]], score: str
) -> Iterator[tuple[str, float]]:
    """(metric, value) of an evaluation's figures."""
    answers, diversity = figures["answers"], figures["diversity"]
    for metric, value in answers[ID_TEST].items():
        yield metric, _scaled(metric, value)
    severities: dict[str, list[str]] = {}
    for shift in groups.get(SHIFTS, ()):
        severities.setdefault(shift.rpartition("-")[2], []).append(shift)
    for metric in answers.get(SHIFTS, ()):
        yield f"{metric}_shifts", _scaled(metric, answers[SHIFTS][metric])
        for severity, shifts in severities.items():
            if severity.isdigit():
                mean = fmean(answers[shift][metric] for shift in shifts)
                yield f"{metric}_severity_{severity}", _scaled(metric, mean)
    unknown = [name for group in GROUPS for name in groups.get(group, ())]
    for metric in _DIVERSITY if unknown else ():
        yield f"{metric}_ood", fmean(diversity[name][metric] for name in unknown)
        yield from ((f"{metric}/{name}", diversity[name][metric]) for name in unknown)
    for key, metric, value in _separation(figures.get(f"ood/{score}", {})):
        yield key, _scaled(metric, value)


def _flat_intervals(intervals: Mapping[str, Any], score: str) -> Iterator[tuple[str, list[float]]]:
    """(metric, [low, high]) of those that an evaluation has."""
    for metric, ends in intervals.get("answers", {}).get(ID_TEST, {}).items():
        yield metric, [_scaled(metric, end) for end in ends]
    for key, metric, ends in _separation(intervals.get(f"ood/{score}", {})):
        yield key, [_scaled(metric, end) for end in ends]


def _separation(sets: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """(what a summary calls it, metric, what there is of it)."""
    for name, metrics in sets.items():
        place = "" if name == AVERAGE else f"_{name}" if name in GROUPS else f"/{name}"
        yield from ((f"{metric}{place}", metric, metrics[metric]) for metric in SEPARATION)


def _costs(run: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(model, metric, value): size, arithmetic, milliseconds a batch, and their ratio to the base model's."""
    costs = run.get("costs")
    if costs is None:
        return
    dtype = _DTYPES.get(costs["settings"]["dtype"], costs["settings"]["dtype"])
    base = costs["models"].get("base")
    for name, cost in costs["models"].items():
        yield name, "params", cost["params"]
        yield name, "mult_adds", cost["mult_adds"]
        if cost["latency_ms"] is None:  # counted, not timed
            continue
        yield name, f"batch_ms_{dtype}", cost["latency_ms"]["median"]
        if base is not None:
            yield name, "latency_ratio", cost["latency_ms"]["median"] / base["latency_ms"]["median"]


def _heads(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(model, how many heads it has in all): of the base model's 36 three members may keep 30×3."""
    members = run.get("heads", {}).get("members", [])
    if not members:
        return
    kept = [sum(len(layer) for tower in heads.values() for layer in tower["kept"]) for heads in members]
    yield "base", str(sum(sum(tower["num_heads"]) for tower in members[0].values()))
    each = f"{kept[0]}×{len(kept)}" if len(set(kept)) == 1 else "+".join(map(str, kept))
    yield from ((name, each) for name in ("members", "hydra"))


def _own(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is not of one set only."""
    yield from ((key, value) for key, value in metrics.items() if "/" not in key)


def _scaled(metric: str, value: float) -> float:
    return 100 * value if metric in PERCENT else value
