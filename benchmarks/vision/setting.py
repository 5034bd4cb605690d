"""DeiT-Ti on CIFAR-100 at 96 pixels, as near to the paper (5.1, C.1, D.2) as two cores allow.

Different from the paper: DeiT-Ti/16 (12 layers x 3 heads) instead of ViT-B/16, three epochs of 35,000 images with AdamW
instead of 10,000 steps of 512 with SGD, 96 pixels instead of 224, one more epoch after pruning, whose classifier is not
set to zero first, as so few steps would not bring it back.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evidence.pixels import KeptImages
from evidence.setting import FASTER, Setting
from hydra_ensembles import load_model
from hydra_ensembles.backbones import origin_of
from hydra_ensembles.data import Batches, batches_for, open_data
from hydra_ensembles.data.images import ImageBatches
from hydra_ensembles.evaluation.shift import IMAGE_CORRUPTIONS, SEVERITIES, shifted_batches
from hydra_ensembles.members import RECIPES, Recipe

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".kept" / "vision"
SHARED = ROOT.parent.parent / "shared"
IMAGES = Path(os.environ.get("HYDRA_DATA", SHARED / "data")) / "images"
MODELS = Path(os.environ.get("HYDRA_MODELS", SHARED / "models"))
PIXELS, FIRST_PIXELS = 96, 32
BATCH = 128
SEARCHED = 1000
CALIBRATION = 1024
SHOWN, SHIFTED_ROWS, NOISY_ROWS = 150, 500, 512
NOISE = "gaussian_noise/3"
NEAR, FAR = ("cifar10-test",), ("textures-test", "mnist-test", "fashion-mnist-test")


def load(seed: int) -> nn.Module:
    """The ImageNet network at 96 pixels, its position embedding resampled, with a new classifier."""
    model: Any = load_model(str(MODELS / "deit-tiny-imagenet"))
    origin = origin_of(model)
    rows = open_data(f"{IMAGES}/cifar100-train.parquet[:1]")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.set_input_size(img_size=PIXELS)
        model.reset_classifier(100)
    model.origin = replace(
        origin,
        kwargs={**origin.kwargs, "img_size": PIXELS, "num_classes": 100},
        preprocess={**(origin.preprocess or {}), "size": PIXELS},
        classes=rows.classes,
    )
    return model  # type: ignore[no-any-return]


def images(model: nn.Module, file: str, labels: bool = True, batch_size: int = 64, **options: Any) -> Batches:
    """Images as the model takes them, all of them brought to 32 pixels first, as CIFAR's are."""
    rows = open_data(f"{IMAGES}/{file}")
    made = batches_for(model, rows, batch_size=batch_size, labels=labels, first_size=FIRST_PIXELS, **options)
    assert isinstance(made, ImageBatches)
    return KeptImages(made, KEPT / "pixels")


def train(model: nn.Module, seed: int) -> Batches:
    return images(model, "cifar100-train.parquet", batch_size=BATCH, shuffle=True, seed=seed, augment="flip")


def calibration(model: nn.Module, sample: int) -> Batches:
    start = sample * CALIBRATION
    return images(model, f"cifar100-train.parquet[{start}:{start + CALIBRATION}]")


def tests(model: nn.Module) -> Mapping[str, Batches]:
    known = {"cifar100-test": images(model, "cifar100-test.parquet")}
    return {**known, **{name: images(model, f"{name}.parquet", labels=False) for name in (*NEAR, *FAR)}}


def shown(model: nn.Module, name: str) -> Batches:
    """The first images of a test set, as many as a picture shows."""
    return images(model, f"{name}.parquet[:{SHOWN}]", labels=False)


def shifts(model: nn.Module) -> Mapping[str, Batches]:
    """The first test images under every corruption and severity, made once, at 32 pixels."""
    rows = open_data(f"{IMAGES}/cifar100-test.parquet[:{SHIFTED_ROWS}]")
    return {
        f"{corruption}/{severity}": shifted_batches(
            model,
            rows,
            f"{corruption}/{severity}",
            KEPT / "corrupted",
            progress=False,
            batch_size=64,
            first_size=FIRST_PIXELS,
        )
        for corruption in IMAGE_CORRUPTIONS
        for severity in SEVERITIES
    }


def clean_and_noisy(model: nn.Module) -> tuple[Batches, Batches]:
    """Training images, and the same with noise."""
    rows = open_data(f"{IMAGES}/cifar100-train.parquet[:{NOISY_ROWS}]")
    options: dict[str, Any] = {"batch_size": 64, "first_size": FIRST_PIXELS}
    noisy = shifted_batches(model, rows, NOISE, KEPT / "corrupted", progress=False, **options)
    return batches_for(model, rows, **options), noisy


BASE = Recipe(
    "cifar100-adamw",
    learning_rate=4e-4,
    head_learning_rate=2e-3,
    epochs=3,
    batch_size=BATCH,
    warm_up=0.1,
    weight_decay=0.01,
    clip_norm=1.0,
    precision=FASTER,
    keep="last",
)
"""AdamW, a higher rate for the new classifier; `_train` puts the rate that is tried in its place."""
POST = replace(
    RECIPES["cifar100"], steps=None, epochs=1, batch_size=BATCH, warm_up=0.05, zero_head=False, precision=FASTER
)
"""D.2: SGD on the last five blocks with label smoothing."""
HEAD_PARAMS, MATRICES = 4 * 192 * 64 + 3 * 64, 12 * (4 * 192 * 192 + 2 * 192 * 768)
"""Parameters of a head, and weights that unstructured pruning may remove."""
SETTING = Setting(
    name="vision",
    kept=KEPT,
    load=load,
    train=train,
    tune=train,
    calibration=calibration,
    known_val=lambda model: images(model, "cifar100-val.parquet"),
    unknown_val=lambda model: images(model, "tiny-imagenet-val.parquet", labels=False),
    known_search=lambda model: images(model, f"cifar100-val.parquet[:{SEARCHED}]", batch_size=32),
    unknown_search=lambda model: images(model, f"tiny-imagenet-val.parquet[:{SEARCHED}]", labels=False, batch_size=32),
    tests=tests,
    known_tests={"test": ("cifar100-test",)},
    groups={"near": NEAR, "far": FAR, "apart": ()},
    base=BASE,
    post=POST,
    rates=(2e-4, 4e-4),
    rates_of={
        "lora": (1e-3, 4e-3),
        "packedensembles": (2e-4, 4e-4, 1e-3),
        "mimo": (2e-4, 4e-4, 1e-3),
        "classifier": (4e-4,),
        **dict.fromkeys(("batchensemble", "dropout", "fresh24", "fresh-random24"), (2e-4,)),
    },
    samples=6,
    searched=SEARCHED,
    post_rates=(0.01, 0.03),
    same_rate="plus",
    layers=12,
    heads=3,
    keep=30,
    pool=25,
    removed=12,
    swept=(30, 24, 18, 12),
    trunks={6: 15, 8: 10},
    taylor_scope="global",
    more_methods=("Packed-Ensembles", "MIMO", "BatchEnsemble", "unstructured"),
    sparsity=6 * HEAD_PARAMS / MATRICES,
    dropout=0.1,
    shifts=shifts,
    averages={"auroc_without_mnist": (*NEAR, "textures-test", "fashion-mnist-test")},
    asked_in=FASTER,
)
