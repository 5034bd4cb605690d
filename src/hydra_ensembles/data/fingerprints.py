"""Fingerprints of rows: to see whether two sets share any, whatever their order, labels and files.

Shapes: R rows.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from hydra_ensembles.data.batches import Batches
from hydra_ensembles.data.rows import Rows, bytes_of
from hydra_ensembles.store import tensors_digest

_AT_ONCE = 256


def fingerprints(data: Batches) -> np.ndarray:
    """A hash of each row's input `(R,)`: of the text or the encoded image where rows come from files, else of tensors.

    The same row is found again where both sets are given in the same form: two files, or tensors twice.
    """
    rows = _rows(data)
    hashes = _of_tensors(data) if rows is None else _of_files(rows)
    return np.fromiter((int.from_bytes(found) for found in hashes), dtype=np.uint64)


def source_of(data: Batches) -> str | None:
    """The file or directory that batches come from, as a whole path; None for tensors in memory."""
    rows = _rows(data)
    if rows is None:
        return None
    return str(Path(rows.where).resolve()) if Path(rows.where).exists() else rows.where


def rows_digest(data: Batches) -> str:
    """A hash of rows and labels in their order, whatever a model does to them; of tensors, that of their batches."""
    rows = _rows(data)
    return data.digest if rows is None else rows.digest


def _rows(data: Batches) -> Rows | None:
    rows = getattr(data, "rows", None)
    return rows if isinstance(rows, Rows) else None


def _of_files(rows: Rows) -> Iterator[bytes]:
    for start in range(0, len(rows), _AT_ONCE):
        for value in rows.inputs(np.arange(start, min(start + _AT_ONCE, len(rows)))):
            hasher = hashlib.sha256()
            for part in bytes_of(value):
                hasher.update(len(part).to_bytes(8, "little"))
                hasher.update(part)
            yield hasher.digest()[:8]


def _of_tensors(data: Batches) -> Iterator[bytes]:
    for inputs, _ in data:
        named = {"": inputs} if isinstance(inputs, Tensor) else inputs
        fields = {name: field for name, field in sorted(named.items()) if isinstance(field, Tensor)}
        mask = fields.get("attention_mask")
        for row in range(len(next(iter(fields.values())))):
            one = {name: field[row] for name, field in fields.items()}
            if mask is not None:  # a text is padded otherwise in another batch
                is_text = mask[row].bool()
                one = {name: part[is_text] if part.shape == is_text.shape else part for name, part in one.items()}
            yield bytes.fromhex(tensors_digest(one.items()))
