"""A task for two-tower models: columns of known sets with their classes, and what heads are chosen on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path

from torch import nn

from evidence.asking import KNOWN_VAL
from hydra_ensembles import ZeroShotClassifier
from hydra_ensembles.backbones.references import files_of, load_model, tokenizer_of
from hydra_ensembles.data import Batches, Rows, batches_for, open_data, preprocess_of
from hydra_ensembles.store import json_digest

TEMPLATES = ("a photo of a {}.",)
BATCH, SEARCH_BATCH = 64, 32


@dataclass(frozen=True)
class Column:
    """A known test set with its classes, and the unknown sets that it is told from; sets are references by name."""

    known: str
    reference: str
    validation: str | None
    """Known rows with labels that are no test rows, for the error predictor, which is trained on each column."""
    near: Mapping[str, str] = field(default_factory=dict)
    far: Mapping[str, str] = field(default_factory=dict)
    first_size: int | None = None
    """All images are brought to this size first."""
    first_row: int = 0
    """Rows of the known set before this one are no test rows."""
    most_unknown: int | None = None
    """Images of an unknown set; of more, a random sample. None: as many as of any set."""

    @property
    def unknown(self) -> dict[str, str]:
        return {**self.near, **self.far}

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        return {"near": tuple(self.near), "far": tuple(self.far), "apart": ()}


@dataclass(frozen=True)
class Sizes:
    """How many rows of everything; of more, a random sample."""

    searched: int
    """Known images of a search, and as many unknown ones."""
    calibration: int
    """Training images for Taylor scores and for the curvature of last layers."""
    fitted: int
    """Known validation images."""
    most: int
    """Images of a test set."""
    removed_share: float = 0.1
    """Of all heads: 11 of 108, and in the paper 24 of 240."""


@dataclass(frozen=True)
class Task:
    """Everything that the methods have in common."""

    columns: Mapping[str, Column]
    asked: Mapping[str, tuple[str, ...]]
    """Columns whose images are prepared alike are asked about together, with the classes of all; cut apart later."""
    first: str
    """The column that heads are chosen and a temperature is fitted with."""
    train: str
    known_val: str
    unknown_val: str
    sizes: Sizes
    more: int = 0
    """Heads that a ranking removes beyond those that members lose (the paper's "-6 heads")."""

    def sets_of(self, model: nn.Module, columns: Sequence[str]) -> dict[str, Batches]:
        """Every set that columns ask about, by name; known ones with labels, numbered as in their files."""
        known = {self.columns[one].known: self.columns[one].reference for one in columns}
        sets = known | {name: where for one in columns for name, where in self.columns[one].unknown.items()}
        first_size, most_unknown = self.columns[columns[0]].first_size, self.columns[columns[0]].most_unknown
        most = {name: self.sizes.most if name in known else most_unknown or self.sizes.most for name in sets}
        found = {
            name: prepared(model, some(where, most[name]), name in known, first_size) for name, where in sets.items()
        }
        if self.first in columns:
            found[KNOWN_VAL] = prepared(model, some(self.known_val, self.sizes.fitted), True, first_size)
        return found

    def searched(self, model: nn.Module) -> tuple[Batches, Batches]:
        """Known and unknown images that heads are chosen on."""
        rows = [some(where, self.sizes.searched) for where in (self.known_val, self.unknown_val)]
        size = self.columns[self.first].first_size
        known, unknown = (
            prepared(model, part, has_labels, size, SEARCH_BATCH)
            for part, has_labels in zip(rows, (True, False), strict=True)
        )
        return known, unknown

    def calibration(self, model: nn.Module) -> Batches:
        """Training images of the first column."""
        rows = some(self.train, self.sizes.calibration)
        return prepared(model, rows, True, self.columns[self.first].first_size)

    def validation(self, model: nn.Module, column: str) -> tuple[Batches, Batches]:
        """Known rows with labels that are no test rows: four fifths to fit on, and a fifth."""
        found = self.columns[column]
        assert found.validation is not None
        rows = some(found.validation, self.sizes.fitted)
        fifth, rest = rows.split(len(rows) // 5)
        fitted, held_out = (prepared(model, part, True, found.first_size) for part in (rest, fifth))
        return fitted, held_out

    def classes(self, *columns: str) -> list[str]:
        """Of several columns, behind each other."""
        return [name for column in columns for name in classes_of(self.columns[column].reference)]


@dataclass(frozen=True)
class Model:
    """A two-tower model in a directory, in open_clip's format or in that of transformers; or one that is fetched."""

    reference: str
    pretrained: str | None = None
    """A tag of open_clip, whose weights are fetched where they are not on this machine."""

    @classmethod
    def at(cls, weights: str | Path) -> "Model":
        """Of a directory, or of `NAME:TAG` as open_clip has them (`ViT-B-32:laion2b_s34b_b79k`)."""
        if Path(weights).is_dir():
            has_own_format = (Path(weights) / "open_clip_config.json").is_file()
            return cls(f"open_clip:{weights}" if has_own_format else f"hf:{weights}")
        name, found, tag = str(weights).partition(":")
        if not found:
            raise SystemExit(f"'{weights}' is neither a directory nor NAME:TAG of open_clip")
        return cls(f"open_clip:{name}", tag)

    @property
    def name(self) -> str:
        """For a folder: of two directories of one name too, as their files are hashed."""
        where = self.reference.partition(":")[2]
        if self.pretrained is not None:
            return f"{where}-{self.pretrained}"
        files = {file.name: sha256(file.read_bytes()).hexdigest() for file in files_of(self.reference)}
        return f"{Path(where).name}-{json_digest(files)[:8]}"

    def classifier(self, classes: Sequence[str]) -> ZeroShotClassifier:
        return ZeroShotClassifier.of(self._load(), classes, tokenizer_of(self.reference), TEMPLATES)

    def _load(self) -> nn.Module:
        if self.pretrained is None:
            return load_model(self.reference)
        import open_clip

        name = self.reference.removeprefix("open_clip:")
        return open_clip.create_model(name, pretrained=self.pretrained).eval()  # type: ignore[no-any-return]


@cache
def classes_of(reference: str) -> tuple[str, ...]:
    """Class names as words; of several names the first, or all where two classes share the first (ImageNet's).

    Two of ImageNet's have one name, "crane", the bird and the machine: no method can tell them apart by it.
    """
    names = open_data(reference).classes
    assert names is not None, f"{reference} does not name its classes"
    firsts = [name.split(",")[0] for name in names]
    return tuple(
        (first if firsts.count(first) == 1 else name).replace("_", " ")
        for first, name in zip(firsts, names, strict=True)
    )


def some(reference: str, number: int) -> Rows:
    """The rows of a reference, or a sample where there are more."""
    rows = open_data(reference)
    return rows if len(rows) <= number else rows.sample(number)


def prepared(
    model: nn.Module, rows: Rows, labels: bool, first_size: int | None = None, batch_size: int = BATCH
) -> Batches:
    """Images as the model takes them; labels are the file's own numbers, whatever a class is called in a prompt."""
    return batches_for(preprocess_of(model), rows, labels=labels, first_size=first_size, batch_size=batch_size)
