"""Several processes at the same units, each with one thread."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from evidence.units import Units

_WORKER = "HYDRA_EVIDENCE_WORKER"


def run(plans: Mapping[Units, Sequence[str]], workers: int, minutes: float | None) -> None:
    """Work as one of the workers, or start them and wait; the same command again goes on where it was.

    `plans` are the wanted units of one benchmark, or of several, one after another.
    """
    if is_worker():
        torch.set_num_threads(1)
        stop_at = float(os.environ[_WORKER])
        failed = []
        for units, wanted in plans.items():
            try:
                units.run(wanted, stop_at or None)
            except SystemExit as error:  # of this plan; the others go on
                failed.append(str(error))
        if failed:
            raise SystemExit("; ".join(failed))
        return
    stop_at = 0.0 if minutes is None else time.time() + 60 * minutes
    environment = {**os.environ, _WORKER: str(stop_at), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, *sys.argv], env=environment) for _ in range(workers)]
    codes = [one.wait() for one in running]
    left = [one for units, wanted in plans.items() for one in units.needed(wanted)]
    print(f"{len(left)} units are left" if left else "all is done")
    if any(codes):
        raise SystemExit(f"a worker failed: {codes}")


def is_worker() -> bool:
    """Is this process one of those that were started?"""
    return _WORKER in os.environ


def asked(about: str, *more: str, flags: Sequence[str] = ()) -> argparse.Namespace:
    """What the command line says: `--minutes`, `--only` and other names; `--help` shows the script's own docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="begin nothing after so many; -1 only counts the hours spent")
    parser.add_argument("--only", metavar="TEXT", default="", help="what has TEXT in its name, and what that needs")
    for name in more:
        parser.add_argument(name)
    for name in flags:
        parser.add_argument(name, action="store_true")
    return parser.parse_args()


def hours(units: Units, told: Path) -> float:
    """How long all units took, one after another on one thread, with those whose directories are gone.

    `told` is the results file that says so: what is in it when a checkout first asks was spent before.
    """
    before = units.root / "before.json"
    if not before.is_file():
        before.parent.mkdir(parents=True, exist_ok=True)
        before.write_text(json.dumps(json.loads(told.read_text())["hours"] if told.is_file() else 0.0))
    # All that was done here: what only chose a rate is in no plan any more once the choice is among the results.
    kept = [json.loads(done.read_text())["seconds"] for done in units.root.rglob("done.json")]
    return float(json.loads(before.read_text()) + sum(kept) / 3600)
