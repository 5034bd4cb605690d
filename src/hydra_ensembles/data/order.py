"""Orders: in which order rows are gone through, and which of them make a batch.

All depend on (seed, epoch) and the data alone. A set that does not fit in memory is mixed a few blocks at a time:
blocks in random order, then the rows of as many blocks as may be held.
"""

import numpy as np

from hydra_ensembles.data.rows import Rows

_BUCKETS_OF_BATCHES = 50


def shuffled_order(rows: Rows, seed: int, epoch: int) -> np.ndarray:
    """Every row once, mixed."""
    return _mixed(rows, _generator(seed, epoch))


def batches_of(order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """An order cut into batches; the last may be smaller."""
    return np.split(order, range(batch_size, len(order), batch_size))


def bucketed(rows: Rows, lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Batches of rows of like length, longest first; rows of one length in their own order."""
    order = []
    for group in rows.groups():
        places = np.concatenate(group)
        order.append(places[np.argsort(-lengths[places], kind="stable")])
    return batches_of(np.concatenate(order), batch_size)


def shuffled_buckets(rows: Rows, lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Mixed rows, of like length within a batch: sorted within windows of 50 batches, then batches mixed there."""
    generator = _generator(seed, epoch)
    batches: list[np.ndarray] = []
    for window in batches_of(_mixed(rows, generator), batch_size * _BUCKETS_OF_BATCHES):
        inside = batches_of(window[np.argsort(lengths[window], kind="stable")], batch_size)
        batches += [inside[i] for i in generator.permutation(len(inside))]
    return batches


def _mixed(rows: Rows, generator: np.random.Generator) -> np.ndarray:
    groups = rows.groups()
    blocks = [block for group in groups for block in group]
    held = len(groups[0])
    shuffled = [blocks[i] for i in generator.permutation(len(blocks))]
    mixed = [np.concatenate(shuffled[start : start + held]) for start in range(0, len(shuffled), held)]
    return np.concatenate([generator.permutation(places) for places in mixed])


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])
