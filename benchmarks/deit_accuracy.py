"""A real DeiT-Ti before and after the library's hands: pruned of no head, saved, loaded, read as parts.

Accuracy and labels must not move, to the last image. ImageNet images at 224 px, CIFAR-100 test at 96 px, fp32.

Run: python benchmarks/deit_accuracy.py     (about 5 minutes on 2 cores; writes results/ground-floor/deit-*.json)
"""

import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from command_line import words
from hydra_ensembles import HeadSet, Member, load_model, prune
from provenance import RESULTS, provenance, write_results

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("HYDRA_DATA") or SHARED / "data")
MODELS = Path(os.environ.get("HYDRA_MODELS") or SHARED / "models")
RUNS = {"deit-tiny-imagenet": "imagenet-test", "deit-tiny-cifar100-96px": "cifar100-test"}


def batches(parquet: Path, preprocess: dict[str, Any], limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Images `(B, 3, size, size)` and labels `(B,)`, resized and normalised as the model's config says."""
    table = pq.read_table(parquet, columns=["image", "label"])
    for batch in table.slice(0, limit).to_batches(max_chunksize=100):
        images = [_decode(row["bytes"], preprocess) for row in batch["image"].to_pylist()]
        yield torch.stack(images), torch.tensor(batch["label"].to_pylist())


def _decode(data: bytes, preprocess: dict[str, Any]) -> Tensor:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    size = (preprocess["size"], preprocess["size"])
    if image.size != size:
        image = image.resize(size, Image.Resampling[preprocess["interpolation"].upper()])
    pixels = transforms.to_dtype(transforms.pil_to_tensor(image), torch.float32, scale=True)
    return transforms.normalize(pixels, preprocess["mean"], preprocess["std"])  # type: ignore[no-any-return]


def compare(model_name: str, limit: int | None = None) -> dict[str, Any]:
    """Accuracy of the model as it came, and how often any of the others gives another label."""
    directory, parquet = MODELS / model_name, DATA / "images" / f"{RUNS[model_name]}.parquet"
    model = load_model(str(directory))
    whole = prune(model, HeadSet.all(model))
    with tempfile.TemporaryDirectory() as scratch:
        reloaded = Member.load(whole.save(Path(scratch) / "member"))
    variants: dict[str, Callable[[Tensor], Tensor]] = {
        "pruned of no head": whole,
        "saved and loaded": reloaded,
        "composed of parts": whole.backbone,
    }
    total = correct = 0
    other_labels, furthest = dict.fromkeys(variants, 0), dict.fromkeys(variants, 0.0)
    rows = limit or pq.read_metadata(parquet).num_rows
    work = batches(parquet, model.origin.preprocess, limit)  # type: ignore[union-attr, arg-type]
    with torch.no_grad():
        for images, labels in track(work, model_name, total=math.ceil(rows / 100)):
            expected = model(images)
            total, correct = total + len(labels), correct + int((expected.argmax(-1) == labels).sum())
            for name, variant in variants.items():
                found = variant(images)
                other_labels[name] += int((found.argmax(-1) != expected.argmax(-1)).sum())
                furthest[name] = max(furthest[name], (found - expected).abs().max().item())
    return {
        "images": total,
        "correct": correct,
        "accuracy_percent": round(100 * correct / total, 2),
        "labels_that_differ": other_labels,
        "largest_logit_difference": furthest,
    }


def as_markdown() -> str:
    """The table of docs/costs.md."""
    lines = ["| Weights | Images | Accuracy | Labels that differ | Largest logit difference |", "|---|--:|--:|--:|--:|"]
    for model_name in RUNS:
        found = json.loads((RESULTS / "ground-floor" / f"{model_name}.json").read_text())
        differ, furthest = max(found["labels_that_differ"].values()), max(found["largest_logit_difference"].values())
        lines.append(
            f"| {model_name} | {found['images']:,} | {found['accuracy_percent']:.2f} % | {differ} | {furthest:.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(2)
    for model_name, data_name in RUNS.items():
        if (RESULTS / "ground-floor" / f"{model_name}.json").exists():
            continue
        results = compare(model_name)
        inputs = [MODELS / model_name / "model.safetensors", DATA / "images" / f"{data_name}.parquet"]
        story = provenance(inputs, ["timm", "torchvision", "pillow"], dtype="float32")
        write_results(f"ground-floor/{model_name}", {**results, "provenance": story})
    print(as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
