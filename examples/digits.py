"""From a vision transformer to a hydra that says "I don't know this", on real handwritten digits.

Run: python examples/digits.py [--out hydra-digits]     (needs the extras vision, train, eval, sklearn)
Digits 0 to 7 are known, 8 and 9 are not, and neither are pieces of photographs.
"""

import sys
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import timm
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn

from hydra_ensembles import (
    ConformalSets,
    Hydra,
    OODDetector,
    Protocol,
    TemperatureScaler,
    circuit_ranking,
    evaluate,
    finetune,
    fuse,
    prune,
    select_members,
)
from hydra_ensembles.members import Recipe

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
TRAINING = Recipe("digits", learning_rate=2e-3, epochs=20, batch_size=32, warm_up=0.1, stop_on="nll")


class Data(NamedTuple):
    """Images `(rows, 3, 16, 16)` with labels, and images that are not to be known."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    calibration: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    eight_and_nine: Tensor
    photos_val: Tensor
    photos: Tensor


def load_data() -> Data:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    images, labels = _as_images(digits.images[order] / 16), torch.from_numpy(digits.target[order]).long()
    known, unknown = labels < 8, labels >= 8
    x, y = images[known], labels[known]
    cuts = [slice(0, 700), slice(700, 900), slice(900, 1100), slice(1100, None)]
    pieces = []
    for photo in load_sample_images().images:
        corners = np.random.default_rng(0).integers(0, 400, (200, 2))
        pieces.append(_as_images(np.stack([photo[a : a + 8, b : b + 8].mean(axis=-1) for a, b in corners]) / 255))
    return Data(*((x[cut], y[cut]) for cut in cuts), images[unknown], *pieces)


def trained_network(data: Data) -> nn.Module:
    """A small vision transformer; yours would come trained."""
    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 6, "num_classes": 8}
    model = timm.create_model("vit_tiny_patch16_224", **shape)
    finetune(model, data.train, data.val, TRAINING, title="training the network")
    return model


def hydra_of(model: nn.Module, data: Data) -> Hydra:
    """Three circuits of 16 of 24 heads, trained a little, fused, calibrated on rows that nothing else saw."""
    goals = ("acc", "ood", "avg")
    circuits = [circuit_ranking(model, data.val, data.photos_val, goal, remove=8) for goal in goals]
    members = [prune(model, heads) for heads in select_members(circuits, keep=16)]
    for seed, member in enumerate(members):
        recipe = replace(TRAINING, learning_rate=3e-4, epochs=4, seed=seed)
        finetune(member, data.train, data.val, recipe, title=f"training member {seed}")
    hydra = fuse(members)
    hydra.classes = NAMES
    images, labels = data.calibration
    TemperatureScaler(hydra).fit((images[:100], labels[:100]))
    OODDetector(hydra).fit(images[100:], accept=0.95)
    ConformalSets(hydra).fit((images[100:], labels[100:]), coverage=0.95)
    return hydra


def main() -> None:
    data = load_data()
    model = trained_network(data)
    hydra = hydra_of(model, data)
    protocol = Protocol(data.test, near={"eight-and-nine": data.eight_and_nine}, far={"photos": data.photos})
    print(f"{'':14}accuracy     ECE   AUROC 8 and 9   AUROC photos")
    for name, one in {"one network": model, "hydra": hydra}.items():
        figures = evaluate(one, protocol, resamples=0).figures
        known, unknown = figures["answers"]["id_test"], figures["ood/msp"]
        ood = [f"{100 * unknown[of]['auroc']:.1f} %" for of in ("eight-and-nine", "photos")]
        print(f"{name:14}{100 * known['accuracy']:6.1f} %  {known['ece']:.3f}  {ood[0]:>14} {ood[1]:>14}")
    for name, images in {
        "digits it knows": data.test[0],
        "eights, nines": data.eight_and_nine,
        "photos": data.photos,
    }.items():
        said = hydra.predict(images).decision
        assert said is not None
        shares = {decision: f"{100 * said.count(decision) / len(said):.0f} %" for decision in sorted(set(said))}
        print(f"{name:16}{shares}")
    if "--out" in sys.argv:
        print(f"wrote {hydra.save(sys.argv[sys.argv.index('--out') + 1])}")


def _as_images(gray: np.ndarray) -> Tensor:
    """Grey values between 0 and 1 `(rows, 8, 8)` as the network takes them."""
    x = torch.from_numpy(gray).float().sub(0.5).div(0.5)[:, None].expand(-1, 3, -1, -1)
    return torch.nn.functional.interpolate(x, size=16, mode="nearest")


if __name__ == "__main__":
    main()
