"""DeiT-Ti on ImageNet images with its own classifier: what heads alone do, nothing trained (Table 4, Figure 5).

Images keep their size here. Circuits see the 500 validation images and as many textures; Taylor scores come from the
same validation images, as there are no training images, and only one member is asked about.
"""

from collections.abc import Mapping

from torch import nn

from evidence.setting import Setting
from hydra_ensembles import load_model
from hydra_ensembles.data import Batches, batches_for, open_data
from vision.setting import IMAGES, MODELS, ROOT

FAR = ("textures-test", "mnist-test", "fashion-mnist-test")
ROWS = 1000
"""Of each unknown set; MNIST and Fashion-MNIST are in random order."""


def load(seed: int) -> nn.Module:
    return load_model(str(MODELS / "deit-tiny-imagenet"))


def images(model: nn.Module, file: str, labels: bool = True, batch_size: int = 32) -> Batches:
    return batches_for(model, open_data(f"{IMAGES}/{file}"), batch_size=batch_size, labels=labels)


def tests(model: nn.Module) -> Mapping[str, Batches]:
    known = {"imagenet-test": images(model, "imagenet-test.parquet")}
    return known | {name: images(model, f"{name}.parquet[:{ROWS}]", labels=False) for name in FAR}


def nothing(model: nn.Module, seed: int) -> Batches:
    raise AssertionError("nothing is trained on ImageNet images")


SETTING = Setting(
    name="vision-imagenet",
    kept=ROOT / ".kept" / "vision-imagenet",
    load=load,
    train=nothing,
    tune=nothing,
    calibration=lambda model, sample: images(model, "imagenet-val.parquet"),
    known_val=lambda model: images(model, "imagenet-val.parquet"),
    unknown_val=lambda model: images(model, "textures-val.parquet", labels=False),
    known_search=lambda model: images(model, "imagenet-val.parquet"),
    unknown_search=lambda model: images(model, "textures-val.parquet[:500]", labels=False),
    tests=tests,
    known_tests={"test": ("imagenet-test",)},
    groups={"near": (), "far": FAR, "apart": ()},
    base=None,
    post=None,
    rates=(),
    layers=12,
    heads=3,
    keep=24,
    pool=25,
    swept=(33, 30, 24, 18, 12),
    taylor_scope="layer",
    samples=1,
    averages={"auroc_without_mnist": ("textures-test", "fashion-mnist-test")},
)
