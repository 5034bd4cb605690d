"""What is to be scored: files, here or at any address that fsspec knows, cut into blocks of rows.

The cut depends on nothing but the list of files and the size of a block, so a run that was killed finds the same
blocks again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data import DataError
from hydra_ensembles.data.folders import IMAGES, walk
from hydra_ensembles.data.lines import object_in
from hydra_ensembles.data.opening import SUFFIXES
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import import_extra

TABLES = (".parquet", ".jsonl")
_VERSIONS = (
    *("ETag", "etag", "generation", "Content-MD5", "CRC"),
    *("mtime", "LastModified", "last_modified", "Last-Modified", "modified", "created"),
)
"""What fsspec's file systems call it; the first that is there counts."""


@dataclass(frozen=True)
class File:
    """One file: its path below the input, how long it is, which version, and how many rows it has; an image is one."""

    path: str
    size: int
    version: str
    rows: int


@dataclass(frozen=True)
class Block:
    """Some rows: of one table, or as many image files."""

    name: str
    files: tuple[str, ...]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Input:
    """All files below a root, in the order of their names; either tables or images."""

    root: str
    files: tuple[File, ...]
    are_images: bool
    id_type: Any = None
    """Of the column that is carried over, as arrow has it."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def digest(self) -> str:
        """A hash of the place, and of names, sizes, versions and numbers of rows."""
        about = [self.root.rstrip("/"), [asdict(file) for file in self.files]]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def blocks(self, rows: int) -> list[Block]:
        """Blocks of at most so many rows; none spans two tables."""
        if self.are_images:
            paths = [file.path for file in self.files]
            cut = [paths[start : start + rows] for start in range(0, len(paths), rows)]
            found = [(tuple(files), 0, len(files)) for files in cut]
        else:
            found = [
                ((file.path,), start, min(start + rows, file.rows))
                for file in self.files
                for start in range(0, file.rows, rows)
            ]
        return [Block(f"part-{number:06d}", *one) for number, one in enumerate(found)]


def list_input(address: str, id_column: str | None = None) -> Input:
    """The files behind a path, a pattern or a URL: tables (parquet, jsonl), or images in folders.

    Where an `id_column` is to be carried over, all tables must have it. It keeps its type where they are parquet and
    have the same; else it is text.
    """
    address = absolute(expand(address))
    files, path = file_system(address)
    try:
        if files.isdir(path):
            root, found, above = path, _below(files, path), address
        else:
            found = sorted(files.glob(path)) if "*" in path else [path] if files.exists(path) else []
            root, above = _directory(path), _directory(address)
        below = [(one, one[len(root) :].lstrip("/")) for one in found]
        below = [(one, name) for one, name in below if not any(part.startswith(".") for part in name.split("/"))]
        tables = [(one, name) for one, name in below if Path(name).suffix.lower() in TABLES]
        images = [(one, name) for one, name in below if Path(name).suffix.lower() in IMAGES]
        chosen = tables or images
        listed, id_types = [], set()
        for one, name in chosen:
            about = files.info(one)
            rows, id_type = _table(files, one, id_column) if tables else (1, None)
            listed.append(File(name, int(about["size"]), _version(about), rows))
            id_types.add(id_type)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{address} cannot be listed: {in_one_line(error)}") from None
    if not listed:
        others = sorted({Path(name).suffix.lower() for _, name in below}.intersection(SUFFIXES))
        told = f" (but {', '.join(others)}; write them as parquet, or ask with predict)" if others else ""
        raise DataError(f"{address}: no {', '.join(TABLES)} files and no images are there{told}")
    if id_column is None:
        return Input(above, tuple(listed), not tables)
    if not tables:
        raise DataError(f"{address} holds images, which have no column '{id_column}'; the output names their files")
    text = import_extra("pyarrow", "data", "writing parquet").string()
    return Input(above, tuple(listed), False, id_types.pop() if len(id_types) == 1 else text)


def _below(files: Any, path: str) -> list[str]:
    """All files of a directory; on this disk also those behind links, as everywhere else."""
    if not is_local(files):
        return sorted(files.find(path))
    return sorted(os.path.join(parent, name) for parent, _, names in walk(Path(path)) for name in names)


def _directory(address: str) -> str:
    """The directory of a file or a pattern.

    >>> _directory("s3://bucket/reviews/*.parquet"), _directory("zip://*.png::photos.zip")
    ('s3://bucket/reviews', 'zip://::photos.zip')
    """
    inner, chained, outer = address.partition("::")
    directory = inner.partition("*")[0].rpartition("/")[0]
    return f"{directory}/{chained}{outer}" if directory.endswith(":/") else f"{directory}{chained}{outer}"


def _version(about: Mapping[str, Any]) -> str:
    """What tells a file from one that takes its place: a checksum where the store has one, else a time.

    fsspec's own `ukey` is no help: that of an archive is another in each process, that of a local file changes with its
    links and permissions.

    >>> _version({"name": "a", "size": 3, "mtime": 1.5}), _version({"ETag": "d41d8", "LastModified": "2026"})
    ('mtime 1.5', 'ETag d41d8')
    """
    known = (key for key in _VERSIONS if about.get(key) is not None)
    return next((f"{key} {about[key]}" for key in known), "")


def file_system(address: str) -> tuple[Any, str]:
    """Where an address is, and the path there; nothing is remembered of what was there before."""
    fsspec = import_extra("fsspec", "scale", "reading and writing files anywhere")
    try:
        files, path = fsspec.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise DataError(f"{address} cannot be opened: {in_one_line(error)}") from None
    files.invalidate_cache()  # object stores keep listings, but other processes write here
    return files, path.rstrip("/")


def absolute(address: str) -> str:
    """An address that means the same in every process: a path on this disk from its root on."""
    files, path = file_system(address)
    return str(path) if is_local(files) else address


def is_local(files: Any) -> bool:
    protocol = files.protocol
    return "file" in ([protocol] if isinstance(protocol, str) else protocol)


class Copies:
    """Files as local paths: where they lie, or copied from their address; only those last asked for are kept."""

    def __init__(self, root: str, scratch: Path):
        self.files, self.root = file_system(root)
        self.scratch = scratch

    def local(self, names: Sequence[str]) -> list[Path]:
        """Local paths of some files below the root."""
        if is_local(self.files):
            return [Path(self.root) / name for name in names]
        places = [self.scratch / hashlib.sha256(name.encode()).hexdigest()[:16] / Path(name).name for name in names]
        for old in self.scratch.iterdir():
            if old not in {place.parent for place in places}:
                shutil.rmtree(old)
        for name, place in zip(names, places, strict=True):
            if not place.exists():
                place.parent.mkdir(exist_ok=True)
                self.files.get_file(f"{self.root}/{name}".lstrip("/"), str(place.with_suffix(".part")))
                place.with_suffix(".part").rename(place)
        return places


def _table(files: Any, path: str, id_column: str | None) -> tuple[int, Any]:
    """Rows of a table, and the type of a column: a parquet file says both, the lines of others are counted."""
    arrow = import_extra("pyarrow", "data", "reading parquet")
    if path.lower().endswith(".parquet"):
        parquet = import_extra("pyarrow.parquet", "data", "reading parquet")
        with files.open(path, "rb") as opened:
            about = parquet.ParquetFile(opened)
        names, rows = about.schema_arrow.names, int(about.metadata.num_rows)
        id_type = about.schema_arrow.field(id_column).type if id_column in names else None
    else:
        names, rows, id_type = [], 0, arrow.string()
        with files.open(path, "rb") as opened:
            for line in opened:
                if line.strip(b"\r\n"):
                    rows += 1
                    if id_column is not None and id_column not in names:
                        with suppress(DataError):  # a line that cannot be read is put aside when its turn comes
                            names += [name for name in object_in(line) if name not in names]
    if id_column is not None and names and id_column not in names:
        raise DataError(f"{path} has no column '{id_column}'; it has {', '.join(names)}")
    return rows, id_type
