"""How well confidence tells known from unknown inputs, and right answers from wrong ones, counted exactly.

Shapes: A alternatives scored side by side (any leading dimensions), N known rows, U unknown rows, C classes.
"""

import torch
from torch import Tensor


def log_confidence(log_probs: Tensor) -> Tensor:
    """Log of the maximum softmax probability (MSP): orders rows as MSP does, and does not saturate near 1."""
    return log_probs.amax(dim=-1)


def accuracy(labels_predicted_AN: Tensor, labels_N: Tensor) -> Tensor:
    """The share of right answers, in float64 `(A,)`."""
    return (labels_predicted_AN == labels_N).double().mean(dim=-1)


def auroc(known_AN: Tensor, unknown_AU: Tensor) -> Tensor:
    """P(a known row has more confidence than an unknown one), ties counted half, in float64 `(A,)`.

    Pairs are counted in whole numbers, so equal counts give equal scores to the bit.

    >>> auroc(torch.tensor([0.9, 0.8, 0.5]), torch.tensor([0.5, 0.1])).item()
    0.9166666666666666
    """
    known = known_AN.sort(dim=-1).values.contiguous()
    unknown = unknown_AU.contiguous()
    N, U = known.shape[-1], unknown.shape[-1]
    above = N - torch.searchsorted(known, unknown, right=True)
    at_least = N - torch.searchsorted(known, unknown, right=False)
    return (above + at_least).sum(dim=-1).double() / (2 * N * U)


def placements(known_AN: Tensor, unknown_AU: Tensor) -> tuple[Tensor, Tensor]:
    """DeLong's placement values: for each known row the share of unknown rows below it, and the reverse.

    Both average to the AUROC; their spread is its sampling error.
    """
    known, unknown = known_AN.sort(dim=-1).values.contiguous(), unknown_AU.sort(dim=-1).values.contiguous()
    N, U = known.shape[-1], unknown.shape[-1]
    below = torch.searchsorted(unknown, known_AN.contiguous(), right=False)
    not_above = torch.searchsorted(unknown, known_AN.contiguous(), right=True)
    above = N - torch.searchsorted(known, unknown_AU.contiguous(), right=True)
    at_least = N - torch.searchsorted(known, unknown_AU.contiguous(), right=False)
    return (below + not_above).double() / (2 * U), (above + at_least).double() / (2 * N)
