"""The rows of known data that a number is fitted on: checked, and their order statistics.

Shapes: R rows, M members, C classes.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from hydra_ensembles.errors import HydraError


class FittingError(HydraError):
    """Something cannot be fitted on these rows, or a fitted number is not one that can be."""


def check_rows(logits_RMC: Tensor, labels_R: Tensor | None = None) -> None:
    """Refuse rows that nothing can be fitted on."""
    if logits_RMC.dim() != 3 or 0 in logits_RMC.shape:
        raise FittingError(f"member logits have shape (rows, members, classes), found {tuple(logits_RMC.shape)}")
    check_finite("the logits", logits_RMC.flatten(1))
    if labels_R is None:
        return
    rows, classes = len(logits_RMC), logits_RMC.shape[-1]
    if labels_R.shape != (rows,):
        raise FittingError(f"{rows} rows need labels of shape ({rows},), found {tuple(labels_R.shape)}")
    if labels_R.is_floating_point() or int(labels_R.min()) < 0 or int(labels_R.max()) >= classes:
        low, high = labels_R.min().item(), labels_R.max().item()
        raise FittingError(f"labels are whole numbers from 0 to {classes - 1}, found {low} to {high}")


def check_finite(what: str, values_RN: Tensor) -> None:
    """Refuse NaN and infinity, naming the first row that has one."""
    strange = ~torch.isfinite(values_RN).flatten(1).all(dim=1)
    if strange.any():
        place = int(strange.int().argmax())
        raise FittingError(
            f"{what} of {int(strange.sum())} of {len(strange)} rows are not finite, first in row {place}; "
            "nothing is fitted on them"
        )


def rank_of(share: float, rows: int) -> int:
    """`ceil(share * rows)`, with the share taken as the decimal it is written as.

    >>> rank_of(0.07, 100), math.ceil(0.07 * 100)
    (7, 8)
    """
    return math.ceil(Fraction(str(float(share))) * rows)


def smallest(values_R: Tensor, rank: int) -> float:
    """The value that is `rank`-th from below, counted from 1."""
    return float(values_R.kthvalue(rank).values)


def finest(logits: Tensor) -> Tensor:
    """Logits in float64, where the device has it.

    What is compared with a fitted number is computed so when fitting and when predicting: near certainty float32
    knows no difference between probabilities, and ties there would turn into whole sets of labels.
    """
    return logits.float() if logits.device.type == "mps" else logits.double()
