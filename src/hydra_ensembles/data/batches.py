"""Batches: what every stage that looks at data takes. They can be gone through again, in the same order.

Shapes: B batch, R rows of the whole set.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.store import tensors_digest


class DataError(HydraError):
    """Data that cannot be read, or does not fit what is asked of it."""


class Batch(NamedTuple):
    """Some inputs, with their labels `(B,)` where they have any."""

    inputs: Inputs
    labels: Tensor | None = None

    def __len__(self) -> int:
        return rows_of(self.inputs)


class Batches(Protocol):
    """A data set cut into batches."""

    num_rows: int

    @property
    def digest(self) -> str:
        """A hash of the content, of what is done to it, and of its order."""

    def __len__(self) -> int:
        """How many batches."""

    def __iter__(self) -> Iterator[Batch]:
        """The first epoch: always the same batches in the same order."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """One pass over the data; a shuffled set has its own order in every epoch, the same in every run."""


Data: TypeAlias = Batches | tuple[Inputs, Tensor | None] | Tensor | Mapping[str, Any] | Iterable[Any]
"""Batches; or all inputs and labels as tensors; or inputs alone; or a loader of (inputs, labels)."""


class TensorBatches:
    """Tensors in memory as batches: inputs are a tensor, or a mapping of tensors, of R rows each."""

    def __init__(
        self, inputs: Inputs, labels: Tensor | None = None, batch_size: int = 64, shuffle: bool = False, seed: int = 0
    ):
        inputs, labels = _tensors(inputs, labels)
        self.num_rows = rows_of(inputs)
        if self.num_rows == 0:
            raise DataError("the data set has no rows")
        if labels is not None and len(labels) != self.num_rows:
            raise DataError(f"there are {self.num_rows} inputs but {len(labels)} labels")
        if batch_size < 1:
            raise DataError(f"a batch has at least one row, found batch_size={batch_size}")
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size
        self.shuffle, self.seed = shuffle, seed

    @property
    def order(self) -> Tensor:
        """Which row comes first, second, ... in a pass; `results[order.argsort()]` puts results back in row order."""
        return self._order(0)

    @cached_property
    def digest(self) -> str:
        order = f"{self.batch_size} {self.shuffle} {self.seed if self.shuffle else 0}"
        return _digest([Batch(self.inputs, self.labels)], order)

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int) -> Iterator[Batch]:
        for rows in self._order(number).split(self.batch_size):
            yield Batch(rows_at(self.inputs, rows), None if self.labels is None else self.labels[rows])

    def _order(self, epoch: int) -> Tensor:
        return epoch_order(self.num_rows, self.seed, epoch) if self.shuffle else torch.arange(self.num_rows)


class LoaderBatches:
    """Any loader of (inputs, labels), inputs, or mappings with `labels`: a torch DataLoader, a list of batches."""

    def __init__(self, loader: Iterable[Any]):
        self.loader = loader
        self._sizes = [len(batch) for batch in self]
        self.num_rows = sum(self._sizes)
        if self.num_rows == 0:
            raise DataError("the data set has no rows")

    @cached_property
    def digest(self) -> str:
        return _digest(self, "loader")

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def epoch(self, number: int) -> Iterator[Batch]:  # the loader orders itself
        return map(_as_batch, self.loader)


def as_batches(data: Data, batch_size: int = 64, shuffle: bool = False, seed: int = 0) -> Batches:
    """Batches of any data that we understand; `batch_size` and `shuffle` are for tensors, which have no batches yet.

    >>> len(as_batches((torch.zeros(5, 3), torch.zeros(5).long()), batch_size=2))
    3
    """
    # Not isinstance(data, Batches): Python 3.11 would ask for every property, and a digest may read the whole set.
    if callable(getattr(data, "epoch", None)):
        return cast(Batches, data)
    if isinstance(data, Tensor | Mapping | np.ndarray):
        return TensorBatches(cast(Inputs, data), None, batch_size, shuffle, seed)
    if isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple):
        return TensorBatches(data[0], data[1], batch_size, shuffle, seed)
    if iter(data) is data:
        raise DataError("an iterator can be gone through only once; give a list of batches, a DataLoader or tensors")
    return LoaderBatches(data)


def is_shuffling_loader(data: Data) -> bool:
    """Is it a DataLoader that has its rows in another order each time?"""
    order = getattr(getattr(data, "batch_sampler", None), "sampler", None) or getattr(data, "sampler", None)
    return isinstance(order, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)


def counted_on(data: Data, by: int) -> Data:
    """The same rows in the order, and with the draws, of a seed that is higher by so much; of a loader, as it is."""
    seed = getattr(data, "seed", None)
    if not by or not isinstance(seed, int) or not callable(getattr(data, "epoch", None)):
        return data
    found = copy.copy(data)
    vars(found).pop("digest", None)
    found.seed = seed + by  # type: ignore[union-attr]
    return found


def epoch_order(rows: int, seed: int, epoch: int) -> Tensor:
    """The order of a shuffled epoch; it depends on seed and epoch alone."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def rows_of(inputs: Inputs) -> int:
    """How many inputs there are."""
    if isinstance(inputs, Tensor):
        return len(inputs)
    sizes = {len(part) for part in inputs.values() if isinstance(part, Tensor)}
    if len(sizes) != 1:
        raise DataError(f"inputs of one batch must have one number of rows, found {sorted(sizes)}")
    return sizes.pop()


def rows_at(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """Some rows of the inputs."""
    if isinstance(inputs, Tensor):
        return inputs[rows]
    return {name: part[rows] if isinstance(part, Tensor) else part for name, part in inputs.items()}


def known_labels(labels_B: Tensor, classes: int, error: type[HydraError] = DataError) -> Tensor:
    """Labels as numbers of a model's classes; others are an error.

    >>> known_labels(torch.tensor([0, 2], dtype=torch.uint8), 3)
    tensor([0, 2])
    """
    given = torch.as_tensor(labels_B)
    labels = given.long()
    if labels.ndim != 1 or bool((labels != given).any()):
        raise error(f"labels are one whole number an input, found {given.dtype} of shape {tuple(given.shape)}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise error(f"label {low if low < 0 else high} was found, but the model has {classes} classes, numbered from 0")
    return labels


def inputs_to(inputs: Inputs, device: torch.device | str) -> Inputs:
    """Inputs on a device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {name: part.to(device) if isinstance(part, Tensor) else part for name, part in inputs.items()}


def _as_batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        return item
    if isinstance(item, Tensor | np.ndarray):
        return Batch(*_tensors(item, None))
    if isinstance(item, Mapping):
        fields = dict(item)
        labels = fields.pop("labels", None)
        return Batch(*_tensors(fields, labels))
    if isinstance(item, Sequence) and len(item) == 2:
        return Batch(*_tensors(item[0], item[1]))
    raise DataError(f"a batch is (inputs, labels), inputs, or a mapping with 'labels'; found {type(item).__name__}")


def _tensors(inputs: Any, labels: Any) -> tuple[Inputs, Tensor | None]:
    """Arrays and lists of numbers as tensors, so that they count in a digest like any."""
    try:
        labels = None if labels is None else torch.as_tensor(labels)
        if isinstance(inputs, Mapping):
            return {name: _tensor(part) for name, part in inputs.items()}, labels
        inputs = _tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"inputs and labels are numbers, as tensors or arrays: {in_one_line(error)}") from None
    if not isinstance(inputs, Tensor):
        raise DataError(f"inputs are a tensor, or a mapping of tensors; found {type(inputs).__name__}")
    return inputs, labels


def _tensor(value: Any) -> Any:
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def _digest(batches: Iterable[Batch], order: str) -> str:
    named = (
        (name, tensor)
        for inputs, labels in batches
        for name, tensor in sorted(
            {**({"": inputs} if isinstance(inputs, Tensor) else inputs), "labels": labels}.items()
        )
        if isinstance(tensor, Tensor)
    )
    return tensors_digest(named, order)
