"""Data sets by name: torchvision's, where their files are on this machine, and those of the `datasets` library."""

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.tables import Table
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import MissingExtra, import_extra

_TARGETS = ("targets", "labels", "_labels")
_TRAIN = {"train": True, "test": False}


class TorchvisionTable(Table):
    """`torchvision:NAME:SPLIT`, e.g. `torchvision:CIFAR100:test`. Nothing is downloaded."""

    def __init__(self, name: str, root: str | Path | None = None):
        datasets = import_extra("torchvision.datasets", "vision", "reading torchvision's data sets")
        name, _, split = name.partition(":")
        self.where = f"torchvision:{name}:{split}"
        root = root or os.environ.get("TORCHVISION_DATA")
        made_by: Any = getattr(datasets, name, None)
        if not isinstance(made_by, type):
            raise DataError(f"torchvision has no data set '{name}'; it has {', '.join(sorted(datasets.__all__))}")
        if root is None:
            raise DataError(f"{self.where}: where are its files? give root=, or set TORCHVISION_DATA")
        settings = _split_setting(self.where, made_by, split)
        try:
            self._data: Any = made_by(root=str(root), **settings)
        except Exception as error:
            # Each data set has its own way to say that its files are not there.
            raise DataError(
                f"{self.where} cannot be read from {root} ({in_one_line(error)}); download it there with torchvision"
            ) from None
        self.num_rows, self.columns = len(self._data), {"image": "image", "label": "number"}

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        found = [self._data[int(row)] for row in rows]
        places = [0 if column == "image" else 1 for column in columns]
        return [[_pixels(example[place]) for example in found] for place in places]

    def column(self, name: str) -> list[Any]:
        for attribute in _TARGETS:
            targets = getattr(self._data, attribute, None)
            if targets is not None and len(targets) == self.num_rows:
                return [int(target) for target in targets]
        return self.read(np.arange(self.num_rows), [name])[0]

    def names(self, column: str) -> list[str] | None:
        # torchvision's Caltech101 calls them categories.
        classes = getattr(self._data, "classes", None) or getattr(self._data, "categories", None)
        if column != "label" or not classes:
            return None
        # torchvision's ImageNet has several names a class, as a tuple.
        return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]


class HubTable(Table):
    """`hf:NAME:SPLIT` or `hf:NAME:CONFIG:SPLIT`, as `datasets.load_dataset` finds it: in its cache, or on the hub."""

    def __init__(self, name: str):
        self.where = f"hf:{name}"
        parts = name.split(":")
        if len(parts) not in (2, 3) or not all(parts):
            raise DataError(f"{self.where}: expected hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
        try:
            datasets = import_extra("datasets", "data", "reading data sets of the hub")
        except MissingExtra:
            raise MissingExtra(f"reading {self.where} needs the library 'datasets': pip install datasets") from None
        try:
            self._data = datasets.load_dataset(*parts[:-1], split=parts[-1])
        except Exception as error:
            # No network, no such data set, a script that is refused: the library says which.
            raise DataError(f"{self.where} cannot be read: {in_one_line(error)}") from None
        kinds = {column: type(feature).__name__ for column, feature in self._data.features.items()}
        for column, kind in kinds.items():
            if kind == "Image":  # as encoded: decoding is ours, and late
                self._data = self._data.cast_column(column, datasets.Image(decode=False))
        self.columns = {column: _kind(kind, self._data.features[column]) for column, kind in kinds.items()}
        self.num_rows = len(self._data)

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        found = self._data.select_columns(list(columns))[[int(row) for row in rows]]
        return [list(found[column]) for column in columns]

    def column(self, name: str) -> list[Any]:
        return list(self._data[name])

    def names(self, column: str) -> list[str] | None:
        names = getattr(self._data.features[column], "names", None)
        return None if names is None else list(names)


def _kind(kind: str, feature: Any) -> str:
    if kind in ("Image", "ClassLabel"):
        return {"Image": "image", "ClassLabel": "number"}[kind]
    dtype = str(getattr(feature, "dtype", ""))
    if (isinstance(feature, dict) and "bytes" in feature) or "binary" in dtype:
        return "image"
    if "string" in dtype:
        return "text"
    return "number" if dtype.startswith(("int", "uint", "float", "bool")) else "other"


def _split_setting(where: str, made_by: Any, split: str) -> dict[str, Any]:
    """How this data set is told which split: `split="test"`, or `train=False`."""
    parameters = inspect.signature(made_by.__init__).parameters
    if not split and not {"train", "split"}.isdisjoint(parameters):
        raise DataError(f"{where} has several splits; name one, as {where}train or {where}test")
    if "train" in parameters and split in _TRAIN:
        return {"train": _TRAIN[split]}
    if "split" in parameters and split:
        return {"split": split}
    if split:
        ways = ", ".join(name for name in ("train", "split") if name in parameters) or "no splits"
        raise DataError(f"{where}: this data set does not know the split '{split}' (it takes {ways})")
    return {}


def _pixels(value: Any) -> Any:
    """A Pillow image as pixels; anything else as it is."""
    return np.asarray(value.convert("RGB")) if hasattr(value, "convert") else value
