"""What a shared trunk costs in quality: hydra (circuit) with k of L blocks shared, from the results of the evidence.

Trained with every seed for a half and two thirds of the blocks, and, seed 0, untrained for every k. Only shares with
all seeds on both tasks, and that take at most 1.60 of one network's time in results/latency.json, are recommended: of
those whose average OOD AUROC is on both tasks at most half a point below that without a trunk, the largest; where
there is none, the one that loses least on the task where it loses most, and the results file says that it loses more.

Run: python benchmarks/trunk.py     (seconds; what the evidence has not measured yet is left out)
Writes results/trunk.json.
"""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from command_line import words
from evidence import summary
from evidence.methods import SEEDS, trunk_of
from evidence.setting import Setting
from hydra_ensembles.report import Column, Figure, Row, Table
from hydra_ensembles.report.summaries import over_seeds
from provenance import NOT_YET, RESULTS, provenance, write_results
from text.setting import SETTING as TEXT
from vision.setting import SETTING as VISION

TASKS = {"cifar100": VISION, "sst2": TEXT}
METHOD = re.compile(r"hydra \(circuit\)(?:, trunk of \d+)?(, no training)?")
WITHIN, SLOWEST = 0.5, 1.60
"""Points of AUROC that a trunk may lose, and the time it may take, in that of one network."""
TIMED = [(dtype, batch) for dtype in ("fp32", "bf16") for batch in (4, 16)]
BLOCKS = 12
"""Of the network that is timed."""

Found = dict[str, dict[str, Any]]
"""By share of the blocks, metrics over seeds."""


def shares_of(setting: Setting) -> tuple[Found, Found]:
    """By share of shared blocks, AUROC and accuracy in percent: trained, and not."""
    column = next(iter(setting.known_tests))
    values: dict[bool, dict[Fraction, dict[str, list[float]]]] = {True: {}, False: {}}
    results = summary.results_of(setting.name) | summary.results_of(f"{setting.name}/claims")
    for (method, _), result in sorted(results.items(), key=lambda item: item[0][1]):
        if matched := METHOD.fullmatch(method):
            share = Fraction(trunk_of(method) or 0, setting.layers)
            metrics = values[matched[1] is None].setdefault(share, {})
            found = result["columns"][column]
            metrics.setdefault("auroc", []).append(100 * found["ood"][summary.SCORE]["average"]["auroc"])
            metrics.setdefault("accuracy", []).append(100 * found["answers"]["accuracy"])
    trained, untrained = (
        {str(share): {name: over_seeds(v) for name, v in of[share].items()} for share in sorted(of)}
        for of in (values[True], values[False])
    )
    return trained, untrained


def speeds_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By share that was timed at every point, as it really runs: the largest time, in one network's, and arithmetic."""
    found: dict[Fraction, dict[tuple[str, int], tuple[float, float]]] = {}
    for row in rows:
        point = row["dtype"], row["batch"]
        if row["mode"] == "eager" and row["last_block"] == "read" and point in TIMED:
            ratios = row["hydra_over"]["single"], row["arithmetic_ratio"]
            found.setdefault(Fraction(row["trunk"], BLOCKS), {})[point] = ratios
    return {
        str(share): {
            "largest_ratio": round(max(ratio for ratio, _ in points.values()), 4),
            "arithmetic_ratio": max(arithmetic for _, arithmetic in points.values()),
        }
        for share, points in sorted(found.items())
        if len(points) == len(TIMED)
    }


def lost(tasks: Mapping[str, Found]) -> dict[str, dict[str, float]]:
    """Points of AUROC that a share loses, by task; shares that have all seeds on all tasks, as no trunk must have."""

    def is_whole(share: str) -> bool:
        found = [tasks.get(task, {}).get(share) for task in TASKS]
        return all(one is not None and one["auroc"]["seeds"] >= len(SEEDS) for one in found)

    shares = [share for share in next(iter(tasks.values()), {}) if share != "0" and is_whole(share) and is_whole("0")]
    return {
        share: {task: round(of["0"]["auroc"]["mean"] - of[share]["auroc"]["mean"], 4) for task, of in tasks.items()}
        for share in shares
    }


def recommended(losses: Mapping[str, Mapping[str, float]], speeds: Mapping[str, Mapping[str, float]]) -> str | None:
    """The share to take; None where no share is fast and measured on both tasks."""
    most = {share: max(by_task.values()) for share, by_task in losses.items()}
    fast = [share for share in most if share in speeds and speeds[share]["largest_ratio"] <= SLOWEST]
    good = [share for share in fast if most[share] <= WITHIN]
    return max(good, key=Fraction) if good else min(fast, key=lambda share: most[share], default=None)


def gathered() -> dict[str, Any]:
    """Everything that trunk.json says but its provenance."""
    latency = RESULTS / "latency.json"
    speeds = speeds_of(json.loads(latency.read_text())["rows"]) if latency.exists() else {}
    shares = {task: shares_of(setting) for task, setting in TASKS.items()}
    tasks = {task: trained for task, (trained, _) in shares.items() if trained}
    untrained = {task: found for task, (_, found) in shares.items() if found}
    losses = lost(tasks)
    chosen = recommended(losses, speeds)
    keeps_up = chosen is not None and max(losses[chosen].values()) <= WITHIN
    said = {"recommended": chosen, "loses_at_most_half_a_point": keeps_up, "auroc_lost": losses}
    return {**said, "tasks": tasks, "speed": speeds, "without_training": untrained}


def table(found: Mapping[str, Mapping[str, Any]], speeds: Mapping[str, Mapping[str, float]], title: str) -> str:
    """One row a share; of both tasks AUROC and accuracy, of the trained ones also the time."""
    shares = sorted({share for task in found.values() for share in task}, key=Fraction)
    columns = [
        Column(f"{task}/{metric}", heading, task)
        for task in found
        for metric, heading in (("auroc", "AUROC"), ("accuracy", "Acc"))
    ]
    columns += [Column("largest_ratio", "time / one network"), Column("arithmetic_ratio", "arithmetic")] * bool(speeds)
    rows = []
    for share in shares:
        cells = {key: Figure(value) for key, value in speeds.get(share, {}).items()}
        for task, of in found.items():
            for metric, one in of.get(share, {}).items():
                cells[f"{task}/{metric}"] = Figure(one["mean"], one["std"], one["seeds"])
        rows.append(Row(share, cells))
    return Table(columns, rows, title=title, row_heading="k/L").markdown()


def as_markdown() -> str:
    """The tables of docs/speed.md."""
    path = RESULTS / "trunk.json"
    if not path.exists():
        return NOT_YET
    found = json.loads(path.read_text())
    said = found["recommended"]
    parts = [table(found["tasks"], found["speed"], "Trained behind the trunk")]
    parts += [table(found["without_training"], {}, "Nothing trained")] if found["without_training"] else []
    if said is None:
        return "\n\n".join([*parts, "No share is recommended yet."])
    losses = ", ".join(f"{points:.2f} on {task}" for task, points in found["auroc_lost"][said].items())
    verdict = "within" if found["loses_at_most_half_a_point"] else "more than"
    parts.append(f"Recommended: k/L = {said}. Points of AUROC lost: {losses}; {verdict} the {WITHIN} asked for.")
    return "\n\n".join(parts)


def main() -> None:
    found = gathered()
    files = [
        path
        for setting in TASKS.values()
        for pattern in ("hydra-circuit-[0-9].json", "claims/hydra-circuit-trunk-of-*.json")
        for path in sorted((RESULTS / setting.name).glob(pattern))
    ]
    files += [RESULTS / "latency.json"]
    write_results("trunk", {**found, "provenance": provenance(inputs=[path for path in files if path.exists()])})
    print(as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
