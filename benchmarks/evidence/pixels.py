"""Images that are decoded and resized once, for whatever reads them often: pixels of uint8 in one file a set.

Batches are the same to the bit, as a test shows.
"""

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hydra_ensembles.data.batches import Batch
from hydra_ensembles.data.images import ImageBatches

FLIPPED = ("none", "flip")
"""What may be random about images whose pixels are kept: at most that they are mirrored."""


class KeptImages(ImageBatches):
    """Batches of images with their pixels in a file under `directory`, which whoever comes first makes."""

    def __init__(self, images: ImageBatches, directory: Path):
        how = images.transform.augment
        assert how in FLIPPED, f"pixels under augment='{how}' differ from epoch to epoch; one of {FLIPPED} can be kept"
        super().__init__(images.transform, images.rows, images.labels, images.batch_size, images.shuffle, images.seed)
        self.directory = directory

    def epoch(self, number: int) -> Iterator[Batch]:
        kept_RHWC = self._kept()
        for places in self.plan(number):
            pixels = kept_RHWC[places]
            if self.transform.augment == "flip":
                for image, place in zip(pixels, places, strict=True):
                    if np.random.default_rng([self.seed, number, int(place)]).random() < 0.5:
                        image[:] = image[:, ::-1].copy()
            yield self._batch(places, pixels)

    def _kept(self) -> np.ndarray:
        """Pixels of all rows, (R, H, W, 3), read from the file as they are asked for."""
        plain = copy.copy(self.transform)
        plain.augment = "none"
        images = ImageBatches(plain, self.rows, None, 256)
        file = self.directory / f"{images.digest}.npy"
        if not file.is_file():
            self.directory.mkdir(parents=True, exist_ok=True)
            # Another process may be at the same file: each writes its own, and the last takes its place.
            draft = file.with_suffix(f".{os.getpid()}")
            pixels = np.lib.format.open_memmap(draft, "w+", np.uint8, (self.num_rows, plain.size, plain.size, 3))
            for places in images.plan(0):
                pixels[places] = images._pixels(places, self.rows.inputs(places), 0)
            pixels.flush()
            draft.replace(file)
        return np.load(file, mmap_mode="r")  # type: ignore[no-any-return]
