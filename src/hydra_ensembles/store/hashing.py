"""A hash of numbers: to know a model or a data set again."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def tensors_digest(named: Iterable[tuple[str, Tensor]], about: str = "") -> str:
    """A hash of tensors in their order, of their names, shapes and dtypes, and of what is said about them.

    >>> ones = torch.ones(2)
    >>> tensors_digest([("a", ones)]) == tensors_digest([("b", ones)])
    False
    """
    hasher = hashlib.sha256(about.encode())
    for name, tensor in named:
        hasher.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()[:16]
