"""Parquet: one file, or several in the order of their names, read a row group at a time."""

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.tables import CACHE_BYTES, Table
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import import_extra

_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test")


class ParquetTable(Table):
    """Row groups are the blocks; the last few stay in memory, up to `cache_bytes` of their decoded values."""

    def __init__(self, where: str, files: Sequence[Path], cache_bytes: int = CACHE_BYTES):
        self.where = where
        metadata = [self._opened(file).metadata for file in files]
        schema = self._opened(files[0]).schema_arrow
        self.columns = {field.name: _kind(field.type) for field in schema}
        self._features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        self._groups: list[tuple[Path, int]] = []
        self._blocks: list[range] = []
        self.num_rows, largest = 0, 1
        for file, about in zip(files, metadata, strict=True):
            if about.schema.names != metadata[0].schema.names:
                raise DataError(f"{where}: {file.name} and {files[0].name} have different columns")
            for group in range(about.num_row_groups):
                row_group = about.row_group(group)
                self._groups.append((file, group))
                self._blocks.append(range(self.num_rows, self.num_rows + row_group.num_rows))
                self.num_rows += row_group.num_rows
                largest = max(largest, row_group.total_byte_size)
        self._held = max(1, cache_bytes // largest)
        self._cache: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()

    @property
    def blocks(self) -> Sequence[range]:
        return self._blocks

    @property
    def blocks_in_memory(self) -> int:
        return self._held

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        values: list[list[Any]] = [[None] * len(rows) for _ in columns]
        starts = np.array([block.start for block in self.blocks])
        block_of = np.searchsorted(starts, rows, side="right") - 1
        for block in np.unique(block_of):
            places = np.flatnonzero(block_of == block)
            group = self._group(int(block), tuple(columns)).take(rows[places] - starts[block])
            for column, found in zip(columns, values, strict=True):
                for place, value in zip(places, group[column].to_pylist(), strict=True):
                    found[place] = value
        return values

    def column(self, name: str) -> list[Any]:
        values: list[Any] = []
        for file, group in self._groups:
            values += self._read(file, group, [name])[name].to_pylist()
        return values

    def names(self, column: str) -> list[str] | None:
        """Hugging Face data sets write their features, class names among them, beside the schema."""
        features = self._features.get("info", {}).get("features", {})
        names = (features.get(column) or {}).get("names")
        return list(names) if isinstance(names, list) else None

    def _group(self, block: int, columns: tuple[str, ...]) -> Any:
        key = (block, columns)
        if key not in self._cache:
            # Room first: at no time are more blocks held than may be.
            while len(self._cache) >= self.blocks_in_memory:
                self._cache.popitem(last=False)
            file, group = self._groups[block]
            self._cache[key] = self._read(file, group, list(columns))
        self._cache.move_to_end(key)
        return self._cache[key]

    def _read(self, file: Path, group: int, columns: list[str]) -> Any:
        try:
            return self._opened(file).read_row_group(group, columns=columns)
        except OSError as error:  # a footer that is whole, and a page that is not
            raise DataError(f"{file} is damaged: {in_one_line(error)}") from None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not what has been read."""
        return {**vars(self), "_cache": OrderedDict()}

    def _opened(self, file: Path) -> Any:
        parquet = import_extra("pyarrow.parquet", "data", "reading parquet")
        try:
            return parquet.ParquetFile(file)
        except Exception as error:
            # Whatever arrow makes of a file that is not parquet.
            raise DataError(f"{file} is truncated or not a parquet file: {in_one_line(error)}") from None


def files_of_one_split(directory: Path) -> list[Path]:
    """The parquet files of a directory in the order of their names; those of several splits are not put together."""
    files = sorted(directory.glob("*.parquet"))
    splits = sorted({split for file in files if (split := re.split(r"[-_.]", file.name)[0]) in _SPLITS})
    if len(splits) > 1:
        raise DataError(
            f"{directory} holds the splits {', '.join(splits)}; name one, e.g. '{directory / splits[-1]}*.parquet'"
        )
    return files


def _kind(arrow_type: Any) -> str:
    types = import_extra("pyarrow", "data", "reading parquet").types
    if types.is_dictionary(arrow_type):
        return _kind(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return "image" if "bytes" in [field.name for field in arrow_type] else "other"
    if types.is_binary(arrow_type) or types.is_large_binary(arrow_type):
        return "image"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return "text"
    is_number = types.is_integer(arrow_type) or types.is_boolean(arrow_type) or types.is_floating(arrow_type)
    return "number" if is_number else "other"
