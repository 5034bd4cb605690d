"""A real two-tower model and what it is asked: Table 3 at the size that two cores allow.

DeiT-Ti (12 layers x 3 heads) reads images, MiniLM (6 x 12) reads texts; open_clip's custom-tower configuration joins
them. Heads are chosen once, on CIFAR-100 and Tiny-ImageNet, and asked about three columns:

- cifar100: the model was trained on its images with its prompts, so this is supervised;
- cifar10: never trained on, but its classes are near to those of CIFAR-100: transfer;
- imagenet: validation images of ImageNet, on whose training images the image tower was trained before; the text tower
  never saw its class names as such.

With `HYDRA_TOY=DIR` everything is a few images and steps, kept and written under DIR: it shows that the scripts run.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from clip.task import Column, Sizes, Task
from provenance import RESULTS

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent.parent / "shared"
IMAGES = Path(os.environ.get("HYDRA_DATA", SHARED / "data")) / "images"
MODELS = Path(os.environ.get("HYDRA_MODELS", SHARED / "models"))
TOY = os.environ.get("HYDRA_TOY")
KEPT = Path(TOY) / "kept" if TOY else ROOT / ".kept"
WRITTEN = Path(TOY) / "results" if TOY else RESULTS
PIXELS, FIRST_PIXELS = 96, 32


@dataclass(frozen=True)
class Training:
    """How long the two towers are trained."""

    steps: int
    """Not quite two epochs of CIFAR-100."""
    batch: int
    """Images of CIFAR-100 a step; half as many of Flickr8k with a caption each."""
    rows: int


TRAINING = Training(6, 16, 96) if TOY else Training(500, 128, 35000)
SEEDS = (0,) if TOY else (0, 1, 2)
SIZES = Sizes(24, 32, 48, 40, 0.02) if TOY else Sizes(1000, 1024, 5000, 10000)
VALIDATION_ROWS = 30 if TOY else 1000
"""Of CIFAR-10, which has no validation file: its first rows, and the file is in random order."""


def file(name: str, rows: str = "") -> str:
    return f"{IMAGES}/{name}.parquet{rows}"


NEAR = {"cifar10-test": file("cifar10-test")}
FAR = {name: file(name) for name in ("textures-test", "mnist-test", "fashion-mnist-test")}
TASK = Task(
    columns={
        "cifar100": Column(
            "cifar100-test", file("cifar100-test"), file("cifar100-val"), NEAR, FAR, first_size=FIRST_PIXELS
        ),
        "cifar10": Column(
            "cifar10-test",
            file("cifar10-test"),
            file("cifar10-test", f"[:{VALIDATION_ROWS}]"),
            far=FAR,
            first_size=FIRST_PIXELS,
            first_row=VALIDATION_ROWS,
        ),
        # 1,000 known images, and no more of an unknown set.
        "imagenet": Column("imagenet-test", file("imagenet-test"), file("imagenet-val"), far=FAR, most_unknown=1000),
    },
    asked={"small": ("cifar100", "cifar10"), "imagenet": ("imagenet",)},
    first="cifar100",
    train=file("cifar100-train"),
    known_val=file("cifar100-val"),
    unknown_val=file("tiny-imagenet-val"),
    sizes=SIZES,
)
