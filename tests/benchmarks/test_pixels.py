"""Kept pixels change no batch."""

import numpy as np
import pytest
import torch

from evidence.pixels import KeptImages
from hydra_ensembles.data import batches_for, open_data
from tiny_sets import IMAGE


@pytest.fixture
def rows(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (37, 20, 24, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", image=pixels, label=np.arange(37) % 3)
    return open_data(f"{tmp_path}/set.npz")


@pytest.mark.parametrize("augment", [False, "flip"])
def test_batches_of_kept_pixels_are_those_they_come_from(rows, tmp_path, augment):
    preprocess = {**IMAGE, "size": 16, "crop_pct": 0.9}
    images = batches_for(preprocess, rows, batch_size=8, shuffle=True, seed=3, augment=augment, first_size=14)
    for kept in (KeptImages(images, tmp_path / "kept"), KeptImages(images, tmp_path / "kept")):
        assert kept.digest == images.digest
        for epoch in (0, 2):
            for found, expected in zip(kept.epoch(epoch), images.epoch(epoch), strict=True):
                assert torch.equal(found.inputs, expected.inputs)
                assert torch.equal(found.labels, expected.labels)
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_pixels_that_differ_in_every_epoch_are_not_kept(rows, tmp_path):
    images = batches_for({**IMAGE, "size": 16}, rows, augment="crop")
    with pytest.raises(AssertionError, match="differ from epoch to epoch"):
        KeptImages(images, tmp_path)
