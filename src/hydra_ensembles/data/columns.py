"""Columns: which of a table's columns are inputs, labels and class names, guessed from names that are common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydra_ensembles.data.batches import DataError

_IMAGES = ("image", "img", "images", "x")
_PATHS = ("image", "img", "image_path", "file_name")  # of images, where they are written as text
_TEXTS = ("text", "texts", "sentence", "content", "review", "document", "question")
_PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text1", "text2"), ("question1", "question2")),
    *(("question", "sentence"), ("question", "passage")),
)
LABELS = ("label", "labels", "fine_label", "target", "targets", "y", "class", "category")
_CLASS_NAMES = ("class", "class_name", "label_name", "label_text", "category")


@dataclass(frozen=True)
class Columns:
    """What the columns are for; a text may be a pair of columns."""

    kind: str  # "image" or "text"
    inputs: tuple[str, ...]
    label: str | None
    names: str | None


def choose_columns(
    where: str,
    found: Mapping[str, str],
    image: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | bool | None = None,
) -> Columns:
    """The columns that the caller names, and for those he does not name, the ones that look like it."""
    named = [
        name for name in (image, *([text] if isinstance(text, str) else text or []), label) if isinstance(name, str)
    ]
    for name in named:
        if name not in found:
            raise DataError(f"{where} has no column '{name}'; it has {_listed(found)}")
    if image is not None and text is not None:
        raise DataError(f"images or texts of {where}, not both: image='{image}' and text={text!r} were given")
    labels = _label(found, label)
    kind, inputs = _inputs(where, {name: kind for name, kind in found.items() if name != labels}, image, text)
    names = next((name for name in _CLASS_NAMES if name in found and name not in (labels, *inputs)), None)
    return Columns(kind, inputs, labels, names)


def _inputs(
    where: str, found: Mapping[str, str], image: str | None, text: str | Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    if image is not None:
        return "image", (image,)
    if text is not None:
        return "text", (text,) if isinstance(text, str) else tuple(text)
    pictures = [name for name, kind in found.items() if kind == "image"]
    texts = [name for name, kind in found.items() if kind == "text" and name not in _CLASS_NAMES]
    if pictures:
        usual = [name for name in _IMAGES if name in pictures]
        if len(pictures) > 1 and not usual:
            raise DataError(f"{where} has several columns of images ({', '.join(pictures)}); name one with image=")
        return "image", ((usual or pictures)[0],)
    for candidates in (_PATHS, *_PAIRS, _TEXTS):
        there = tuple(name for name in candidates if name in texts)
        if candidates in _PAIRS and len(there) == 2:
            return "text", there
        if candidates is _TEXTS and len(there) > 1 and "text" not in there:
            raise DataError(f"{where} has several columns of texts ({', '.join(there)}); name one with text=")
        if candidates not in _PAIRS and there:
            return "image" if candidates is _PATHS else "text", there[:1]
    if len(texts) == 1:
        return ("image" if texts[0] == "path" else "text"), (texts[0],)
    hint = "; arrays of images are of uint8 (rows, height, width, 1 or 3)" if where.endswith(".npz") else ""
    raise DataError(f"{where}: which column is the input? name it with image= or text=; it has {_listed(found)}{hint}")


def _label(found: Mapping[str, str], label: str | bool | None) -> str | None:
    if label is False:
        return None
    if isinstance(label, str):
        return label
    usual = [name for name in LABELS if found.get(name) in ("number", "text")]
    # A first row whose label is null says nothing of the others'; that there are rows without is then told.
    return next(iter(usual or (name for name in LABELS if found.get(name) == "other")), None)


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' ({kind})" for name, kind in found.items()) or "no columns"
