"""The schedulers at 1,000 workers, simulated with task times that were measured here.

Three questions: how long 10^9 rows take and when one driver is too few; how far a circuit search scales before its
steps, each of which waits for the slowest shard, stop it; how many replicas 10,000 requests a second need, and at
which latency. What is measured anew: how fast one driver hands out blocks and shards that cost nothing.

Run: python benchmarks/scaling/simulation.py     (about 2 minutes on 2 cores; after bulk.py, search.py and serving.py)
Writes results/scale/simulation.json.
"""

import heapq
import json
import random
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from hydra_ensembles.scale.cluster import cluster
from provenance import RESULTS, provenance, write_results

WORKERS, ROWS, REQUESTS = 1000, 10**9, 10_000
PROBED = 400


class Nothing:
    """A worker whose blocks cost nothing."""

    def __call__(self, batch: Any) -> Any:
        return {"rows": [1]}


def dispatch_ms(ray: Any) -> dict[str, float]:
    """What one driver spends on a block of bulk scoring, and on a shard of a search."""
    import ray.data as data

    context = data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False

    def blocks(number: int) -> float:
        items = data.from_items([{"block": one} for one in range(number)], override_num_blocks=number)
        started = time.perf_counter()
        for _ in items.map_batches(
            Nothing, batch_size=1, num_cpus=1, compute=data.ActorPoolStrategy(size=1)
        ).iter_batches(batch_size=1):
            pass
        return time.perf_counter() - started

    few = blocks(10)  # what starting costs
    block = (blocks(PROBED) - few) / (PROBED - 10)

    class Echo:
        def answer(self) -> int:
            return 0

    echo = ray.remote(Echo).remote()
    ray.get(echo.answer.remote())
    started = time.perf_counter()
    for _ in range(PROBED):
        ray.get(echo.answer.remote())
    return {"block_ms": round(1000 * block, 2), "shard_ms": round(1000 * (time.perf_counter() - started) / PROBED, 2)}


def bulk(times: list[float], block_rows: int, rows_a_block: int, workers: int, dispatch_s: float) -> dict[str, float]:
    """A queue of blocks, one driver that hands them out one by one, workers that take what they can get."""
    chance = random.Random(0)
    number = ROWS // rows_a_block
    free = [0.0] * workers
    driver = busy = 0.0
    for _ in range(number):
        ready = heapq.heappop(free)
        driver = max(driver, ready) + dispatch_s
        took = chance.choice(times) * rows_a_block / block_rows
        busy += took
        heapq.heappush(free, driver + took)
    end = max(free)
    return {"hours": round(end / 3600, 2), "busy": round(busy / (workers * end), 3)}


def search(times: list[float], shards: int, workers: int, dispatch_s: float, steps: int = 20) -> float:
    """Speedup over one worker: every step ends with its slowest shard."""
    chance = random.Random(0)
    total = alone = 0.0
    for _ in range(steps):
        free, driver = [0.0] * workers, 0.0
        for _ in range(shards):
            ready = heapq.heappop(free)
            driver = max(driver, ready) + dispatch_s
            took = chance.choice(times)
            alone += took + dispatch_s
            heapq.heappush(free, driver + took)
        total += max(free)
    return round(alone / total, 1)


def serving(
    batch_s: float, alone_s: float, batch: int, replicas: int, rate: float, seconds: float = 20.0
) -> dict[str, float]:
    """Requests come at random, each to the shorter queue of two replicas; a replica takes all that wait, up to 16."""
    chance = random.Random(0)
    queues: list[list[float]] = [[] for _ in range(replicas)]
    free = [0.0] * replicas
    waits: list[float] = []
    now = 0.0

    def work(one: int, until: float) -> None:
        """Let a replica finish what it can begin before a time."""
        queue = queues[one]
        while queue and max(free[one], queue[0]) <= until:
            begin = max(free[one], queue[0])
            taken = [came for came in queue if came <= begin][:batch]
            del queue[: len(taken)]
            # A batch costs in proportion to its size, but never less than a request alone does.
            free[one] = begin + max(alone_s, batch_s * len(taken) / batch)
            waits.extend(free[one] - came for came in taken)

    while now < seconds:
        now += chance.expovariate(rate)
        pair = chance.sample(range(replicas), 2)
        for one in pair:
            work(one, now)
        shorter = min(pair, key=lambda one: (len(queues[one]), free[one]))
        queues[shorter].append(now)
    for one in range(replicas):
        work(one, float("inf"))
    waits.sort()
    return {"p50_ms": round(1000 * waits[len(waits) // 2], 1), "p99_ms": round(1000 * waits[int(0.99 * len(waits))], 1)}


def main() -> None:
    found = {
        name: json.loads((RESULTS / "scale" / f"{name}.json").read_text()) for name in ("bulk", "search", "serving")
    }
    with cluster(1) as ray:
        spent = dispatch_ms(ray)
    times, block_rows = found["bulk"]["block_seconds"], found["bulk"]["block_rows"]
    block_s, shard_s = spent["block_ms"] / 1000, spent["shard_ms"] / 1000
    per_core = block_rows / median(times)
    bulk_runs = {
        f"{rows} rows a block": bulk(times, block_rows, rows, WORKERS, block_s) for rows in (256, 1024, 4096, 16384)
    }
    shards = found["search"]["provenance"]["rows"] // found["search"]["provenance"]["batch"]
    step = mean(found["search"]["seconds"]["1 worker"]) / found["search"]["provenance"]["remove"]
    spread = [step / shards * factor for factor in (0.8, 0.9, 1.0, 1.1, 1.2)]
    search_runs = {
        f"{number} shards": {
            str(workers): search(spread, number, workers, shard_s) for workers in (1, 2, 10, 100, 1000)
        }
        for number in (100, 1000, 10_000)
    }
    saturated = median(one["answered_a_second"] for one in found["serving"]["saturated"])
    batch = found["serving"]["provenance"]["batch"]
    alone_s = found["serving"]["p50_ms"] / 1000
    needed = {share: -(-REQUESTS // int(saturated * share)) for share in (0.5, 0.7, 0.9)}
    serving_runs = {
        f"{int(100 * share)} % load": {
            "replicas": number,
            **serving(batch / saturated, alone_s, batch, number, REQUESTS),
        }
        for share, number in needed.items()
    }
    results = {
        "measured": {**spent, "rows_a_second_a_core": round(per_core, 1), "images_a_second_a_replica": saturated},
        "bulk": {"rows": ROWS, "workers": WORKERS, **bulk_runs},
        "search": search_runs,
        "serving": {"requests_a_second": REQUESTS, **serving_runs},
        "provenance": provenance(packages=["ray"]),
    }
    write_results("scale/simulation", results)


if __name__ == "__main__":
    words(__doc__)
    main()
