"""Shifted batches: what `batches_for` makes of a set, of the same set under a shift."""

from pathlib import Path
from typing import Any

from hydra_ensembles.data import ImageBatches, ImageTransform, Rows, TextBatches, batches_for
from hydra_ensembles.data.loading import Knowing
from hydra_ensembles.evaluation.shift.images import corrupted_images
from hydra_ensembles.evaluation.shift.names import ShiftError, parse_shift
from hydra_ensembles.evaluation.shift.texts import corrupted_texts


def shifted_batches(
    model: Knowing,
    rows: Rows,
    shift: str,
    cache: str | Path,
    *,
    shift_seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> ImageBatches | TextBatches:
    """Rows under a shift in the form that a model takes; labels are those of the clean set.

    Args:
        model: what says how its inputs are prepared, as for `batches_for`.
        rows: the clean ones, from `open_data`.
        shift: CORRUPTION/SEVERITY, as `gaussian_noise/3` or `word_swap/1`.
        cache: the directory that keeps corrupted images; texts are made as they are read.
        shift_seed: of whatever is random in the corruption.
        progress: a bar while images are made; None shows it on a terminal only.
        options: those of `batches_for`, but for `augment`.
    """
    corruption, severity = parse_shift(shift, rows.kind)
    if options.get("augment"):
        raise ShiftError(f"{shift} is for judging a model; augment={options['augment']!r} is for training one")
    clean = batches_for(model, rows, **options)
    if isinstance(clean, TextBatches):
        texts = corrupted_texts(rows, corruption, severity, shift_seed)
        return TextBatches(clean.tokenizer, texts, clean.labels, clean.batch_size, clean.shuffle, clean.seed)
    return of_cut_images(
        clean, corrupted_images(rows, corruption, severity, clean.transform, cache, shift_seed, progress)
    )


def of_cut_images(clean: ImageBatches, images: Rows) -> ImageBatches:
    """The clean batches with images that `cut_before` has prepared in place of their own."""
    transform = clean.transform
    if transform.first_size is None:
        # A crop of 100 % of images that have the model's size leaves them as they are.
        transform = ImageTransform({**transform.settings, "crop_pct": 1.0})
    return ImageBatches(transform, images, clean.labels, clean.batch_size, clean.shuffle, clean.seed, clean.workers)
