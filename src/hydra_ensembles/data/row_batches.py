"""Batches of rows: what batches of images and of texts have in common."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data.batches import Batch, DataError
from hydra_ensembles.data.rows import Rows
from hydra_ensembles.store import json_digest


class RowBatches(ABC):
    """Rows in batches, read as they are asked for; labels `(R,)` are those that the model knows."""

    def __init__(self, rows: Rows, labels: Tensor | None, batch_size: int, shuffle: bool, seed: int):
        if batch_size < 1:
            raise DataError(f"a batch has at least one row, found batch_size={batch_size}")
        if seed < 0:
            raise DataError(f"a seed is not negative, found seed={seed}")
        self.rows, self.labels, self.num_rows = rows, labels, len(rows)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is done to a row, as JSON."""

    @abstractmethod
    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """One pass over the data; a shuffled set has its own order in every epoch, the same in every run."""

    @property
    def order(self) -> Tensor:
        """Which row comes first, second, ... in a pass; `results[order.argsort()]` puts results back in row order."""
        return torch.from_numpy(np.concatenate(self.plan(0)))

    @cached_property
    def digest(self) -> str:
        """A hash of the rows, of their labels, of what is done to them, and of their order; reads every row once."""
        labels = None if self.labels is None else hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()
        content = [self.rows.digest, labels, self.settings, self.batch_size, self.shuffle, self.seed]
        return json_digest(content)

    def __len__(self) -> int:
        return -(-self.num_rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def labels_at(self, places: np.ndarray) -> Tensor | None:
        """The labels of some rows."""
        return None if self.labels is None else self.labels[torch.from_numpy(places)]
