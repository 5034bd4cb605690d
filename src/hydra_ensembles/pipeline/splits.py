"""Splits: the data sets of a recipe by what they may be used for. A stage can open those alone that it declares."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data import Batches, DataError, Rows, batches_for, open_data
from hydra_ensembles.data.folders import walk
from hydra_ensembles.data.opening import split_range
from hydra_ensembles.errors import HydraError
from hydra_ensembles.pipeline.recipe import DataSection
from hydra_ensembles.store import json_digest, whole

CHOOSING = ("train", "id_val", "ood_val", "id_cal")
"""What may be used to train, to choose and to fit; every other split is a test."""


class SplitError(HydraError):
    """A stage that asks for data it must not see."""


def is_test(split: str) -> bool:
    """Is a split for evaluation alone?"""
    return split not in CHOOSING


@dataclass(frozen=True)
class Splits:
    """The data of a recipe; `only` gives a stage its own view."""

    data: DataSection
    memory: Path
    """A file that remembers hashes and class names of files that have not changed since."""
    allowed: frozenset[str] | None = None
    known: tuple[str, ...] = ()
    """The classes of the model, where it names them: they number those of the data."""
    seen: dict[str, Any] = field(default_factory=dict, compare=False)
    """What has been read once is not read again for this view, nor for those made of it."""

    def only(self, *names: str) -> "Splits":
        """The same data, but no other splits than these."""
        return Splits(self.data, self.memory, frozenset(names), self.known, self.seen)

    @property
    def references(self) -> dict[str, str]:
        """Every split that the recipe names: `train`, `id_val`, ..., `near/NAME`, `far/NAME`."""
        data = self.data
        named = {name: getattr(data, name) for name in (*CHOOSING, "id_test")}
        groups = {
            f"{group}/{name}": reference
            for group in ("near", "far")
            for name, reference in getattr(data, group).items()
        }
        return {name: reference for name, reference in (named | groups).items() if reference is not None}

    def rows(self, name: str) -> Rows:
        """The rows of a split; where labels are names, all splits number them alike."""
        rows = open_data(self._reference(name), **self._columns(name))
        if _has_labels(name) and self.classes is not None and rows.labels is not None and not rows.labels_were_names:
            raise DataError(
                f"{rows.where} has numbers as labels, where data.{self._naming} has names; give it names too"
            )
        return rows

    @property
    def _naming(self) -> str:
        return "train" if self.data.train is not None else "id_val"

    @cached_property
    def classes(self) -> list[str] | None:
        """The names of the classes in the order of their numbers, where the labels of the training data are names.

        The model's own, where it knows all of them.
        """
        reference, options = self.references[self._naming], self._options(self._naming)
        about = ["classes", reference, options, _stamp(expand(reference))]
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        known = self.seen if key in self.seen else _read(self.memory)
        if key not in known or (about[-1] is None and known is not self.seen):
            named = open_data(reference, **options)
            known[key] = named.classes if named.labels is not None and named.labels_were_names else None
            if about[-1] is not None:
                _write(self.memory, known)
        self.seen[key] = known[key]
        found: list[str] | None = known[key]
        return list(self.known) if found is not None and set(found) <= set(self.known) else found

    def batches(self, name: str, model: nn.Module, rows: Rows | None = None, **options: Any) -> Batches:
        """A split as a model takes it; unknown inputs go without labels."""
        data = self.data
        prepared = {"max_tokens": data.max_tokens, "first_size": data.first_size, "batch_size": data.batch_size}
        given = {key: value for key, value in (prepared | options).items() if value is not None}
        return batches_for(model, rows or self.rows(name), labels=_has_labels(name), **given)

    def digest(self, name: str) -> str:
        """A hash of a split's content and of how it is prepared; files that have not changed are not read again.

        The names of classes are part of it: where a model names its own, they say which label is which.
        """
        reference = self._reference(name)
        about = [reference, self._columns(name), _stamp(expand(reference))]
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        known = _read(self.memory)
        content = self.seen.get(key, None if about[-1] is None else known.get(key))
        if content is None:
            rows = self.rows(name)
            content = [rows.digest, rows.classes]
            # Images elsewhere may change while the file that names them does not.
            if about[-1] is not None and not rows.names_files:
                _write(self.memory, known | {key: content})
        self.seen[key] = content
        prepared = [content, self.data.max_tokens, self.data.first_size, self.data.batch_size]
        return json_digest(prepared)

    def _reference(self, name: str) -> str:
        if self.allowed is not None and name not in self.allowed:
            raise SplitError(
                f"this stage may not read '{name}'; it declares {', '.join(sorted(self.allowed)) or 'none'}"
            )
        if name not in self.references:
            raise SplitError(f"the recipe names no '{name}'; it names {', '.join(self.references)}")
        return self.references[name]

    def _columns(self, name: str) -> dict[str, Any]:
        named = _has_labels(name) and name != self._naming and self.classes is not None
        return self._options(name) | ({"classes": self.classes} if named else {})

    def _options(self, name: str) -> dict[str, Any]:
        data = self.data
        named = {"text": data.text, "image": data.image, "label": data.label if _has_labels(name) else False}
        return {key: value for key, value in named.items() if value is not None}


def _has_labels(name: str) -> bool:
    return name != "ood_val" and not name.startswith(("near/", "far/"))


def _stamp(reference: str) -> list[list[Any]] | None:
    """Names, sizes and times of the files behind a reference; None where they are not simply files."""
    path = Path(split_range(reference)[0])
    if path.is_file():
        files = [path]
    elif path.is_dir():
        found = (Path(parent, name) for parent, _, names in walk(path) for name in names)
        files = sorted(file for file in found if file.is_file())
    else:
        return None
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def files_digest(files: list[Path], memory: Path) -> str:
    """A hash of whole files, remembered likewise."""
    stamps = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    key = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()
    known = _read(memory)
    if key not in known:
        hasher = hashlib.sha256()
        for file in files:
            hasher.update(file.name.encode())
            with file.open("rb") as opened:
                hasher.update(hashlib.file_digest(opened, "sha256").digest())
        known[key] = hasher.hexdigest()[:16]
        _write(memory, known)
    return str(known[key])


def _write(memory: Path, known: dict[str, Any]) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    with whole(memory) as draft:
        draft.write_text(json.dumps(known, indent=1) + "\n")


def _read(memory: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(memory.read_text()))
    except (OSError, ValueError):
        return {}
