"""recipes/zero-shot.yaml as it is, on weights in open_clip's format: those that run.py trained first.

Run: python benchmarks/clip/recipe.py      (after `run.py --only models/0`; 40 minutes, resumable)
Writes results/clip/recipe.json.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from safetensors.torch import load_file

from clip.judging import PACKAGES
from clip.setting import IMAGES, KEPT, ROOT
from command_line import words
from hydra_ensembles.pipeline.stage import read_json
from hydra_ensembles.store import tensors_digest
from provenance import provenance, write_results
from smoke import CALL, chosen

WEIGHTS, PLACE = KEPT / "clip" / "models" / "0" / "weights", KEPT / "clip-recipe"
RECIPE = "recipes/zero-shot.yaml"


def main() -> None:
    words(__doc__)
    if not (WEIGHTS / "open_clip_model.safetensors").is_file():
        raise SystemExit("no weights yet; run 'python benchmarks/clip/run.py --only models/0' first")
    model, done = PLACE / "model", PLACE / "run"
    classes = str(IMAGES / "cifar100-train.parquet")
    environment = {**os.environ, "HYDRA_ZERO_SHOT": str(model), "HYDRA_DATA": str(IMAGES.parent)}
    commands = [
        ["zero-shot", f"open_clip:{WEIGHTS}", "--classes", classes, "--out", str(model)],
        ["run", RECIPE, "--out", str(done)],
    ]
    for command in commands:
        subprocess.run([*CALL, *command], cwd=ROOT.parent, env=environment, check=True)
    found = read_json(done / "results.json")
    figures = {
        "weights": tensors_digest(load_file(WEIGHTS / "open_clip_model.safetensors").items()),
        "figures": {name: chosen(about["figures"]) for name, about in found["models"].items()},
        "decisions": found["models"]["hydra"]["about"]["decisions"],
        "kept": dict(zip(found["heads"]["names"], found["heads"]["members"], strict=True)),
        "seconds": found["seconds"],
    }
    write_results("clip/recipe", {**figures, "provenance": provenance(packages=PACKAGES, recipe=RECIPE)})


if __name__ == "__main__":
    main()
