"""Inputs worth looking at: those the model is least sure of, and those it is surest of and wrong."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hydra_ensembles.data import DataError, Rows, open_data
from hydra_ensembles.data.images import decoded
from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation import Evaluation
from hydra_ensembles.evaluation.protocol import GROUPS, ID_TEST
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.words import percent

NUMBER = 6
UNKNOWN_NUMBER = 3
LETTERS = 200
PIXELS = 96


@dataclass(frozen=True)
class Example:
    """One input as it can be shown: a text, or a small picture as data URI."""

    said: str
    """What the model made of it."""
    alt: str
    """What the picture is, for those who do not see it."""
    text: str = ""
    picture: str = ""


@dataclass(frozen=True)
class Examples:
    """Inputs of one kind."""

    title: str
    about: str
    examples: Sequence[Example]


def examples_of(run: Run) -> list[Examples]:
    """Inputs of the run's subject, read again from where the recipe found them."""
    evaluation = run.evaluations[run.subject]
    data = run.recipe["data"]
    known = _rows(run, evaluation, ID_TEST, data["id_test"])
    names = run.classes or known.classes
    rows = evaluation.judged[ID_TEST]
    assert rows.right is not None
    order = rows.scores[evaluation.score].argsort(descending=True).tolist()
    wrong = [place for place in rows.confidence.argsort(descending=True).tolist() if not rows.right[place]]
    found = [
        Examples(
            "Most confidently wrong",
            "Known inputs with a wrong answer, the surest first: here its confidence misleads, or the label is wrong.",
            _shown(evaluation, ID_TEST, known, wrong[:NUMBER], names),
        ),
        Examples(
            "Least sure",
            "Known inputs that look strangest to it, whether the answer is right or not.",
            _shown(evaluation, ID_TEST, known, order[:NUMBER], names),
        ),
    ]
    for group in GROUPS:
        for name in evaluation.groups.get(group, ()):
            sure = evaluation.judged[name].scores[evaluation.score].argsort().tolist()
            opened = _rows(run, evaluation, name, data[group][name])
            found.append(
                Examples(
                    f"Unknown inputs from {name} taken for known",
                    "It cannot know these, and looks surest about them.",
                    _shown(evaluation, name, opened, sure[:UNKNOWN_NUMBER], names),
                )
            )
    return [one for one in found if one.examples]


def thumbnail(picture: Any, pixels: int = PIXELS) -> str:
    """An image as a data URI of WebP, its longer side at most `pixels` long; small ones are not enlarged."""
    image = decoded(picture)
    image.thumbnail((pixels, pixels))
    buffer = io.BytesIO()
    image.save(buffer, format="WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def cut(text: str, letters: int = LETTERS) -> str:
    """The beginning of a text, in one line.

    >>> cut("so much to say", letters=7)
    'so much …'
    """
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[:letters].rstrip()} …"


def _rows(run: Run, evaluation: Evaluation, name: str, reference: str) -> Rows:
    """The rows of a set, checked to be those that were judged."""
    data: Mapping[str, Any] = run.recipe["data"]
    has_labels = name == ID_TEST
    options = {
        "text": data.get("text"),
        "image": data.get("image"),
        "label": data.get("label") if has_labels else False,
    }
    with _without_paths(name):
        rows = _open(reference, options)
        # As the run numbered them: by the names of its training data, whatever order the model has them in.
        names = run.results.get("classes", run.classes)
        if has_labels and rows.labels_were_names and names:
            rows = _open(reference, options | {"classes": names})
        changed = rows.digest != evaluation.digests.get(name)
    if len(rows) != len(evaluation.judged[name]) or changed:
        raise DataError(f"the inputs of '{name}' have changed since they were judged; run the recipe again")
    return rows


def _open(reference: str, options: Mapping[str, Any]) -> Rows:
    return open_data(reference, **{key: value for key, value in options.items() if value is not None})


def _shown(
    evaluation: Evaluation, name: str, rows: Rows, places: Sequence[int], names: Sequence[str] | None
) -> list[Example]:
    found = []
    with _without_paths(name):
        for place, row in zip(places, rows.read(places) if places else [], strict=True):
            said = _said(evaluation, name, place, names)
            alt = f"Input {place} of {name}; {said}"
            if rows.kind == "image":
                found.append(Example(said, alt, picture=thumbnail(row.input)))
            else:
                text = row.input if isinstance(row.input, str) else " | ".join(row.input)
                found.append(Example(said, alt, text=cut(text)))
    return found


@contextmanager
def _without_paths(name: str) -> Iterator[None]:
    """What cannot be read is told without where it would lie: the page may go to others."""
    try:
        yield
    except (HydraError, OSError) as error:
        raise DataError(f"the inputs of '{name}' cannot be read here") from error


def _said(evaluation: Evaluation, name: str, place: int, names: Sequence[str] | None) -> str:
    rows = evaluation.judged[name]
    sure = percent(float(rows.confidence[place]), 0)
    answer, label = (getattr(rows, column, None) for column in ("answer", "label"))
    told = f"says {_class(int(answer[place]), names)}, {sure} sure" if answer is not None else f"{sure} sure"
    if rows.right is None:
        return told
    if rows.right[place]:
        return f"{told}: right"
    return f"{told}; it is {_class(int(label[place]), names)}" if label is not None else f"{told}: wrong"


def _class(number: int, names: Sequence[str] | None) -> str:
    return names[number].replace("_", " ") if names and number < len(names) else f"class {number}"
