"""Where the time of a point goes: the hydra with a full last block beside its members and its bare arithmetic.

Run: python benchmarks/latency_profile.py [bf16 16]     (a minute on 2 cores)
Writes results/latency/profile-DTYPE-BATCH.json: milliseconds a forward in each kind of operation.
"""

import torch
from torch.profiler import ProfilerActivity, profile

from command_line import words
from hydra_ensembles import load_model
from hydra_ensembles.evaluation import contest
from latency import DTYPES, KEEP, MEMBERS, REFERENCE, THREADS
from provenance import machine, provenance, write_results

ROUNDS, SHOWN = 4, 9


def main() -> None:
    dtype, batch = words(__doc__, 2) or ("bf16", "16")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = load_model(REFERENCE).to(DTYPES[dtype])
    images = torch.randn(int(batch), 3, 224, 224).to(DTYPES[dtype])
    runs = contest(model, images, KEEP, MEMBERS, 0, "full").contestants
    found: dict[str, dict[str, float]] = {name: {} for name in ("members", "hydra", "bare")}
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
    story = provenance(
        packages=["timm"], model=REFERENCE, dtype=dtype, batch=int(batch), rounds=ROUNDS, machine=machine()
    )
    write_results(f"latency/profile-{dtype}-{batch}", {**results, "provenance": story})


if __name__ == "__main__":
    main()
