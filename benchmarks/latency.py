"""Latency of ViT-B/16 with 8 of 12 heads and 3 members, on CPU: one interleaved run a point.

A point is (dtype, batch): single, Deep Ensembles, pruned members, and the hydra with a full last block, as it really
runs, and with a trunk of 6 of 12 blocks. One results file a point, finished ones are skipped.

Run: python benchmarks/latency.py     (about 15 minutes on 2 cores)
Writes results/latency/*.json, one a point, and results/latency.json, all rows.
"""

import json
from typing import Any

import torch
from rich.progress import track

from hydra_ensembles import load_model
from hydra_ensembles.evaluation import contest, interleaved
from provenance import RESULTS, provenance, write_results

REFERENCE, KEEP, MEMBERS, THREADS = "timm:vit_base_patch16_224", 8, 3, 2
VARIANTS = {"full": (0, "full"), "read": (0, "read"), "trunk": (6, "read")}
POINTS = [(dtype, batch) for dtype in ("bf16", "fp32") for batch in (1, 4, 16)]
ROUNDS = {1: 31, 4: 15, 16: 9}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(dtype: str, batch: int) -> dict[str, Any]:
    """All contestants of one point, in one interleaved run."""
    torch.manual_seed(0)
    model = load_model(REFERENCE).to(DTYPES[dtype])
    images = torch.randn(batch, 3, 224, 224).to(DTYPES[dtype])
    contests = {
        name: contest(model, images, KEEP, MEMBERS, trunk, last_block) for name, (trunk, last_block) in VARIANTS.items()
    }
    runs = {name: contests["full"].contestants[name] for name in ("single", "deep_ensembles", "members")}
    runs |= {f"hydra_{name}": c.contestants["hydra"] for name, c in contests.items()}
    with torch.inference_mode():
        *_, timings = track(interleaved(runs, ROUNDS[batch]), f"{dtype} batch {batch}", total=ROUNDS[batch])
    rows = []
    for name, (trunk, last_block) in VARIANTS.items():
        row = {"dtype": dtype, "batch": batch, "trunk": trunk, "last_block": last_block}
        row |= {f"{who}_ms": round(timings[who].median_ms, 2) for who in ("single", "members", "deep_ensembles")}
        row["hydra_ms"] = round(timings[f"hydra_{name}"].median_ms, 2)
        row["arithmetic_ratio"] = round(contests[name].arithmetic_ratio, 4)
        rows.append(row)
    spread = {who: [round(t.low_ms, 2), round(t.high_ms, 2)] for who, t in timings.items()}
    story = provenance(packages=["timm"], model=REFERENCE, keep=KEEP, members=MEMBERS, rounds=ROUNDS[batch])
    return {"rows": rows, "quartiles_ms": spread, "provenance": story}


def as_markdown() -> str:
    """The table of docs/fusion.md."""
    head = "| | batch | hydra | one network, ms | of members | of one network | arithmetic | of three networks |"
    lines = [head, "|---|--:|---|--:|--:|--:|--:|--:|"]
    for row in json.loads((RESULTS / "latency.json").read_text())["rows"]:
        last_block = {"full": "full last block", "read": "as it runs"}[row["last_block"]]
        kind = f"trunk of {row['trunk']}" if row["trunk"] else last_block
        of = {who: row["hydra_ms"] / row[f"{who}_ms"] for who in ("members", "single", "deep_ensembles")}
        lines.append(
            f"| {row['dtype']} | {row['batch']} | {kind} | {row['single_ms']:.0f} | {of['members']:.2f} | "
            f"{of['single']:.2f} | {row['arithmetic_ratio']:.2f} | {of['deep_ensembles']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(THREADS)
    points = []
    for dtype, batch in POINTS:
        path = RESULTS / "latency" / f"vit-b16-{dtype}-{batch}.json"
        if not path.exists():
            write_results(f"latency/vit-b16-{dtype}-{batch}", measure(dtype, batch))
        points.append(json.loads(path.read_text()))
    rows = [row for point in points for row in point["rows"]]
    write_results("latency", {"rows": rows, "provenance": {"points": [point["provenance"] for point in points]}})
    print(as_markdown())


if __name__ == "__main__":
    main()
