"""Arrays in npz files. What `np.savez` wrote is read from the disk as it is used; a compressed file is read whole."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.columns import LABELS
from hydra_ensembles.data.tables import Table
from hydra_ensembles.errors import in_one_line

_INPUTS = ("images", "image", "x", "x_test", "data", "texts", "text", "arr_0")


class ArraysTable(Table):
    """The arrays of an npz file that have one row an example; `main` names one of them where lengths differ."""

    def __init__(self, path: Path, main: str | None = None):
        self.where = str(path)
        arrays = _arrays(path)
        if main is not None and main not in arrays:
            raise DataError(f"{path} has no array '{main}'; it has {', '.join(arrays)}")
        main = main or next((name for name in _INPUTS if name in arrays), next(iter(arrays), None))
        if main is None or arrays[main].ndim == 0:
            raise DataError(f"{path} has no array with rows; it has {', '.join(arrays) or 'nothing'}")
        self.num_rows = len(arrays[main])
        for name in LABELS:
            if name in arrays and arrays[name].ndim and len(arrays[name]) != self.num_rows:
                raise DataError(f"{path}: '{main}' has {self.num_rows} rows, '{name}' {len(arrays[name])}")
        self._arrays = {
            name: of.reshape(len(of)) if of.shape[1:] == (1,) else of  # labels are at times a column
            for name, of in arrays.items()
            if of.ndim and len(of) == self.num_rows
        }
        self.columns = {name: _kind(of) for name, of in self._arrays.items()}

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        return [self._values(self._arrays[column], column, rows) for column in columns]

    def column(self, name: str) -> list[Any]:
        return list(self._arrays[name].tolist())

    def _values(self, array: np.ndarray, column: str, rows: np.ndarray) -> list[Any]:
        if self.columns[column] == "text":
            return [str(array[row]) for row in rows]
        if self.columns[column] != "image":
            raise DataError(
                f"array '{column}' of {self.where} is {array.dtype} {array.shape}; expected texts, or images of uint8 "
                "(rows, height, width, 1 or 3)"
            )
        return [np.array(array[row]) for row in rows]


def _kind(array: np.ndarray) -> str:
    if array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[-1] in (1, 3))):
        return "image"
    if array.ndim == 1 and array.dtype.kind == "U":
        return "text"
    return "number" if array.ndim == 1 and array.dtype.kind in "iufb" else "other"


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [(part, _start(archive, part)) for part in archive.infolist() if part.filename.endswith(".npy")]
        whole = np.load(path, allow_pickle=False)
        return {
            part.filename[:-4]: whole[part.filename[:-4]] if start is None else _mapped(path, start)
            for part, start in parts
        }
    except Exception as error:
        # Whatever zipfile and numpy make of a file that is not theirs, or holds objects.
        raise DataError(f"{path} is not an npz file of plain arrays: {in_one_line(error)}") from None


def _start(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> int | None:
    """Where a part's bytes begin in the file; None where they are compressed."""
    if part.compress_type != zipfile.ZIP_STORED:
        return None
    with archive.open(part):  # reads the local header, behind which the bytes begin
        assert archive.fp is not None
        archive.fp.seek(part.header_offset + 26)
        name, extra = (int.from_bytes(archive.fp.read(2), "little") for _ in range(2))
    return part.header_offset + 30 + name + extra


def _mapped(path: Path, start: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(start)
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds objects")
        return (
            np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
            if all(shape)
            else np.empty(shape, dtype)
        )
