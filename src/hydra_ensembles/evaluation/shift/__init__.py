"""Shift: what a model knows, made harder to see or to read, in five steps. `gaussian_noise/3`, `character_swap/1`."""

from hydra_ensembles.evaluation.shift.batches import shifted_batches
from hydra_ensembles.evaluation.shift.images import corrupted_images
from hydra_ensembles.evaluation.shift.names import (
    IMAGE_CORRUPTIONS,
    SEVERITIES,
    TEXT_CORRUPTIONS,
    ShiftError,
    parse_shift,
)
from hydra_ensembles.evaluation.shift.texts import corrupted_text, corrupted_texts

__all__ = [
    "IMAGE_CORRUPTIONS",
    "SEVERITIES",
    "TEXT_CORRUPTIONS",
    "ShiftError",
    "corrupted_images",
    "corrupted_text",
    "corrupted_texts",
    "parse_shift",
    "shifted_batches",
]
