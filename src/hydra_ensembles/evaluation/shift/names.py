"""Names of shifts: a corruption and its severity, `gaussian_noise/3`; and the seed of a row under one of them."""

import hashlib

from hydra_ensembles.errors import HydraError

SEVERITIES = (1, 2, 3, 4, 5)
IMAGE_CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""ImageNet-C's fifteen, by its names and in its order."""
TEXT_CORRUPTIONS = (
    "character_swap",
    "character_delete",
    "character_insert",
    "character_replace",
    "word_swap",
    "word_delete",
    "word_repeat",
)

_OF_KIND = {"image": IMAGE_CORRUPTIONS, "text": TEXT_CORRUPTIONS}


class ShiftError(HydraError):
    """A shift that is not known, or cannot be made."""


def parse_shift(name: str, kind: str | None = None) -> tuple[str, int]:
    """The corruption and the severity that a name stands for; `kind` ("image", "text") allows only its own.

    >>> parse_shift("gaussian_noise/3")
    ('gaussian_noise', 3)
    """
    corruption, slash, severity = name.partition("/")
    if not slash:
        raise ShiftError(f"shift '{name}' has no severity; a shift is written CORRUPTION/SEVERITY, as {_example(kind)}")
    level = int(severity) if severity in map(str, SEVERITIES) else severity
    check_shift(corruption, level, kind)
    return corruption, int(level)


def check_shift(corruption: str, severity: object, kind: str | None) -> None:
    """Refuse a corruption that this kind of data does not have, and a severity that there is not."""
    known = _OF_KIND[kind] if kind else (*IMAGE_CORRUPTIONS, *TEXT_CORRUPTIONS)
    if corruption not in known:
        of = f" for {kind}s" if kind else ""
        raise ShiftError(f"corruption '{corruption}' is not known{of}; it is one of {', '.join(known)}")
    if severity not in SEVERITIES:
        raise ShiftError(
            f"severity {severity} of {corruption} is not known; it is one of {', '.join(map(str, SEVERITIES))}"
        )


def seed_of(*parts: object) -> int:
    """A number from 0 to 2^63 - 1 that depends on the parts alone: on seed, row, corruption, ..."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little") >> 1


def _example(kind: str | None) -> str:
    return f"{_OF_KIND[kind or 'image'][0]}/3"
