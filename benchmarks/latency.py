"""Latency of ViT-B/16 with 8 of 12 heads and 3 members, on CPU: one interleaved run a point.

A point is (mode, dtype, batch): single, Deep Ensembles (as their library runs them, and through our own blocks), pruned
members, and the hydra with a full last block, as it really runs, and with trunks of 6 and 8 of 12 blocks, each beside
its arithmetic alone, bare. Each point has a process of its own, as what ran before changes how memory is given, and one
results file; finished ones are skipped.

Run: python benchmarks/latency.py     (on cores that do nothing else; where they are slow in bf16, for hours)
     python benchmarks/latency.py eager fp32 4     (one point)
     python benchmarks/latency.py table     (seconds; puts together the points that are there)
Writes results/latency/*.json, one a point, results/latency.json, all rows, and docs/pictures/latency.png.
"""

import copy
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from command_line import words
from hydra_ensembles import Backbone, load_model
from hydra_ensembles.evaluation import contest, interleaved
from hydra_ensembles.evaluation.latency import moved
from hydra_ensembles.heads import single_cost
from hydra_ensembles.report.drawing import new_figure, styled
from hydra_ensembles.report.looks import look
from provenance import RESULTS, machine, provenance, write_results

REFERENCE, KEEP, MEMBERS, THREADS = "timm:vit_base_patch16_224", 8, 3, 2
VARIANTS = {"full": (0, "full"), "read": (0, "read"), "trunk6": (6, "read"), "trunk8": (8, "read")}
"""By name, shared blocks and how the last block runs."""
EAGER = [(dtype, batch) for dtype in ("fp32", "bf16") for batch in (1, 4, 16)] + [("bf16", 64)]
POINTS = [("eager", *point) for point in EAGER] + [("compiled", "fp32", 4), ("compiled", "bf16", 4)]
ROUNDS = {1: 31, 4: 15, 16: 9, 64: 3}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OTHERS = ("single", "deep_ensembles", "deep_ensembles_ours")
RATIOS = ("bare", "members", "deep_ensembles", "deep_ensembles_ours", "single")
"""What a hydra's time is set against, round by round."""
PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "latency.png"
SHOWN_BATCH = 4


def measure(
    model: nn.Module, images: torch.Tensor, keep: int, variants: Mapping[str, tuple[int, str]], mode: str, rounds: int
) -> dict[str, Any]:
    """All contestants of one point, in one interleaved run: its rows, and what everybody costs."""
    runs: dict[str, Callable[[], object]] = {}
    ratios, single = {}, single_cost(Backbone.of(model))
    costs = {"single": vars(single), "deep_ensembles": {key: MEMBERS * value for key, value in vars(single).items()}}
    for name, (trunk, last_block) in variants.items():
        match = contest(model, images, keep, MEMBERS, trunk, last_block, mode == "compiled")
        runs = runs or {who: match.contestants[who] for who in OTHERS if who in match.contestants}
        if mode == "eager" and "deep_ensembles_ours" not in runs:
            ours = [Backbone.of(moved(copy.deepcopy(model), seed, 0)) for seed in range(MEMBERS)]
            runs["deep_ensembles_ours"] = partial(_one_after_another, ours, images)
        runs.setdefault(f"members_{trunk}", match.contestants["members"])
        runs |= {f"{who}_{name}": match.contestants[who] for who in ("hydra", "bare")}
        ratios[name] = match.arithmetic_ratio
        params = sum(p.numel() for p in match.hydra.parameters())
        costs[name] = {"params": params, "mult_adds": round(ratios[name] * single.mult_adds)}
    with torch.inference_mode():
        for timings in interleaved(runs, rounds):
            done = len(timings["single"].times_ms)
            print(f"\r{mode} batch {len(images)}: round {done} of {rounds}", end="", flush=True)
            gc.collect()
    print()
    rows = []
    for name, (trunk, last_block) in variants.items():
        found = {who: timings[who] for who in OTHERS if who in timings}
        found["members"] = timings[f"members_{trunk}"]
        found |= {who: timings[f"{who}_{name}"] for who in ("hydra", "bare")}
        row: dict[str, Any] = {"mode": mode, "batch": len(images), "trunk": trunk, "last_block": last_block}
        row |= {f"{who}_ms": round(timing.median_ms, 2) for who, timing in found.items()}
        row["arithmetic_ratio"] = round(ratios[name], 4)
        row["quartiles_ms"] = {who: [round(t.low_ms, 2), round(t.high_ms, 2)] for who, t in found.items()}
        over = {who: found["hydra"].over(found[who]) for who in RATIOS if who in found}
        row["hydra_over"] = {who: round(ratio.median_ms, 4) for who, ratio in over.items()}
        row["hydra_over_quartiles"] = {who: [round(r.low_ms, 4), round(r.high_ms, 4)] for who, r in over.items()}
        rows.append(row)
    return {"rows": rows, "costs": costs}


def _one_after_another(networks: Sequence[nn.Module], images: torch.Tensor) -> list[torch.Tensor]:
    return [network(images) for network in networks]


def vit_b16(mode: str, dtype: str, batch: int) -> dict[str, Any]:
    """One point of the real thing."""
    torch.manual_seed(0)
    model = load_model(REFERENCE).to(DTYPES[dtype])
    images = torch.randn(batch, 3, 224, 224).to(DTYPES[dtype])
    found = measure(model, images, KEEP, VARIANTS, mode, ROUNDS[batch])
    rows = [{"model": REFERENCE, "dtype": dtype, **row} for row in found["rows"]]
    story = provenance(packages=["timm"], keep=KEEP, members=MEMBERS, rounds=ROUNDS[batch], machine=machine())
    return {**found, "rows": rows, "provenance": story}


def as_markdown() -> str:
    """The table of docs/speed.md, and the picture where it is drawn."""
    head = (
        "| | batch | hydra | one network, ms | hydra, ms | of bare | of members | of three networks | of one network "
        "| arithmetic |"
    )
    lines = [head, "|---|--:|---|" + "--:|" * 7]
    for row in json.loads((RESULTS / "latency.json").read_text())["rows"]:
        compiled = ", compiled" if row["mode"] == "compiled" else ""
        of = [f"{row['hydra_over'][who]:.2f}" for who in OF]
        lines.append(
            f"| {row['dtype']}{compiled} | {row['batch']} | {variant_of(row)} | {row['single_ms']:.0f} | "
            f"{row['hydra_ms']:.0f} | {' | '.join(of)} | {row['arithmetic_ratio']:.2f} |"
        )
    if left := not_measured():
        lines += ["", f"Not measured yet: {', '.join(left)}."]
    if PICTURE.exists():
        lines += ["", f"![Time a batch, parameters and multiply-adds]({PICTURE.parent.name}/{PICTURE.name})"]
    return "\n".join(lines)


OF = ("bare", "members", "deep_ensembles", "single")


def variant_of(row: Mapping[str, Any]) -> str:
    if row["trunk"]:
        return f"trunk of {row['trunk']}"
    return {"full": "full last block", "read": "as it runs"}[row["last_block"]]


def draw(rows: Sequence[Mapping[str, Any]], costs: Mapping[str, Mapping[str, int]], batch: int = SHOWN_BATCH) -> Any:
    """The paper's Figure 3: time a batch in bf16 and fp32, parameters, multiply-adds. Thin lines are quartiles."""
    rows = [row for row in rows if row["mode"] == "eager" and row["batch"] == batch]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    bars = {"single": "one network", "deep_ensembles": "three networks"}
    bars |= {name: f"hydra, {variant_of({'trunk': t, 'last_block': b})}" for name, (t, b) in VARIANTS.items()}
    figure = new_figure(8.4, 3.4)
    times, *others = figure.subplots(1, 3, width_ratios=[len(dtypes) + 0.5, 1, 1])
    for place, (name, label) in enumerate(bars.items()):
        colour = look(place).colour
        for group, dtype in enumerate(dtypes):
            row = next(r for r in rows if r["dtype"] == dtype and name in (*OTHERS, _name(r)))
            who = name if name in OTHERS else "hydra"
            at = group * (len(bars) + 1.5) + place
            times.bar(at, row[f"{who}_ms"], color=colour, width=0.8, label=label if group == 0 else None)
            times.plot([at, at], row["quartiles_ms"][who], color="black", linewidth=0.8)
        for panel, (key, unit) in zip(others, (("params", 1e-6), ("mult_adds", 1e-9)), strict=True):
            panel.bar(place, unit * costs[name][key], color=colour, width=0.8)
    middle = (len(bars) - 1) / 2
    times.set_xticks([group * (len(bars) + 1.5) + middle for group in range(len(dtypes))], dtypes)
    times.set_title(f"ms a batch of {batch}")
    for panel, title in zip(others, ("parameters, M", "multiply-adds, G"), strict=True):
        panel.set_title(title)
        panel.set_xticks([])
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _name(row: Mapping[str, Any]) -> str:
    return next(name for name, variant in VARIANTS.items() if variant == (row["trunk"], row["last_block"]))


NAMED: dict[tuple[str, ...], str] = {
    (mode, dtype, str(batch)): f"latency/vit-b16-{mode}-{dtype}-{batch}" for mode, dtype, batch in POINTS
}
"""Results files by what names a point on the command line."""
TABLE = "table"


def not_measured() -> list[str]:
    """Points without a results file."""
    return [" ".join(point) for point, name in NAMED.items() if not (RESULTS / f"{name}.json").exists()]


def put_together() -> None:
    """All rows in one file, and the picture, from the points that are there."""
    paths = [path for name in NAMED.values() if (path := RESULTS / f"{name}.json").exists()]
    points = [json.loads(path.read_text()) for path in paths]
    rows, costs = [row for point in points for row in point["rows"]], points[0]["costs"]
    story = {"points": [point["provenance"] for point in points]}
    write_results("latency", {"rows": rows, "costs": costs, "provenance": story})
    PICTURE.parent.mkdir(exist_ok=True)
    with styled():
        draw(rows, costs).savefig(PICTURE, dpi=110, metadata={"Software": None})
    print(as_markdown())


def main() -> None:
    said = tuple(words(__doc__, 3))
    if said and said not in {*NAMED, (TABLE,)}:
        sys.exit(f"{' '.join(said)} is neither a point, as eager fp32 4 is, nor '{TABLE}'; without words all run")
    if said in NAMED:
        torch.set_num_threads(THREADS)
        # Else what is compiled too often would go on uncompiled, without a word.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        mode, dtype, batch = said
        write_results(NAMED[said], vit_b16(mode, dtype, int(batch)))
        return
    for point in not_measured() if said != (TABLE,) else []:
        subprocess.run([sys.executable, __file__, *point.split()], check=True)
    put_together()


if __name__ == "__main__":
    main()
