"""The diagonal of a Hessian by Hutchinson's estimate: the mean of z * Hz over vectors z of random signs.

Hz is a Hessian-vector product: a second backward through the gradient. The estimate has no bias; where the Hessian is
diagonal it is exact. Shapes: N chosen numbers of the weights, P probes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hydra_ensembles.evaluation.analyses.subject import AnalysisError

Losses: TypeAlias = Callable[[], Iterable[Tensor]]
"""Makes, at every call anew, the parts of a loss: their sum is the loss, each has a graph of its own."""

HOLD_NUMBERS = 2**24
"""Products of several probes are summed over the data side by side, up to so many numbers: 200 MB with their signs."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """An estimate, with standard errors, of the diagonal and of its average."""

    mean_N: Tensor
    error_N: Tensor
    average: float
    average_error: float


def hessian_diagonal(
    losses: Losses, weights: Sequence[Tensor], chosen: Sequence[Tensor], probes: int, seed: int = 0
) -> Diagonal:
    """Estimate the diagonal at the chosen numbers (a mask a weight), in the order of the weights."""
    moments = Moments()
    for sample_N in diagonal_samples(losses, weights, chosen, probes, seed):
        moments.add(sample_N)
    return moments.diagonal()


def diagonal_samples(
    losses: Losses, weights: Sequence[Tensor], chosen: Sequence[Tensor], probes: int, seed: int = 0
) -> Iterator[Tensor]:
    """`z * Hz` of one probe after another, `(N,)` in float64; another loss with the same seed has the same probes."""
    generator = torch.Generator().manual_seed(seed)
    N = sum(int(mask.sum()) for mask in chosen)
    at_once = max(1, HOLD_NUMBERS // max(N, 1))
    for start in range(0, probes, at_once):
        number = min(at_once, probes - start)
        signs = [torch.randint(0, 2, (N,), generator=generator) * 2 - 1 for _ in range(number)]
        signs_PN = torch.stack(signs).to(weights[0])
        products_PN = hessian_products(losses, weights, chosen, signs_PN)
        yield from (sign * product for sign, product in zip(signs_PN, products_PN, strict=True))


def hessian_products(losses: Losses, weights: Sequence[Tensor], chosen: Sequence[Tensor], vectors_PN: Tensor) -> Tensor:
    """Hessian times each vector `(P, N)` in float64; the Hessian is that of the chosen numbers alone."""
    total_PN = torch.zeros(vectors_PN.shape, dtype=torch.float64, device=vectors_PN.device)
    for loss in losses():
        gradient_N = _flat(torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True), chosen)
        if not gradient_N.requires_grad:  # a linear loss is not curved
            continue
        for place, vector_N in enumerate(vectors_PN):
            last = place == len(vectors_PN) - 1
            products = torch.autograd.grad(gradient_N, weights, vector_N, retain_graph=not last, materialize_grads=True)
            total_PN[place] += _flat(products, chosen).double()
    return total_PN


class Moments:
    """Mean and spread of samples that come one after another."""

    def __init__(self) -> None:
        self.number = 0
        self.averages: list[float] = []

    def add(self, sample_N: Tensor) -> None:
        """One sample more."""
        if self.number == 0:
            self.mean_N, self.scatter_N = torch.zeros_like(sample_N), torch.zeros_like(sample_N)
        self.number += 1
        step_N = sample_N - self.mean_N
        self.mean_N += step_N / self.number
        self.scatter_N += step_N * (sample_N - self.mean_N)
        self.averages.append(float(sample_N.mean()))

    def diagonal(self) -> Diagonal:
        """What the samples say so far."""
        if self.number < 2:
            raise AnalysisError(f"a standard error needs at least 2 probes, found {self.number}")
        averages = torch.tensor(self.averages, dtype=torch.float64)
        errors_N = (self.scatter_N / (self.number - 1) / self.number).sqrt()
        return Diagonal(self.mean_N, errors_N, float(averages.mean()), float(averages.std() / self.number**0.5))


def _flat(tensors: Iterable[Tensor], chosen: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor[mask] for tensor, mask in zip(tensors, chosen, strict=True)])
