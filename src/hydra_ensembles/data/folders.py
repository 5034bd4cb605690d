"""Image folders: one folder a class, whatever lies below it; or images without folders, which have no labels."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.tables import Table

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class FilesTable(Table):
    """Image files by their paths, without labels."""

    def __init__(self, where: str, files: Sequence[str]):
        self.where, self._files, self.num_rows, self.columns = where, list(files), len(files), {"image": "image"}

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        return [[self._files[row] for row in rows] for _ in columns]

    def column(self, name: str) -> list[Any]:
        return list(self._files)

    def row_names(self, rows: np.ndarray) -> list[str] | None:
        return [self._files[row] for row in rows]


class FolderTable(Table):
    """Image files in the order of their classes' names, then of their own."""

    def __init__(self, directory: Path):
        self.where, self._directory = str(directory), directory
        found = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
        loose = [entry.name for entry in found if entry.is_file() and entry.suffix.lower() in IMAGES]
        folders = [entry.name for entry in found if entry.is_dir()]
        if loose and folders:
            raise DataError(
                f"{directory} holds images ('{loose[0]}') and folders ('{folders[0]}'); expected one folder a class, "
                "or images alone"
            )
        if not loose and not folders:
            raise DataError(f"{directory} holds neither images, nor folders of images, nor parquet files")
        self._classes = folders
        self._files, self._labels = loose, [0] * len(loose)
        for label, folder in enumerate(folders):
            files = _images_below(directory, folder)
            self._files += files
            self._labels += [label] * len(files)
        self.columns = {"image": "image", **({"label": "text"} if folders else {})}
        self.num_rows = len(self._files)

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        return [[self._value(int(row), column) for row in rows] for column in columns]

    def column(self, name: str) -> list[Any]:
        return [self._value(row, name) for row in range(self.num_rows)]

    def names(self, column: str) -> list[str] | None:
        return self._classes if column == "label" else None

    def row_names(self, rows: np.ndarray) -> list[str] | None:
        return [self._files[row] for row in rows]

    def _value(self, row: int, column: str) -> str:
        return self._files[row] if column == "image" else self._classes[self._labels[row]]


def _images_below(directory: Path, folder: str) -> list[str]:
    """Images at any depth, also behind links; hidden files and folders are no data, as at the top."""
    files = []
    for parent, folders, names in walk(directory / folder):
        inside = os.path.relpath(parent, directory)
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [
            os.path.join(inside, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGES
        ]
    return sorted(files)


def walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` that follows links, but enters no folder twice, as a link to a folder above would make it."""
    seen: set[str] = set()
    for parent, folders, names in os.walk(directory, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(parent, name)) not in seen]
        yield parent, folders, names
