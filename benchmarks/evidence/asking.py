"""Answers of networks to every test set and to the validation sets, kept set by set: asked once, judged often."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evidence.networks import Networks
from evidence.setting import Setting
from hydra_ensembles import fuse
from hydra_ensembles.backbones.references import num_classes
from hydra_ensembles.data import Batches
from hydra_ensembles.evaluation import Answers, answers
from hydra_ensembles.evaluation.answers import load_answers
from hydra_ensembles.evaluation.detectors import classifier_of

KNOWN_VAL, UNKNOWN_VAL, TRAIN = "known-val", "unknown-val", "train"
ANSWERS, SHIFTED = "answers/", "shifted/"
"""Where the units are: answers about test sets, and about corrupted ones."""


def asked(
    networks: Networks, name: str, build: Callable[[], nn.Module], after: Sequence[str], features: bool = False
) -> str:
    """A unit that asks a model; with features also about the rows of the training after pruning.

    Where the setting has corrupted test sets, another unit, wanted only where its answers are, asks about those.
    """

    def ask(place: Path, sets_of: Callable[[nn.Module], Mapping[str, Batches]], features: bool) -> Mapping[str, str]:
        precision, plain = networks.setting.asked_in, networks.setting.load(0)
        model = prepared(build(), plain, precision, networks.setting.members)
        for split, batches in sets_of(plain).items():
            kept = place / split.replace("/", "-")
            if not (kept / "config.json").is_file():
                has_labels = getattr(batches, "labels", None) is not None
                with in_precision(precision):
                    found = answers(model, batches, labels=has_labels, features=features, progress=False)
                if found.features is not None:
                    # Distances between features are sums of many squares; and this way past `prepared` is in bf16.
                    wide, classifier = found.features.float(), classifier_of(model)
                    found = replace(found, features=wide, logits=F.linear(wide, *classifier)[:, None])
                assert found.logits.dtype == torch.float32
                found.save(kept)
        return {"asked_in": precision}

    if (shifts := networks.setting.shifts) is not None:
        networks.units.add(f"{SHIFTED}{name}", lambda place: ask(place, shifts, False), after)
    return networks.units.add(
        f"{ANSWERS}{name}",
        lambda place: ask(place, lambda model: sets_of(networks.setting, model, features), features),
        after,
    )


def prepared(model: nn.Module, plain: nn.Module, precision: str, members: int) -> nn.Module:
    """A model that is to answer in a precision; `plain` is the network it comes from."""
    classes = num_classes(plain)
    if precision == "bf16" and classes is not None:
        # One classifier of a method (MIMO's) may answer for all members.
        classify_in_fp32(model, (classes, members * classes))
    return model


def in_precision(name: str) -> torch.autocast:
    """How networks answer."""
    return torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16")


def classify_in_fp32(model: nn.Module, sizes: tuple[int, ...]) -> None:
    """Logits are not rounded to bf16, whose three digits would tie what is sure: the classifier stays in fp32."""
    for module in model.modules():
        if getattr(module, "out_features", None) in sizes:

            def forward(x: Tensor, own: Callable[[Tensor], Tensor] = module.forward) -> Tensor:
                with torch.autocast("cpu", enabled=False):
                    return own(x.float())

            module.forward = forward


def sets_of(setting: Setting, model: nn.Module, features: bool) -> dict[str, Batches]:
    """Every set a model is asked about, by name."""
    sets = {**setting.tests(model), KNOWN_VAL: setting.known_val(model), UNKNOWN_VAL: setting.unknown_val(model)}
    return sets | ({TRAIN: setting.tune(model, 0)} if features else {})


def ask_network(networks: Networks, unit: str, features: bool = False) -> str:
    """One stored network."""
    name = unit.removeprefix("networks/")
    return asked(networks, name, lambda: networks.load(unit), (unit,), features)


def ask_hydra(networks: Networks, name: str, members: Sequence[str], mlp: str = "average") -> str:
    """Stored members, fused."""
    return asked(networks, name, lambda: fuse([networks.load(one) for one in members], mlp=mlp), members)


def together(networks: Networks, units: Sequence[str]) -> Mapping[str, Answers]:
    """The answers of several units as those of one ensemble, by set."""
    parts = [load_answers(networks.units.directory(unit)) for unit in units]
    if len(parts) == 1:
        return parts[0]
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {
        name: Answers(torch.cat([part[name].logits for part in parts], dim=1), parts[0][name].labels) for name in shared
    }
