"""Circuit search on Ray against the local search: two workers, one, none; a killed worker, a killed driver.

MiniLM, 32 + 32 sentences, 2 removals, one thread each; rounds of local, 1 worker, 2 workers, one after another.

Run: python benchmarks/scaling/search.py     (about 6 minutes on 2 cores; needs the real data)
Writes results/scale/search.json and the part of results/scale.json.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from hydra_ensembles import scale
from hydra_ensembles.heads import HeadRanking
from hydra_ensembles.scale.cluster import cluster
from hydra_ensembles.scoring import circuit_ranking
from provenance import provenance
from scaling.summary import write_part
from text.setting import load, texts

ROWS, BATCH, REMOVE, ROUNDS = 32, 4, 2, 3


def asked() -> tuple[Any, Any, Any]:
    """Model, known and unknown sentences."""
    model = load(0)
    known = texts(model, f"sst2-train.parquet[:{ROWS}]", batch_size=BATCH)
    return model, known, texts(model, f"ag-news.parquet[:{ROWS}]", labels=False, batch_size=BATCH)


def found(ranking: HeadRanking) -> list[Any]:
    return [*ranking.removed, *ranking.scores]


def measured() -> dict[str, Any]:
    """Seconds of the removals themselves, and of all with the start of the workers."""
    question = asked()
    runs: dict[str, Callable[[], HeadRanking]] = {
        "here": lambda: circuit_ranking(*question, "avg", REMOVE, progress=False),
        "1 worker": lambda: scale.circuit_ranking(*question, "avg", REMOVE, workers=1, progress=False),
        "2 workers": lambda: scale.circuit_ranking(*question, "avg", REMOVE, workers=2, progress=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    starts: dict[str, list[float]] = {name: [] for name in runs}
    rankings = {}
    for number in range(ROUNDS):
        for name, run in runs.items():
            print(f"round {number + 1} of {ROUNDS}: {name}", flush=True)
            started = time.perf_counter()
            rankings[name] = run()
            spent = float(rankings[name].how["seconds"])
            seconds[name].append(round(spent, 2))
            starts[name].append(round(time.perf_counter() - started - spent, 2))
    pairs = list(zip(*(seconds[name] for name in runs), strict=True))
    return {
        "speedup": round(median(one / two for _, one, two in pairs), 3),
        "overhead": round(median(one / here for here, one, _ in pairs) - 1, 3),
        "same_ranking": len({str(found(ranking)) for ranking in rankings.values()}) == 1,
        "seconds": seconds,
        "start_seconds": starts,
        "expected": found(rankings["here"]),
    }


def with_a_worker_killed() -> list[Any]:
    """One of two workers is killed while the second removal is searched."""
    model, known, unknown = asked()

    def kill() -> None:
        _wait_for_lines(journal, 2)
        time.sleep(4)
        names = {place.name: _title(place) for place in Path("/proc").iterdir() if place.name.isdigit()}
        os.kill(int(next(pid for pid, title in names.items() if title.startswith("ray::Searcher"))), signal.SIGKILL)

    journal = Path(tempfile.mkdtemp()) / "journal.jsonl"
    watching = threading.Thread(target=kill)
    watching.start()
    ranking = scale.circuit_ranking(model, known, unknown, "avg", REMOVE, workers=2, journal=journal, progress=False)
    watching.join()
    return found(ranking)


def with_the_driver_killed() -> list[Any]:
    """A driver on Ray is killed after its first removal; another goes on from the journal."""
    journal = Path(tempfile.mkdtemp()) / "journal.jsonl"
    driver = subprocess.Popen([sys.executable, __file__, "driver", str(journal)], start_new_session=True)
    _wait_for_lines(journal, 2)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    return found(scale.circuit_ranking(*asked(), "avg", REMOVE, workers=2, journal=journal, progress=False))


def _wait_for_lines(path: Path, lines: int) -> None:
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        time.sleep(0.1)


def _title(place: Path) -> str:
    try:
        return (place / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["driver"]:
        scale.circuit_ranking(*asked(), "avg", REMOVE, workers=2, journal=sys.argv[2], progress=False)
        return
    with cluster(2):
        results = measured()
        expected = results.pop("expected")
        results["same_with_a_worker_killed"] = with_a_worker_killed() == expected
    results["same_with_the_driver_killed"] = with_the_driver_killed() == expected
    story = provenance(packages=["ray", "transformers"], rows=2 * ROWS, batch=BATCH, remove=REMOVE, rounds=ROUNDS)
    write_part("search", {**results, "provenance": story})


if __name__ == "__main__":
    words(__doc__)
    main()
