"""Paired differences between methods: the same resampled test rows for both, averaged over seeds.

The interval says how far the difference would move on other test rows; the spread over seeds stands beside it. What
resampling gave for a row is among the results, `draws/METHOD-SEED.safetensors`, so that any two rows can be compared
later, without their networks.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evidence.methods import file_name
from evidence.networks import Networks
from evidence.setting import Setting
from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.evaluation.bootstrap import difference
from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.store import whole

WANTED = {"accuracy": ("answers", ID_TEST), "nll": ("answers", ID_TEST), "ece": ("answers", ID_TEST)}
WANTED |= {"auroc": ("ood/msp", AVERAGE), "fpr95": ("ood/msp", AVERAGE), "auroc_near": ("ood/msp", "near")}
WANTED |= {"auroc_far": ("ood/msp", "far")}
SCORES = ("entropy", "energy")
"""By which unknown inputs are told too, in the average."""


def save_draws(path: Path, setting: Setting, found: Evaluation) -> None:
    """By metric `(1 + S,)`: the figure, then the same on resampled rows."""
    groups = setting.groups
    wanted = {m: place for m, place in WANTED.items() if groups.get(m.removeprefix("auroc_"), True)}

    def values(judged: Evaluation, part: str, row: str, metric: str) -> Tensor:
        first = torch.tensor([judged.figures[part][row][metric]])
        return torch.cat([first, judged.resampled[part][row][metric].float()])

    said = {m: values(found, part, row, m.partition("_")[0]) for m, (part, row) in wanted.items()}
    for average, sets in setting.averages.items():
        said[average] = torch.stack([values(found, "ood/msp", one, "auroc") for one in sets]).mean(dim=0)
    for score in SCORES:
        said[f"auroc_{score}"] = values(replace(found, score=score), f"ood/{score}", AVERAGE, "auroc")
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as draft:
        save_file(said, draft)


def compared(networks: Networks, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> dict[str, Any]:
    """By pair and metric: the mean difference over seeds as a fraction, its interval, and every seed's difference."""

    def of(method: str, seed: int) -> dict[str, Tensor]:
        return load_file(networks.results(f"draws/{file_name(method, seed)}", "safetensors"))

    said: dict[str, Any] = {}
    for first, second in pairs:
        one, other = ([of(method, seed) for seed in seeds] for method in (first, second))
        said[f"{first} minus {second}"] = {
            metric: {
                **vars(
                    difference(
                        fmean(float(drawn[metric][0]) for drawn in one),
                        fmean(float(drawn[metric][0]) for drawn in other),
                        torch.stack([drawn[metric][1:] for drawn in one]).mean(dim=0),
                        torch.stack([drawn[metric][1:] for drawn in other]).mean(dim=0),
                    )
                ),
                "by_seed": [float(a[metric][0] - b[metric][0]) for a, b in zip(one, other, strict=True)],
            }
            for metric in one[0]
        }
    return said
