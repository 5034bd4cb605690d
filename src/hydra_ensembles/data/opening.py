"""Data references: how a command or a recipe names a data set.

    DIR                        image files, one folder a class; or without folders, unlabelled
    FILE.parquet, DIR          a parquet file, or a directory of them; `train-*.parquet` for some
    FILE.tsv, .csv, .jsonl     lines of text
    FILE.txt                   a text a line, unlabelled
    FILE.jpg, .png, ...        one image, unlabelled
    FILE.npz                   arrays: images (rows, height, width, 3) of uint8, labels
    torchvision:NAME:SPLIT     a data set of torchvision that is already on this machine
    hf:NAME[:CONFIG]:SPLIT     a data set of the `datasets` library

Behind any of them, `[:3000]`, `[3000:]`, `[100:200]` chooses rows as in Python. `${VAR}` and `~` expand.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data.arrays import ArraysTable
from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.columns import Columns, choose_columns
from hydra_ensembles.data.folders import IMAGES, FilesTable, FolderTable
from hydra_ensembles.data.labels import Labels
from hydra_ensembles.data.lines import LinesTable
from hydra_ensembles.data.named import HubTable, TorchvisionTable
from hydra_ensembles.data.parquet import ParquetTable, files_of_one_split
from hydra_ensembles.data.rows import Rows
from hydra_ensembles.data.tables import CACHE_BYTES, Table

SUFFIXES = (".parquet", ".tsv", ".csv", ".jsonl", ".txt", ".npz")
_RANGE = re.compile(r"(.+)\[(-?\d*):(-?\d*)\]")


def open_data(
    reference: str | Path,
    *,
    image: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | bool | None = None,
    classes: Sequence[str] | None = None,
    header: bool = True,
    root: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> Rows:
    """The rows that `reference` names; nothing is read yet but what says how many there are.

    Args:
        reference: see the module's docstring.
        image: the column with images, where its name is not a common one.
        text: the column with texts, or two for pairs of texts.
        label: the column with labels; False for none.
        classes: class names by label; where labels are names, the order in which they are numbered.
        header: False for tsv and csv whose first line is data; columns are then called "0", "1", ...
        root: where torchvision's data sets lie, if not in the environment variable TORCHVISION_DATA.
        cache_bytes: how much of a parquet set to hold in memory while its rows are mixed.
    """
    name, chosen = split_range(expand(str(reference)))
    table = _open_table(name, header, root, cache_bytes, image, text)
    columns = choose_columns(table.where, table.columns, image, text, label)
    labels = Labels(table, columns.label, columns.names, classes)
    path = Path(name)
    rows = Rows(table, columns, labels, np.arange(table.num_rows), path if path.is_dir() else path.parent)
    return rows if chosen is None else rows[chosen]


def open_images(files: Sequence[str | Path], where: str = "the images") -> Rows:
    """The rows that image files are, one each, in their order; `where` is what messages call them together."""
    table = FilesTable(where, [str(file) for file in files])
    return Rows(table, Columns("image", ("image",), None, None), Labels(table, None, None, None), np.arange(len(files)))


def split_range(reference: str) -> tuple[str, slice | None]:
    """A reference without its range of rows, and the range.

    >>> split_range("sst2.parquet[:3000]")
    ('sst2.parquet', slice(None, 3000, None))
    """
    match = _RANGE.fullmatch(reference)
    if match is None:
        return reference, None
    name, start, stop = match.groups()
    return name, slice(int(start) if start else None, int(stop) if stop else None)


def _open_table(
    name: str,
    header: bool,
    root: str | Path | None,
    cache_bytes: int,
    image: str | None,
    text: str | Sequence[str] | None,
) -> Table:
    scheme, _, inside = name.partition(":")
    if scheme == "torchvision":
        return TorchvisionTable(inside, root)
    if scheme == "hf":
        return HubTable(inside)
    path = Path(name)
    if path.suffix == ".parquet" and "*" in path.name and (files := sorted(path.parent.glob(path.name))):
        return ParquetTable(name, files, cache_bytes)
    if not path.exists():
        hint = "; rows are chosen as in [3:10], [:100]" if name.endswith("]") else ""
        raise DataError(
            f"{path} does not exist{hint}; a data set is a file, a directory, torchvision:NAME:SPLIT or hf:NAME:SPLIT"
        )
    if path.is_dir():
        files = files_of_one_split(path)
        return ParquetTable(name, files, cache_bytes) if files else FolderTable(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetTable(name, [path], cache_bytes)
    if suffix in (".tsv", ".csv", ".jsonl", ".txt"):
        return LinesTable(path, header)
    if suffix == ".npz":
        return ArraysTable(path, image or (text if isinstance(text, str) or text is None else text[0]))
    if suffix in IMAGES:
        return FilesTable(name, [path.name])
    raise DataError(f"{path} ends in '{suffix}'; known are {', '.join(SUFFIXES)}, images, and directories")
