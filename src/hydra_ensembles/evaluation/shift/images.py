"""Corrupted images: ImageNet-C's fifteen corruptions, as torch-uncertainty has them, made once and kept in a file.

ImageNet-C corrupts what a model would see, after its crop. So do we: the pixels that the model's own transform makes;
or, where images are brought to a common first size, the image of that size, which the model then enlarges as usual.
Shapes: R rows, H height, W width.
"""

import functools
import hashlib
import inspect
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from hydra_ensembles.data import DataError, ImageTransform, Rows
from hydra_ensembles.data.arrays import ArraysTable
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.evaluation.shift.names import ShiftError, check_shift, seed_of
from hydra_ensembles.evaluation.shift.tables import ShiftedTable, rows_under
from hydra_ensembles.members.checkpoint import own_randomness, seed_all
from hydra_ensembles.optional import MissingExtra, import_extra, version_of
from hydra_ensembles.store import json_digest

Corrupt: TypeAlias = Callable[[Tensor, int], Tensor]
"""From an image `(3, H, W)` in [0, 1] and the number of its row to another such image."""

_AT_ONCE = 64
_LIBRARY = "torch_uncertainty"
_UNLIKE = {"jpeg_compression": "JPEGCompression", "elastic_transform": "Elastic"}


def corrupted_images(
    rows: Rows,
    corruption: str,
    severity: int,
    transform: ImageTransform,
    cache: str | Path,
    seed: int = 0,
    progress: bool | None = None,
) -> Rows:
    """The same rows with corrupted images, of the size at which they were corrupted, cut already.

    Without a `first_size` the model's transform must not cut them a second time: `shifted_batches` sees to it.

    What becomes of an image depends on (seed, number of its row in what was opened, corruption, severity) alone: a row
    of a sample is corrupted as in the whole set. The file in `cache` is an npz of `images` (R, H, W, 3) of uint8,
    `labels` and names (`class`) which `open_data` reads too; its name holds a hash of all that it depends on. It is
    written an image at a time, so no set is too large for memory; on the disk an image of 224 pixels takes 150 kB.
    What is found there is read without torch-uncertainty being imported.

    Args:
        rows: images, from `open_data`.
        corruption: one of `IMAGE_CORRUPTIONS`.
        severity: 1 to 5.
        transform: the model's own; only what it does to size and shape matters here.
        cache: the directory that keeps the files.
        seed: of whatever is random in a corruption.
        progress: a bar on the error stream; None shows it on a terminal only.
    """
    check_shift(corruption, severity, "image")
    if rows.kind != "image":
        raise ShiftError(f"{corruption} is for images, but {rows.where} holds {rows.kind}s")
    prepare = cut_before(transform)
    path = Path(cache).expanduser() / f"{corruption}-{severity}-{_key(rows, prepare, corruption, severity, seed)}.npz"
    found = _whole(path, rows)
    if found is None:
        with own_randomness(), torch.no_grad(), _bar(f"{corruption}/{severity}", len(rows), progress) as advance:
            write_images(path, rows, prepare, corruptor(corruption, severity, seed), advance)
        found = ArraysTable(path)
    return rows_under(PixelsTable(rows, f"{corruption}/{severity}", found), rows)


class PixelsTable(ShiftedTable):
    """A table whose images are those of a file with one row for each chosen row."""

    def __init__(self, rows: Rows, shift: str, arrays: ArraysTable):
        super().__init__(rows, shift)
        self._arrays, self._chosen = arrays, rows.chosen

    def read(self, rows: np.ndarray, columns: Sequence[str]) -> list[list[Any]]:
        return self._arrays.read(np.searchsorted(self._chosen, rows), ["images"])


def cut_before(transform: ImageTransform) -> ImageTransform:
    """What is done to an image before it is corrupted: all that the model's transform does, or its first step."""
    if transform.first_size is None:
        return transform
    return ImageTransform(
        {"size": transform.first_size, "interpolation": "bilinear", "mean": transform.mean, "std": transform.std}
    )


def corruptor(corruption: str, severity: int, seed: int) -> Corrupt:
    """One of torch-uncertainty's corruptions; it seeds all generators of the process anew for every row."""
    library = import_extra(f"{_LIBRARY}.transforms.corruption", "eval", "corrupting images")
    name = _UNLIKE.get(corruption) or corruption.title().replace("_", "")
    kind: Any = getattr(library, name)
    takes_seed = "seed" in inspect.signature(kind).parameters

    def corrupt(image: Tensor, row: int) -> Tensor:
        # Some draw from torch's generator, some from one of their own, frost from both.
        own = seed_of(seed, row, corruption, severity)
        seed_all(own)
        corrupted: Tensor = kind(severity, **({"seed": own} if takes_seed else {}))(image)
        return corrupted

    try:
        kind(severity)
    except ImportError:
        raise MissingExtra(
            f"{corruption} needs more than torch-uncertainty alone: pip install 'torch-uncertainty[image]'"
        ) from None
    return corrupt


def write_images(
    path: Path, rows: Rows, prepare: ImageTransform, corrupt: Corrupt, advance: Callable[[], None] = lambda: None
) -> None:
    """Write the corrupted images with their labels and class names; the file appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(rows), prepare.size, prepare.size, 3)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            # Not compressed: the reader then maps images from the disk, a row at a time.
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, column in _labels(rows).items():
                    with archive.open(f"{name}.npy", "w") as part:
                        npy.write_array(part, column, allow_pickle=False)
                with archive.open("images.npy", "w", force_zip64=True) as part:
                    npy.write_array_header_1_0(part, header)
                    for pixels in _corrupted(rows, prepare, corrupt):
                        part.write(pixels.tobytes())
                        advance()
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ShiftError(f"{path} cannot be written: {error}") from None
    finally:
        if path.parent.is_dir():
            draft.unlink(missing_ok=True)


def _corrupted(rows: Rows, prepare: ImageTransform, corrupt: Corrupt) -> Iterator[np.ndarray]:
    """Pixels (H, W, 3) of one row after the other."""
    for start in range(0, len(rows), _AT_ONCE):
        places = np.arange(start, min(start + _AT_ONCE, len(rows)))
        for row, picture in zip(rows.chosen[places].tolist(), rows.inputs(places), strict=True):
            try:
                pixels = prepare(picture)
            except Exception as error:
                # Whatever Pillow makes of damaged bytes.
                raise DataError(f"row {row} of {rows.where}: not a readable image: {in_one_line(error)}") from None
            try:
                image = corrupt(torch.from_numpy(pixels.transpose(2, 0, 1) / np.float32(255)), row)
            except Exception as error:
                # A blur that is wider than the image, or whatever else the library's libraries do not take.
                raise ShiftError(
                    f"row {row} of {rows.where}: an image of {prepare.size} pixels cannot be corrupted so: "
                    f"{in_one_line(error)}"
                ) from None
            # Rounded, where ImageNet-C cuts off: what no corruption touches keeps its value.
            yield np.rint(np.clip(np.asarray(image), 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)


def _labels(rows: Rows) -> dict[str, np.ndarray]:
    if rows.labels is None:
        return {}
    labels = rows.labels.numpy()
    if rows.classes is None:
        return {"labels": labels}
    return {"labels": labels, "class": np.array([rows.classes[label] for label in labels], dtype=np.str_)}


def _key(rows: Rows, prepare: ImageTransform, corruption: str, severity: int, seed: int) -> str:
    """A hash of all that a file depends on; a model's mean and standard deviation do not matter."""
    shape = [prepare.size, prepare.scaled_size, prepare.crop_mode, prepare.interpolation]
    numbers = hashlib.sha256(rows.chosen.astype("<i8").tobytes()).hexdigest()
    content = [rows.digest, numbers, rows.classes, shape, corruption, severity, seed, _library_version()]
    return json_digest(content)


@functools.cache
def _library_version() -> str | None:
    return version_of(_LIBRARY)  # it looks through all that is installed, 0.15 s


def _whole(path: Path, rows: Rows) -> ArraysTable | None:
    """The file, None where there is none or where it is damaged; a zip's table of contents stands at its end."""
    try:
        found = ArraysTable(path) if path.exists() else None
    except DataError:
        return None
    return found if found and found.num_rows == len(rows) and found.columns.get("images") == "image" else None


@contextmanager
def _bar(title: str, total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (console.is_terminal if wanted is None else wanted):
        yield lambda: None
        return
    columns = (TextColumn("corrupting images  {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), TextColumn("left"), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
