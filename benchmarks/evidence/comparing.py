"""Paired differences between methods: the same resampled test rows for both, averaged over seeds.

The interval says how far the difference would move on other test rows; the spread over seeds stands beside it.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evidence.judging import file_name
from evidence.networks import Networks
from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.evaluation.bootstrap import difference
from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST

WANTED = {"accuracy": ("answers", ID_TEST), "nll": ("answers", ID_TEST), "ece": ("answers", ID_TEST)}
WANTED |= {"auroc": ("ood/msp", AVERAGE), "fpr95": ("ood/msp", AVERAGE), "auroc_near": ("ood/msp", "near")}
WANTED |= {"auroc_far": ("ood/msp", "far")}


def compared(networks: Networks, pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> dict[str, Any]:
    """By pair and metric: the mean difference over seeds as a fraction, its interval, and every seed's difference."""
    known: dict[str, tuple[dict[str, float], dict[str, Tensor]]] = {}
    averages, groups = networks.setting.averages, networks.setting.groups
    wanted = {m: place for m, place in WANTED.items() if groups.get(m.removeprefix("auroc_"), True)}

    def of(method: str, seed: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        name = file_name(method, seed)
        if name not in known:
            found = Evaluation.load(networks.units.directory(f"rows/{name}") / "evaluation")
            figures = {m: found.figures[part][row][m.partition("_")[0]] for m, (part, row) in wanted.items()}
            moved = {m: found.resampled[part][row][m.partition("_")[0]] for m, (part, row) in wanted.items()}
            for average, sets in averages.items():
                figures[average] = fmean(found.figures["ood/msp"][one]["auroc"] for one in sets)
                moved[average] = torch.stack([found.resampled["ood/msp"][one]["auroc"] for one in sets]).mean(dim=0)
            known[name] = figures, moved
        return known[name]

    said: dict[str, Any] = {}
    for first, second in pairs:
        one, other = ([of(method, seed) for seed in seeds] for method in (first, second))
        said[f"{first} minus {second}"] = {
            metric: {
                **vars(
                    difference(
                        sum(figures[metric] for figures, _ in one) / len(seeds),
                        sum(figures[metric] for figures, _ in other) / len(seeds),
                        torch.stack([moved[metric] for _, moved in one]).mean(dim=0),
                        torch.stack([moved[metric] for _, moved in other]).mean(dim=0),
                    )
                ),
                "by_seed": [a[0][metric] - b[0][metric] for a, b in zip(one, other, strict=True)],
            }
            for metric in (*wanted, *averages)
        }
    return said
