"""What a model wants done to an image or a text before it sees it, as JSON: `preprocess` in config.json.

    {"kind": "image", "size": 224, "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
     "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    {"kind": "text", "tokenizer": "the text of a tokenizer.json", "max_tokens": 128, "pad_id": 0, "token_types": true}

The tokeniser's own JSON is part of it, so that a saved member or hydra needs nothing but its directory.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.optional import import_extra

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]

# Pillow's numbers, which image processors of transformers store.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
# Whose processors take a bare number, as older files have it, for the shorter side; all others for both.
_OF_SHORTER_SIDE = ("CLIP", "Bit")
_CONVNEXT_CUTS_BELOW = 384
_VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")
_UNLIMITED = 10**6  # tokenizer_config.json says 1e30 where it means that it does not know


class PreprocessError(HydraError):
    """Preprocessing files that cannot be read."""


def transformers_preprocess(directory: Path, config: Any) -> dict[str, Any] | None:
    """What the files beside a transformers model say; None where they say nothing."""
    if hasattr(config, "patch_size") or hasattr(config, "vision_config"):
        return _image_preprocess(directory)
    return text_preprocess(
        directory,
        max_positions=_max_positions(config),
        pad_id=getattr(config, "pad_token_id", None),
        token_types=getattr(config, "type_vocab_size", 0) > 1,
    )


def image_preprocess(
    size: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    crop_pct: float = 1.0,
    crop_mode: str = "center",
) -> dict[str, Any]:
    """Resize to `size / crop_pct`, then cut out the middle.

    Args:
        size: height and width that the model takes.
        mean: of each colour, for pixels from 0 to 1.
        std: of each colour.
        interpolation: Pillow's name of it in lower case.
        crop_pct: how much of the resized image is left.
        crop_mode: "center" resizes the shorter side and "squash" both; "border" is written down but not carried out.
    """
    height, width = size
    return {
        "kind": "image",
        "size": height if height == width else [height, width],
        "interpolation": interpolation,
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
        "mean": list(mean),
        "std": list(std),
    }


def text_preprocess(
    directory: str | Path,
    max_positions: int | None = None,
    pad_id: int | None = None,
    token_types: bool = False,
) -> dict[str, Any] | None:
    """By a directory's tokeniser: its `tokenizer.json`, or files that transformers converts; None without either."""
    directory = Path(directory)
    tokenizer = _tokenizer_json(directory)
    if tokenizer is None:
        return None
    padding, truncation = tokenizer.get("padding") or {}, tokenizer.get("truncation") or {}
    limits = [
        truncation.get("max_length"),
        max_positions,
        _json(directory / "tokenizer_config.json").get("model_max_length"),
    ]
    known = [int(limit) for limit in limits if limit and limit < _UNLIMITED]
    return {
        "kind": "text",
        "tokenizer": json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")),
        "max_tokens": min(known) if known else 512,
        "pad_id": int(padding.get("pad_id", 0) if pad_id is None else pad_id),
        "token_types": token_types,
    }


def _max_positions(config: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return None
    # These count positions from behind the padding id; their configs know no better way to say so.
    is_behind_padding = any(name in str(config.model_type) for name in ("roberta", "camembert", "data2vec-text"))
    reserved = config.pad_token_id + 1 if is_behind_padding else 0
    return int(positions) - reserved


def _tokenizer_json(directory: Path) -> dict[str, Any] | None:
    if (directory / "tokenizer.json").is_file():
        return _json(directory / "tokenizer.json")
    if not any((directory / name).is_file() for name in _VOCABULARIES):
        return None
    transformers = import_extra("transformers", "text", "converting a tokeniser")
    try:
        fast = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return json.loads(fast.backend_tokenizer.to_str())  # type: ignore[no-any-return]
    except Exception as error:
        # Whatever transformers makes of files it does not like.
        raise PreprocessError(
            f"the tokeniser in {directory} cannot be converted to a tokenizer.json: {in_one_line(error)}"
        ) from error


def _image_preprocess(directory: Path) -> dict[str, Any] | None:
    # A whole processor of transformers 5 is one file, with the image's inside.
    settings = _json(directory / "preprocessor_config.json")
    settings = settings or _json(directory / "processor_config.json").get("image_processor") or {}
    if not settings:
        return None
    size, crop = settings.get("size", 224), settings.get("crop_size", settings.get("size", 224))
    kind = str(settings.get("image_processor_type") or settings.get("feature_extractor_type"))
    if not isinstance(size, dict) and any(name in kind for name in _OF_SHORTER_SIDE):
        size = {"shortest_edge": size}
    cropped = bool(settings.get("do_center_crop"))
    keeps_shape = cropped and isinstance(size, dict) and "shortest_edge" in size
    height, width = _sides(crop if cropped else size)
    crop_pct = height / _sides(size)[0] if cropped else 1.0
    if "ConvNext" in kind:  # it cuts small images only, after a resize that is said otherwise
        keeps_shape = height < _CONVNEXT_CUTS_BELOW
        crop_pct = float(settings.get("crop_pct", 224 / 256)) if keeps_shape else 1.0
    mean, std = _mean_and_std(settings)
    interpolation = _INTERPOLATIONS[settings.get("resample", 2)]
    crop_mode = "center" if keeps_shape else "squash"
    return image_preprocess((height, width), mean, std, interpolation, crop_pct, crop_mode)


def _mean_and_std(settings: dict[str, Any]) -> tuple[list[float], list[float]]:
    """For pixels from 0 to 1, of a processor that scales pixels from 0 to 255 by a factor of its own, or not at all."""
    factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    normalised = settings.get("do_normalize", True)
    mean = settings.get("image_mean", [0.5] * 3) if normalised else [0.0] * 3
    std = settings.get("image_std", [0.5] * 3) if normalised else [1.0] * 3
    scale = round(255 * factor, 9)
    return [value / scale for value in mean], [value / scale for value in std]


def _sides(size: Any) -> tuple[int, int]:
    """Height and width of what image processors call a size."""
    if not isinstance(size, dict):
        return int(size), int(size)
    if "shortest_edge" in size:
        return int(size["shortest_edge"]), int(size["shortest_edge"])
    return int(size["height"]), int(size["width"])


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PreprocessError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise PreprocessError(f"{path} holds a {type(content).__name__}, expected an object")
    return content
