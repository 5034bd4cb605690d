"""A set larger than the memory it may take is read, mixed and bucketed within that memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydra_ensembles.data import load_data, open_data
from tiny_sets import IMAGE, png

GROUPS, ROWS = 40, 25


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """1,000 images of about 12 kB in groups of 25: 12 MB."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    chance = np.random.default_rng(0)
    images = [png(chance.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(ROWS)]
    schema = pa.schema({"image": pa.binary(), "label": pa.int64()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for group in range(GROUPS):
            labels = np.arange(group * ROWS, (group + 1) * ROWS)
            writer.write_table(pa.table({"image": images, "label": labels}, schema=schema))
    return path


@pytest.mark.parametrize("shuffle", [False, True])
def test_memory_stays_within_the_cache_whatever_the_order(shuffle, large):
    group = pq.read_metadata(large).row_group(0).total_byte_size
    whole = GROUPS * group
    batches = load_data(large, IMAGE, batch_size=20, shuffle=shuffle, cache_bytes=4 * group, workers=0)
    before, peak, labels = pa.total_allocated_bytes(), 0, []
    for batch in batches:
        peak = max(peak, pa.total_allocated_bytes() - before)
        labels += batch.labels.tolist()
    assert sorted(labels) == list(range(GROUPS * ROWS))
    assert (labels == sorted(labels)) is not shuffle
    assert 0 < peak < 6 * group < whole / 6


def test_a_shuffled_pass_reads_each_group_once(large):
    """Rows are mixed among as many groups as the cache holds, so no group is wanted again after it was dropped."""
    group = pq.read_metadata(large).row_group(0).total_byte_size
    batches = load_data(large, IMAGE, batch_size=20, shuffle=True, cache_bytes=4 * group)
    order = batches.order.numpy() // ROWS
    windows = [set(order[start : start + 4 * ROWS]) for start in range(0, len(order), 4 * ROWS)]
    assert [len(window) for window in windows] == [4] * 10
    assert set.union(*windows) == set(range(GROUPS))


def test_a_set_that_fits_is_mixed_as_a_whole(large):
    order = load_data(large, IMAGE, shuffle=True).order.numpy() // ROWS
    assert len(set(order[:100])) > 30


def test_opening_reads_no_row(large):
    before = pa.total_allocated_bytes()
    rows = open_data(large)
    assert pa.total_allocated_bytes() - before < 100_000
    assert len(rows) == GROUPS * ROWS
