"""What a circuit search spends: fast against plain on random weights, lazy against exact on a real model.

Run: python benchmarks/search.py     (about 45 minutes on 2 cores; needs the real data)
Writes results/search/*.json, one a part, and results/search.json. Finished parts are skipped.
"""

import json
import time
from statistics import mean, median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from command_line import words
from hydra_ensembles import Backbone, HeadSet
from hydra_ensembles.backbones.state import State
from hydra_ensembles.heads.cost import tokens_of
from hydra_ensembles.scoring import circuit_ranking
from hydra_ensembles.scoring.candidates import TOKENS_AT_ONCE
from hydra_ensembles.scoring.work import least_block_forwards, plain_block_forwards
from provenance import RESULTS, provenance, write_results

LAYERS, HEADS, WIDTH, ROWS, REMOVALS, BATCH, ROUNDS, THREADS = 12, 12, 192, 128, 2, 32, 1, 2


def fast_against_plain() -> dict[str, Any]:
    """12 layers x 12 heads, width 192, 50 tokens, 128 + 128 inputs, 2 removals; one interleaved run."""
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=112, patch_size=16, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS, num_classes=10
    ).eval()
    known, unknown = torch.randn(ROWS, 3, 112, 112), torch.randn(ROWS, 3, 112, 112) + 0.5
    labels = torch.randint(0, 10, (ROWS,))
    backbone, start = Backbone.of(model), HeadSet.all(model)
    tokens = {"vision": tokens_of(backbone.towers["vision"])}

    def search(kind: str) -> Any:
        return circuit_ranking(
            model, (known, labels), unknown, "avg", REMOVALS, search=kind, batch_size=BATCH, progress=False
        )

    times: dict[str, list[float]] = {"plain": [], "fast": [], "bare": []}
    rankings = {}
    for _ in track(range(ROUNDS), "fast against plain"):
        for kind in ("plain", "fast"):
            started = time.perf_counter()
            rankings[kind] = search(kind)
            times[kind].append(time.perf_counter() - started)
        started = time.perf_counter()
        bare(backbone, torch.cat([known, unknown]))
        times["bare"].append(time.perf_counter() - started)
    assert rankings["fast"].removed == rankings["plain"].removed
    spent = {kind: rankings[kind].how["block_forwards"] for kind in rankings}
    least = 2 * ROWS * least_block_forwards(backbone, start, rankings["fast"].removed, start, tokens)
    steps = [len(start) - done for done in range(REMOVALS)]
    assert spent["plain"] == plain_block_forwards(steps, LAYERS, 2 * ROWS)
    seconds = {kind: median(taken) for kind, taken in times.items()}
    return {
        "over_bound": round(spent["fast"] / least, 4),
        "time_ratio": round(seconds["fast"] / seconds["plain"], 4),
        "time_over_bare": round(seconds["fast"] / seconds["bare"], 4),
        "block_forwards": {"bound": round(least), "fast": round(spent["fast"]), "plain": round(spent["plain"])},
        "seconds": {kind: [round(s, 2) for s in taken] for kind, taken in times.items()},
        "same_ranking": True,
        "provenance": provenance(packages=["timm"], rounds=ROUNDS, batch=BATCH, tokens_at_once=TOKENS_AT_ONCE),
    }


@torch.inference_mode()
def bare(backbone: Backbone, images: Tensor) -> None:
    """The same block forwards with nothing around them: no subtraction, no scores, no bookkeeping.

    For every removal and batch: one pass, and from every layer on what its candidates compute, on states that are
    there already and in groups of the same size.
    """
    tower = backbone.towers["vision"]
    blocks: list[Any] = list(tower.blocks)
    first: State = tower.stem(images[:BATCH])
    T, D = first.tokens.shape[1:]
    group = max(1, TOKENS_AT_ONCE // (BATCH * T))
    last = len(blocks) - 1
    tokens, attention = torch.randn(group * BATCH, T, D), torch.randn(group * BATCH, T, D)
    read = tower.readout.reads(first)
    for removal in range(REMOVALS):
        for _ in range(0, len(images), BATCH):
            whole = first
            for layer, block in enumerate(blocks):
                whole = block(whole, read if layer == last else None)
            gone = removal  # which layers lost a head does not matter to a reference: the first ones
            for layer, block in enumerate(blocks):
                left = HEADS - (1 if layer < gone else 0)
                while left > 0:
                    size = min(group, left)
                    left -= size
                    is_last = layer == last
                    state = first._replace(tokens=tokens[: size * BATCH])
                    made = attention[: size * BATCH, :1] if is_last else attention[: size * BATCH]
                    apart = block.finish(state, made, read if is_last else None)
                    for later in range(layer + 1, len(blocks)):
                        apart = blocks[later](apart, read if later == last else None)


def lazy_against_exact(draw: int) -> dict[str, Any]:
    """MiniLM fine-tuned on SST-2: half of its 72 heads removed on 256 + 256 sentences, judged on the others."""
    from real_text import ID_ROWS, KEPT, judged_on, minilm_on_sst2, validation

    model = minilm_on_sst2()
    known, unknown, rest = validation(model, draw)
    rankings = {
        kind: circuit_ranking(
            model, known, unknown, "avg", 36, search=kind, journal=KEPT / f"search-{kind}-{draw}.jsonl", progress=True
        )
        for kind in ("lazy", "fast")
    }
    layers = sum(1 for _ in model.backbone.blocks())
    plain = plain_block_forwards([72 - done for done in range(36)], layers, 2 * ID_ROWS)
    held_out = {kind: judged_on(model, ranking.keep(36), rest) for kind, ranking in rankings.items()}
    return {
        "draw": draw,
        "block_forwards": {kind: round(r.how["block_forwards"]) for kind, r in rankings.items()}
        | {"plain": round(plain)},
        "block_forwards_ratio": rankings["lazy"].how["block_forwards"] / plain,
        "held_out_score": held_out,
        "score_gap": 100 * (held_out["fast"] - held_out["lazy"]),
        "seconds": {kind: r.how["seconds"] for kind, r in rankings.items()},
        "sure": {key: rankings["lazy"].how[key] for key in ("rival", "regret")},
        "validation_score": {kind: r.scores[-1] for kind, r in rankings.items()},
        "provenance": provenance(packages=["transformers"], objective="avg", remove=36, rows=2 * ID_ROWS),
    }


def as_markdown() -> str:
    """The table of docs/choosing-heads.md."""
    found = json.loads((RESULTS / "search.json").read_text())
    part = json.loads((RESULTS / "search" / "fast.json").read_text())
    forwards, fast, lazy = part["block_forwards"], found["fast"], found["lazy"]
    return "\n".join(
        [
            "| 12 layers x 12 heads, width 192, 50 tokens, 128 + 128 inputs, 2 removals | |",
            "|---|--:|",
            f"| block forwards: plain | {forwards['plain']:,} |",
            f"| the least that reuse of prefixes allows for this ranking | {forwards['bound']:,} |",
            f"| fast | {forwards['fast']:,} ({fast['over_bound']:.3f} of the least) |",
            f"| time, fast over plain | {fast['time_ratio']:.2f} |",
            f"| time, fast over the same block forwards run bare | {fast['time_over_bare']:.2f} |",
            "| **MiniLM on SST-2, 36 of 72 heads, 256 + 256 sentences, mean of 3 draws** | |",
            f"| block forwards, lazy over plain | {lazy['block_forwards_ratio']:.3f} |",
            f"| score on the other validation rows, exact minus lazy | {lazy['score_gap']:.2f} points |",
        ]
    )


def main() -> None:
    torch.set_num_threads(THREADS)
    parts: dict[str, Any] = {"fast": fast_against_plain}
    parts |= {f"lazy-{draw}": lambda draw=draw: lazy_against_exact(draw) for draw in range(3)}
    done = {}
    for name, part in parts.items():
        path = RESULTS / "search" / f"{name}.json"
        if not path.exists():
            write_results(f"search/{name}", part())
        done[name] = json.loads(path.read_text())
    draws = [done[name] for name in parts if name.startswith("lazy")]
    fast = {key: done["fast"][key] for key in ("over_bound", "time_ratio", "time_over_bare")}
    lazy = {
        "block_forwards_ratio": round(mean(draw["block_forwards_ratio"] for draw in draws), 4),
        "score_gap": round(mean(draw["score_gap"] for draw in draws), 4),
    }
    story = {name: part["provenance"] for name, part in done.items()}
    write_results("search", {"fast": fast, "lazy": lazy, "provenance": story})
    print(as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
