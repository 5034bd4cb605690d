"""results/scale.json: the figures of all parts, each from its own results file; and the tables of docs/scale.md.

Run: python benchmarks/scaling/summary.py     (after any of the others; seconds)
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from provenance import NOT_YET, RESULTS, write_results

SHOWN = {
    "search": ("speedup", "overhead"),
    "bulk": ("over_bare", "distinct_ids"),
    "serving": ("over_bare", "other_status", "p50_ms", "p99_ms"),
}


def write_part(part: str, results: dict[str, Any]) -> None:
    """One part's file, and the summary of all that are there."""
    write_results(f"scale/{part}", results)
    found = {name: RESULTS / "scale" / f"{name}.json" for name in SHOWN}
    there = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    write_results("scale", {name: {key: of[key] for key in SHOWN[name]} for name, of in there.items()})


def read(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "scale" / f"{part}.json").read_text())
    return found


def as_markdown() -> str:
    """The table of docs/scale.md: what was asked for, and what was found."""
    if not all((RESULTS / "scale" / f"{part}.json").exists() for part in SHOWN):
        return NOT_YET
    search, bulk, serving = (read(part) for part in SHOWN)
    load = serving["saturated"]
    generator = max(one["own_cpu_seconds"] / one["seconds"] for one in load)
    overload, dead = (serving[name]["statuses"] for name in ("overload", "replica_killed"))
    memory = [one["replica_mb"] + one["front_mb"] for one in serving["overload"]["memory"]]
    rows = [
        ("search: 2 workers over 1, one thread each", "at least 1.7", f"{search['speedup']:.2f}"),
        ("search: 1 worker over the local search", "at most + 15 %", f"{100 * search['overhead']:+.1f} %"),
        ("search: same ranking, a worker killed, the driver killed", "yes", _yes(search)),
        ("bulk: rows a second, over a bare loop", "at least 0.85", f"{bulk['over_bare']:.2f}"),
        ("bulk: distinct ids of 100,000, killed three times", "100,000", f"{bulk['distinct_ids']:,}"),
        ("service: images a second at saturation, over the bare model", "at least 0.8", f"{serving['over_bare']:.2f}"),
        ("service: CPUs that the load generator took of the two", "said", f"{generator:.2f}"),
        ("service: p50 and p99 at half load", "said", f"{serving['p50_ms']:.0f} and {serving['p99_ms']:.0f} ms"),
        ("service: 10 minutes of twice the load, answers by status", "200 and 429", _statuses(overload)),
        (
            "service: memory of front and replica, first and last minute",
            "flat",
            f"{memory[0]:.0f}, {memory[-1]:.0f} MB",
        ),
        ("service: a replica killed under load, answers by status", "200 and 429", _statuses(dead)),
    ]
    head = ["| | asked for | found |", "|---|--:|--:|"]
    return "\n".join(head + [f"| {what} | {wanted} | {found} |" for what, wanted, found in rows])


def simulated_markdown() -> str:
    """What the simulation found."""
    if not (RESULTS / "scale" / "simulation.json").exists():
        return NOT_YET
    found = read("simulation")
    measured, bulk = found["measured"], found["bulk"]
    lines = ["| simulated | |", "|---|--:|"]
    lines.append(f"| measured: what one driver spends on a block | {measured['block_ms']:.1f} ms |")
    lines.append(f"| measured: what it spends on a shard of a search | {measured['shard_ms']:.1f} ms |")
    lines.append(f"| measured: texts a second and core | {measured['rows_a_second_a_core']:.0f} |")
    for name, one in bulk.items():
        if isinstance(one, dict):
            words = f"10^9 texts, 1,000 workers, {name}"
            lines.append(f"| {words} | {one['hours']:.1f} h, workers busy {100 * one['busy']:.0f} % |")
    for shards, by_workers in found["search"].items():
        told = ", ".join(f"{int(workers):,}: {speed:g}x" for workers, speed in by_workers.items() if workers != "1")
        lines.append(f"| a search with {shards} a step, speedup by workers | {told} |")
    for name, one in found["serving"].items():
        if isinstance(one, dict):
            told = f"{one['replicas']} replicas, p50 {one['p50_ms']:.0f} ms, p99 {one['p99_ms']:.0f} ms"
            lines.append(f"| 10,000 requests a second at {name} | {told} |")
    return "\n".join(lines)


def _yes(search: dict[str, Any]) -> str:
    names = ("same_ranking", "same_with_a_worker_killed", "same_with_the_driver_killed")
    return "yes" if all(search[name] for name in names) else "no: " + ", ".join(n for n in names if not search[n])


def _statuses(found: dict[str, int]) -> str:
    return ", ".join(f"{status}: {number:,}" for status, number in found.items())


def main() -> None:
    """Put both tables into docs/scale.md."""
    page = RESULTS.parent.parent / "docs" / "scale.md"
    text = page.read_text()
    for name, table in (("scale", as_markdown()), ("simulated", simulated_markdown())):
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{rest.partition(f'<!-- /{name} -->')[2]}"
    page.write_text(text)


if __name__ == "__main__":
    words(__doc__)
    main()
