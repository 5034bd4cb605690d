"""results/scale.json: the figures of all parts, each from its own results file."""

import json
from typing import Any

from provenance import RESULTS, write_results

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
