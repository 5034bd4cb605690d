"""Images: decoded, resized and cut with Pillow as the model's own preprocessing says, normalised with torch.

To the bit what timm's and torchvision's evaluation transforms make of an image. Shapes: B batch, H height, W width.
"""

import io
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.data.batches import Batch, DataError
from hydra_ensembles.data.order import batches_of, shuffled_order
from hydra_ensembles.data.row_batches import RowBatches
from hydra_ensembles.data.rows import Picture, Rows
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import import_extra

AUGMENTATIONS = ("none", "flip", "crop", "resized-crop")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
"""Of image files. Others of Pillow's are not tried: bytes of EPS, say, would be handed to another program."""
_PADDING = 8  # an eighth of the size, as 4 of 32 pixels are for CIFAR
_SCALE, _RATIO = (0.35, 1.0), (3 / 4, 4 / 3)


def as_rgb(image: Any) -> Any:
    """A Pillow image with 8 bits a channel. Pillow itself would cut off what 16 bits hold beyond 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        pixels = np.asarray(image).astype(np.float64) / 257
        image = import_extra("PIL.Image", "data", "reading images").fromarray(pixels.round().astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"an image of 32 bits a pixel (Pillow's mode {image.mode}); make it one of 8 bits a channel")
    return image.convert("RGB")


def decoded(picture: Picture) -> Any:
    """Pixels, or the bytes of an image file, as a Pillow image in RGB."""
    pil = import_extra("PIL.Image", "data", "reading images")
    if isinstance(picture, np.ndarray):
        return as_rgb(pil.fromarray(picture[..., 0] if picture.ndim == 3 and picture.shape[-1] == 1 else picture))
    return as_rgb(pil.open(io.BytesIO(picture), formats=FORMATS))


class ImageTransform:
    """From an image in any form to pixels (size, size, 3) of uint8; `normalised` makes them what the model takes.

    Args:
        preprocess: the model's own, see `hydra_ensembles.backbones.preprocessing`.
        first_size: bring every image to this size first, as OpenOOD does (short side, bilinear, then the middle), so
            that sets of different resolution cannot be told apart by it.
        augment: in training, "flip" (left-right), "crop" (flip, and shift within a border of an eighth),
            "resized-crop" (flip, and a random part of 35 to 100 % of the image).
    """

    def __init__(self, preprocess: Mapping[str, Any], first_size: int | None = None, augment: str = "none"):
        missing = [field for field in ("size", "interpolation", "mean", "std") if preprocess.get(field) is None]
        if missing:
            raise DataError(f"the preprocessing of images lacks '{missing[0]}'; it has {', '.join(sorted(preprocess))}")
        if augment not in AUGMENTATIONS:
            raise DataError(f"augment='{augment}' is not known; it is one of {', '.join(AUGMENTATIONS)}")
        self.size, self.first_size, self.augment = preprocess["size"], first_size, augment
        self.crop_mode = preprocess.get("crop_mode") or "center"
        if self.crop_mode not in ("center", "squash") or not isinstance(self.size, int):
            raise DataError(
                f"the model asks for size {self.size} and crop_mode '{self.crop_mode}'; "
                "square images, 'center' or 'squash' are known"
            )
        self.scaled_size = math.floor(self.size / (preprocess.get("crop_pct") or 1.0))
        self.interpolation = str(preprocess["interpolation"])
        self.resample = self._resampling(self.interpolation)
        self.mean, self.std = list(preprocess["mean"]), list(preprocess["std"])

    @property
    def pil(self) -> Any:
        return import_extra("PIL.Image", "data", "reading images")  # not kept: a module cannot be sent to a process

    @property
    def settings(self) -> dict[str, Any]:
        fields = ("size", "scaled_size", "crop_mode", "interpolation", "mean", "std", "first_size", "augment")
        return {field: getattr(self, field) for field in fields}

    def __call__(self, picture: Picture, chance: np.random.Generator | None = None) -> np.ndarray:
        """Pixels of one image; `chance` is for training, where the transform has something random."""
        image = self.decoded(picture)
        if self.first_size is not None:
            image = self._fitted(image, self.first_size, self.first_size, "center", self.pil.Resampling.BILINEAR)
        if chance is None or self.augment == "none":
            return np.asarray(self._fitted(image, self.scaled_size, self.size, self.crop_mode, self.resample))
        if self.augment == "resized-crop":
            pixels = np.asarray(image.resize((self.size, self.size), self.resample, box=_some_box(image.size, chance)))
        else:
            pixels = np.asarray(self._fitted(image, self.scaled_size, self.size, self.crop_mode, self.resample))
        if self.augment == "crop":
            pixels = _shifted(pixels, chance)
        return pixels[:, ::-1] if chance.random() < 0.5 else pixels

    def decoded(self, picture: Picture) -> Any:
        """A Pillow image in RGB."""
        return decoded(picture)

    def normalised(self, pixels_BHWC: np.ndarray) -> Tensor:
        """What the model takes, `(B, 3, H, W)`."""
        x = torch.from_numpy(np.ascontiguousarray(pixels_BHWC.transpose(0, 3, 1, 2))).float().div_(255)
        mean, std = (torch.tensor(of).view(1, -1, 1, 1) for of in (self.mean, self.std))
        return x.sub_(mean).div_(std)

    def _fitted(self, image: Any, scaled: int, size: int, crop_mode: str, resample: Any) -> Any:
        width, height = image.size
        if crop_mode == "squash":
            target = (scaled, scaled)
        elif width <= height:
            target = (scaled, int(scaled * height / width))
        else:
            target = (int(scaled * width / height), scaled)
        if image.size != target:
            image = image.resize(target, resample)
        if image.size == (size, size):
            return image
        # As torchvision rounds: half to even.
        left, top = round((image.width - size) / 2.0), round((image.height - size) / 2.0)
        return image.crop((left, top, left + size, top + size))

    def _resampling(self, interpolation: str) -> Any:
        known = {resampling.name.lower(): resampling for resampling in self.pil.Resampling}
        if interpolation not in known:
            raise DataError(f"interpolation '{interpolation}' is not known; it is one of {', '.join(known)}")
        return known[interpolation]


class ImageBatches(RowBatches):
    """Images in batches; decoded when their batch is near, by a few threads (Pillow works outside Python's lock)."""

    def __init__(
        self,
        transform: ImageTransform,
        rows: Rows,
        labels: Tensor | None,
        batch_size: int = 64,
        shuffle: bool = False,
        seed: int = 0,
        workers: int | None = None,
    ):
        super().__init__(rows, labels, batch_size, shuffle, seed)
        self.transform = transform
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers

    @property
    def settings(self) -> dict[str, Any]:
        return self.transform.settings

    def plan(self, epoch: int) -> list[np.ndarray]:
        order = shuffled_order(self.rows, self.seed, epoch) if self.shuffle else np.arange(self.num_rows)
        return batches_of(order, self.batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        if self.workers < 1:
            for places in self.plan(number):
                yield self._batch(places, self._pixels(places, self.rows.inputs(places), number))
            return
        pool = ThreadPoolExecutor(self.workers, "images")
        ahead: deque[tuple[np.ndarray, Future[np.ndarray]]] = deque()
        try:
            for places in self.plan(number):
                ahead.append((places, pool.submit(self._pixels, places, self.rows.inputs(places), number)))
                if len(ahead) > self.workers:
                    first, pixels = ahead.popleft()
                    yield self._batch(first, pixels.result())
            for first, pixels in ahead:
                yield self._batch(first, pixels.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _pixels(self, places: np.ndarray, pictures: list[Picture], epoch: int) -> np.ndarray:
        pixels = np.empty((len(places), self.transform.size, self.transform.size, 3), dtype=np.uint8)
        for into, place, picture in zip(pixels, places, pictures, strict=True):
            chance = None
            if self.transform.augment != "none":
                chance = np.random.default_rng([self.seed, epoch, int(place)])
            try:
                into[:] = self.transform(picture, chance)
            except Exception as error:
                # Whatever Pillow makes of damaged bytes.
                told = re.sub(r" <_io.BytesIO.*?>", "", in_one_line(error))
                raise DataError(f"{self.rows.called(int(place))}: not a readable image: {told}") from None
        return pixels

    def _batch(self, places: np.ndarray, pixels: np.ndarray) -> Batch:
        return Batch(self.transform.normalised(pixels), self.labels_at(places))


def _shifted(pixels: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """The image moved by up to an eighth of its size each way, black where it was."""
    size = len(pixels)
    border = max(1, size // _PADDING)
    down, right = (int(by) for by in chance.integers(-border, border + 1, size=2))
    shifted = np.zeros_like(pixels)
    shifted[max(0, down) : size + min(0, down), max(0, right) : size + min(0, right)] = pixels[
        max(0, -down) : size + min(0, -down), max(0, -right) : size + min(0, -right)
    ]
    return shifted


def _some_box(size: tuple[int, int], chance: np.random.Generator) -> tuple[float, float, float, float]:
    """A random part of an image, as torchvision's RandomResizedCrop chooses it; after ten attempts, all of it."""
    width, height = size
    for _ in range(10):
        area = width * height * chance.uniform(*_SCALE)
        ratio = math.exp(chance.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = chance.integers(0, width - wide + 1), chance.integers(0, height - high + 1)
            return float(left), float(top), float(left + wide), float(top + high)
    return 0.0, 0.0, float(width), float(height)
