"""A hash of numbers, or of what JSON says: to know a model or a data set again."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

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


def json_digest(about: Any) -> str:
    """A hash of what JSON can say.

    >>> json_digest({"a": 1, "b": [2]}) == json_digest({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
