"""The two smoke recipes on real data, run from nothing and then again: how long, and what came out.

Run: python benchmarks/smoke.py [text-smoke | vision-smoke]     (minutes each on 2 cores; needs the real data)
     python benchmarks/smoke.py killed text-smoke                (after it: once more, killed once in every stage)
Writes results/smoke/NAME.json, and results/smoke/NAME-killed.json.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from command_line import words
from hydra_ensembles import Hydra
from hydra_ensembles.pipeline import read_recipe, run
from hydra_ensembles.report import Column, Figure, Row, Table
from hydra_ensembles.store import tensors_digest
from provenance import RESULTS, provenance, write_results
from real_text import KEPT

NAMES, THREADS = ("text-smoke", "vision-smoke"), 2
ROOT = Path(__file__).parent.parent
CALL = [sys.executable, "-c", "from hydra_ensembles.cli.main import main; main()"]
ANSWERS, SEPARATION = ("accuracy", "nll", "brier", "ece", "aece", "aurc"), ("auroc", "fpr95", "aupr")


def measured(name: str, directory: Path) -> dict[str, Any]:
    """One run from nothing, and a second one by the command, as a user would."""
    shutil.rmtree(directory, ignore_errors=True)
    seconds: dict[str, float] = {}
    os.chdir(ROOT)  # where recipes look for the data
    recipe = read_recipe(ROOT / "recipes" / f"{name}.yaml")
    started = time.monotonic()
    done = run(recipe, directory, tell=lambda stage, what, took: seconds.update({stage: took}))
    first = time.monotonic() - started
    started = time.monotonic()
    command = ["run", str(ROOT / "recipes" / f"{name}.yaml"), "--out", str(directory)]
    told = subprocess.run([*CALL, *command], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("was done before") == len(done.stages)
    return {
        "seconds": {"first_run": round(first, 1), "second_run": round(time.monotonic() - started, 1)},
        "seconds_by_stage": seconds,
        "figures": {model: chosen(found["figures"]) for model, found in done.results["models"].items()},
        "intervals": {model: chosen(found["intervals"]) for model, found in done.results["models"].items()},
        "decisions": done.results["models"]["hydra"]["about"]["decisions"],
    }


def killed_in_every_stage(name: str, undisturbed: Path, directory: Path) -> dict[str, Any]:
    """The same recipe by the command, killed halfway through each stage that lasts, until it gets to the end."""
    shutil.rmtree(directory, ignore_errors=True)
    done = json.loads((RESULTS / "smoke" / f"{name}.json").read_text())["seconds_by_stage"]
    command = [*CALL, "run", str(ROOT / "recipes" / f"{name}.yaml"), "--out", str(directory)]
    killed: list[str] = []
    runs = 0
    while True:
        runs += 1
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert running.stderr is not None
        for line in running.stderr:
            stage, _, what = line.strip().partition(" ")
            if what.strip() == "started" and stage not in killed:
                killed.append(stage)
                time.sleep(done[stage] / 2)
                running.kill()
                break
        if running.wait() == 0:
            break
        assert running.returncode == -signal.SIGKILL, line
    found, expected = (json.loads((place / "results.json").read_text()) for place in (directory, undisturbed))
    hydras = [Hydra.load(place / "hydra") for place in (directory, undisturbed)]
    same_weights = len({tensors_digest(hydra.state_dict().items()) for hydra in hydras}) == 1
    return {
        "killed_in": killed,
        "runs": runs,
        "same_figures": found["models"] == expected["models"] and found["compared"] == expected["compared"],
        "same_hydra": same_weights and hydras[0].fitted == hydras[1].fitted,
    }


def chosen(parts: dict[str, Any]) -> dict[str, Any]:
    """The figures that the docs show."""
    kept = {part: sets for part, sets in parts.items() if part != "diversity"}
    wanted = (*ANSWERS, *SEPARATION)
    return {
        part: {
            row: {m: round_off(value) for m, value in metrics.items() if m in wanted} for row, metrics in sets.items()
        }
        for part, sets in kept.items()
    }


def round_off(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else [round(one, 5) for one in value]


def as_markdown() -> str:
    """The table of docs/recipes.md."""
    percent = partial(Column, decimals=1, factor=100)
    columns = [percent("accuracy", "accuracy", unit=" %"), Column("nll", "NLL", decimals=3)]
    columns += [percent("ece", "ECE", unit=" %"), percent("auroc", "average OOD AUROC")]
    rows = []
    for name in NAMES:
        found = json.loads((RESULTS / "smoke" / f"{name}.json").read_text())
        block = f"{name}: {found['seconds']['first_run']:.0f} s, once more {found['seconds']['second_run']:.0f} s"
        for model, parts in found["figures"].items():
            figures = parts["answers"]["id_test"] | parts["ood/msp"]["average"]
            rows.append(Row(model, {metric: Figure(value) for metric, value in figures.items()}, block=block))
    return Table(columns, rows, row_heading="model").markdown()


def main() -> None:
    torch.set_num_threads(THREADS)
    packages = ["timm", "transformers", "torchmetrics", "torch-uncertainty"]
    given = words(__doc__, 1 + len(NAMES), (*NAMES, "killed"))
    if given[:1] == ["killed"]:
        for name in given[1:] or NAMES:
            found = killed_in_every_stage(name, KEPT / name, KEPT / f"{name}-killed")
            write_results(f"smoke/{name}-killed", {**found, "provenance": provenance(packages=packages, recipe=name)})
        return
    for name in given or NAMES:
        found = measured(name, KEPT / name)
        write_results(f"smoke/{name}", {**found, "provenance": provenance(packages=packages, recipe=name)})
    print(as_markdown())


if __name__ == "__main__":
    main()
