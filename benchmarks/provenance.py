"""What a results file must say about itself: the command, the inputs, the versions, the machine, the time."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from hydra_ensembles.store import whole

RESULTS = Path(__file__).parent / "results"
NOT_YET = "Not measured yet."
"""What a page says in the place of a table whose results file is not there."""
_STARTED = time.monotonic()


def provenance(inputs: Sequence[Path] = (), packages: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """To be called when the work is done; `inputs` are hashed, results files named by where they lie among all."""
    return {
        "command": shlex.join(["python", *_shown(sys.argv)]),
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(time.monotonic() - _STARTED, 1),
        "inputs": {_name(path): _sha256(path) for path in inputs},
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in ("torch", *packages)},
        "threads": torch.get_num_threads(),
        **more,
    }


def machine() -> dict[str, Any]:
    """What a time depends on besides versions: the processor, how busy it was just before, and the code."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []  # of Linux alone
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=RESULTS, capture_output=True, text=True)
    load = round(os.getloadavg()[0], 2)
    return {"cpu": names[0] if names else platform.processor(), "load": load, "commit": asked.stdout.strip()}


def write_results(name: str, results: dict[str, Any]) -> Path:
    """Write `results/NAME.json`, whole or not at all, keys in the order given."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as draft:
        draft.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {path.relative_to(RESULTS.parent.parent)}")
    return path


def _name(path: Path) -> str:
    parts = path.relative_to(RESULTS).parts if path.is_relative_to(RESULTS) else path.parts[-2:]
    return "/".join(parts)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The script relative to the repository, so that no path of a machine gets into a results file."""
    script = Path(arguments[0]).resolve()
    root = RESULTS.parent.parent.resolve()
    shown = str(script.relative_to(root)) if script.is_relative_to(root) else script.name
    return [shown, *arguments[1:]]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
