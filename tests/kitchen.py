"""A kitchen: a tiny model and tiny sets in a directory, and a recipe for them. For tests of runs."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

CLASSES = ["ant", "bee", "cat", "dog"]
PREPROCESS = {"kind": "image", "size": 32, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3}
SETS = {"train": 24, "val": 24, "oodval": 12, "test": 16, "near": 12, "far": 12}
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "backbone": {
        "model": "model",
        "finetune": {"recipe": "cifar100-base", "steps": 4, "batch_size": 8, "learning_rate": 0.01, "warm_up": 0},
    },
    "data": {
        "train": "train.npz",
        "id_val": "val.npz[:12]",
        "id_cal": "val.npz[12:]",
        "ood_val": "oodval.npz",
        "id_test": "test.npz",
        "near": {"close": "near.npz"},
        "far": {"away": "far.npz"},
        "shifts": ["brightness/2"],
        "batch_size": 8,
    },
    "ranking": {"objectives": ["acc", "avg"], "search": "fast"},
    "members": {"number": 2, "keep": 9},
    "finetuning": {
        "recipe": "cifar100",
        "steps": 4,
        "batch_size": 8,
        "evaluate_every": 2,
        "warm_up": 0,
        "train_last_blocks": 2,
    },
    "decisions": {"coverage": 0.7},
    "evaluation": {"resamples": 20, "latency_rounds": 3, "latency_batch": 2},
}

NULL = object()


@dataclass
class Kitchen:
    """Where everything lies, relative to the working directory."""

    place: Path

    def recipe(self, **changes: Any) -> Path:
        """The recipe with some keys changed: `data__id_test="x.npz"`; None takes a key out, NULL empties it."""
        content = copy.deepcopy(RECIPE)
        for path, value in changes.items():
            *sections, key = path.split("__")
            inside = content
            for section in sections:
                inside = inside[section]
            if value is None:
                inside.pop(key, None)
            else:
                inside[key] = None if value is NULL else value
        return self.written(yaml.safe_dump(content, sort_keys=False))

    def written(self, text: str) -> Path:
        path = self.place / "recipe.yaml"
        path.write_text(text)
        return path


def pictures(seed: int, rows: int, classes: int = 4) -> dict[str, np.ndarray]:
    """Noise, brighter by its class, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    shade = 50 * labels[:, None, None, None]
    pixels = (rng.integers(0, 80, (rows, 32, 32, 3)) + shade).astype(np.uint8)
    return {"images": pixels, "labels": labels}


def stocked(place: Path) -> Path:
    """The model and the sets, written into a directory."""
    import timm

    torch.manual_seed(0)
    kwargs = {"img_size": 32, "num_classes": 4, "depth": 3, "num_heads": 4}
    model = timm.create_model("test_vit", **kwargs)
    (place / "model").mkdir()
    save_file(model.state_dict(), place / "model" / "model.safetensors")
    about = {"library": "timm", "architecture": "test_vit", "kwargs": kwargs}
    config = {**about, "preprocess": PREPROCESS, "classes": CLASSES}
    (place / "model" / "config.json").write_text(json.dumps(config))
    for seed, (name, rows) in enumerate(SETS.items()):
        np.savez(place / f"{name}.npz", **pictures(seed, rows))
    return place


def write_folders(place: Path, name: str, classes: list[str], seed: int) -> None:
    """Six images a class, one folder a class."""
    from PIL import Image

    for label, folder in enumerate(classes):
        (place / name / folder).mkdir(parents=True)
        for row, pixels in enumerate(pictures(seed + label, 6)["images"]):
            Image.fromarray(pixels).save(place / name / folder / f"{row}.png")
