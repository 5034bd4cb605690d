"""A few inputs in hand, as a model takes them: for a notebook, a script, another library. Files have `open_data`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.data.batches import DataError
from hydra_ensembles.data.images import ImageTransform, as_rgb
from hydra_ensembles.data.loading import Knowing, preprocess_of
from hydra_ensembles.data.rows import Picture
from hydra_ensembles.data.texts import Tokenizer
from hydra_ensembles.errors import in_one_line


def prepare(model: Knowing, inputs: Sequence[Any] | np.ndarray, max_tokens: int | None = None) -> Inputs:
    """One batch of what `model` takes.

    Args:
        model: what says how its inputs are prepared: a model, a member, a hydra, or that preprocessing itself.
        inputs: texts or pairs of texts; or images as paths, as encoded bytes, as Pillow images or as pixels of uint8
            (height, width, 3).
        max_tokens: cut texts shorter than the model itself would.
    """
    preprocess = preprocess_of(model)
    if isinstance(inputs, str | bytes | Path) or not len(inputs):
        raise DataError("expected several inputs in a list; for one input give a list of one")
    if preprocess.get("kind", "image" if "mean" in preprocess else "text") == "text":
        strange = next((one for one in inputs if not isinstance(one, str | tuple)), None)
        if strange is not None:
            raise DataError(f"the model takes texts, found {type(strange).__name__}")
        return Tokenizer(preprocess, max_tokens)(list(inputs))
    transform = ImageTransform(preprocess)
    return transform.normalised(np.stack([_pixels(transform, one, place) for place, one in enumerate(inputs)]))


def _pixels(transform: ImageTransform, given: Any, place: int) -> np.ndarray:
    try:
        return transform(_picture(given))
    except DataError:
        raise
    except Exception as error:
        # Whatever the disk and Pillow make of it.
        raise DataError(f"input {place} is not a readable image: {in_one_line(error)}") from None


def _picture(given: Any) -> Picture:
    if isinstance(given, str | Path):
        return Path(given).expanduser().read_bytes()
    if isinstance(given, bytes):
        return given
    if hasattr(given, "convert"):  # Pillow's
        return np.asarray(as_rgb(given))
    pixels = np.asarray(given)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] not in (1, 3):
        raise DataError(
            f"the model takes images: paths, encoded bytes, Pillow images or pixels of uint8 (height, width, 3); found "
            f"{type(given).__name__} of {pixels.dtype} {pixels.shape}"
        )
    return pixels
