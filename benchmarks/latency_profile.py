"""Where the time goes at the point where fusion costs most: ViT-B/16, bf16, batch 16, full last block on both sides.

Run: python benchmarks/latency_profile.py     (under a minute on 2 cores)
Writes results/latency-profile.json: milliseconds a forward in each kind of operation, members against hydra.
"""

import torch
from torch.profiler import ProfilerActivity, profile

from hydra_ensembles import load_model
from hydra_ensembles.evaluation import contest
from latency import KEEP, MEMBERS, REFERENCE, THREADS
from provenance import provenance, write_results

BATCH, ROUNDS, SHOWN = 16, 4, 9


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = load_model(REFERENCE).to(torch.bfloat16)
    runs = contest(model, torch.randn(BATCH, 3, 224, 224).bfloat16(), KEEP, MEMBERS, 0, "full").contestants
    found: dict[str, dict[str, float]] = {name: {} for name in ("members", "hydra")}
    with torch.inference_mode():
        for turn in range(ROUNDS + 1):
            for name in found:
                with profile(activities=[ProfilerActivity.CPU]) as recorder:
                    runs[name]()
                for event in recorder.key_averages() if turn else ():
                    spent = event.self_cpu_time_total / 1e3 / ROUNDS
                    found[name][event.key] = found[name].get(event.key, 0.0) + spent
    results = {}
    for name, spent in found.items():
        top = sorted(spent, key=lambda key: -spent[key])[:SHOWN]
        results[name] = {"all_ms": round(sum(spent.values()), 1), **{key: round(spent[key], 1) for key in top}}
    story = provenance(packages=["timm"], model=REFERENCE, dtype="bf16", batch=BATCH, rounds=ROUNDS)
    write_results("latency-profile", {**results, "provenance": story})


if __name__ == "__main__":
    main()
