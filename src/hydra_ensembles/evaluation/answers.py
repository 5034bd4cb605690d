"""Answers: the logits of every member for every row of a set, in one pass; they can be kept and judged later.

Shapes: B batch, R rows, M members, C classes, D width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, UnsupportedBackbone
from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.data.batches import inputs_to, rows_of
from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.detectors import features_and_logits
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.heads import Member, own_logits
from hydra_ensembles.store import read_store, tensors_digest, write_store

Model: TypeAlias = nn.Module | Sequence[nn.Module]
"""A hydra, a member, any classifier; or several of them, which answer together."""


class AnswerError(HydraError):
    """Answers that cannot be judged."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model said about the rows of a set, in the rows' own order."""

    logits: Tensor
    """`(R, M, C)`"""
    labels: Tensor | None = None
    """`(R,)`"""
    digest: str | None = None
    """Of the data, as they were asked: rows, what is done to them, batches."""
    model: str | None = None
    """A hash of the weights that answered."""
    features: Tensor | None = None
    """`(R, D)`: what the classifier of one network reads, where that was asked for."""

    def __post_init__(self) -> None:
        if self.logits.ndim != 3 or 0 in self.logits.shape:
            raise AnswerError(f"logits are (rows, members, classes), found {tuple(self.logits.shape)}")
        finite = self.logits.isfinite().all(dim=-1)
        if not bool(finite.all()):
            row, member = (~finite).nonzero()[0].tolist()
            raise AnswerError(
                f"member {member} answers row {row} with NaN or infinite logits; check its weights and precision"
            )
        if self.labels is not None:
            self._check_labels(self.labels)

    def _check_labels(self, labels: Tensor) -> None:
        if labels.shape != self.logits.shape[:1] or labels.is_floating_point():
            raise AnswerError(
                f"{len(self)} rows have a whole number each as label, found {labels.dtype} of shape "
                f"{tuple(labels.shape)}"
            )
        # Wide enough for any number of classes: uint8 would take 256 for 0.
        labels, classes = labels.long(), self.logits.shape[-1]
        strange = ((labels < 0) | (labels >= classes)).nonzero()
        if len(strange):
            row = int(strange[0])
            raise AnswerError(f"row {row} has label {labels[row]}, but the model has {classes} classes, counted from 0")

    def __len__(self) -> int:
        return len(self.logits)

    def save(self, directory: str | Path) -> Path:
        """Write `model.safetensors` and `config.json`."""
        tensors = {"logits": self.logits, "labels": self.labels, "features": self.features}
        config = {"digest": self.digest, "model": self.model, "shape": list(self.logits.shape)}
        known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return write_store(directory, "answers", config, known)

    @classmethod
    def load(cls, directory: str | Path) -> "Answers":
        """Read answers back, to the bit."""
        config, tensors = read_store(directory, "answers")
        if "logits" not in tensors:
            raise AnswerError(f"{directory} has no 'logits'")
        labels, features = tensors.get("labels"), tensors.get("features")
        return cls(tensors["logits"], labels, config.get("digest"), config.get("model"), features)


def networks(model: Model) -> list[nn.Module]:
    """One model, or each of several."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        return [model]
    return list(model)


def member_logits(model: Model, inputs: Inputs) -> Tensor:
    """The logits of every member `(B, M, C)`; of one network M is 1."""
    said = [_logits_of(one, inputs) for one in networks(model)]
    classes = sorted({logits.shape[-1] for logits in said})
    if len(classes) != 1:
        raise AnswerError(f"models that answer together have the same classes, found {classes} of them")
    return torch.cat(said, dim=1)


def _logits_of(model: nn.Module, inputs: Inputs) -> Tensor:
    members = getattr(model, "members", None)
    if callable(members) and not isinstance(members, nn.Module):  # a hydra, or a method with members of its own
        logits_BMC: Tensor = members(inputs)
        return logits_BMC
    inputs = _in_dtype_of(model, inputs)
    try:
        said: Any = own_logits(model, inputs)
    except UnsupportedBackbone:  # any other classifier is asked in the usual way
        said = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
    logits = getattr(said, "logits", said)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != rows_of(inputs):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise AnswerError(
            f"{type(model).__name__} answers {rows_of(inputs)} inputs with {found}, expected logits (inputs, classes)"
        )
    return logits[:, None]


def _in_dtype_of(model: nn.Module, inputs: Inputs) -> Inputs:
    """Images as a model in bf16, fp16 or fp64 takes them; a hydra does this itself."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return inputs

    def as_weight(tensor: Tensor) -> Tensor:
        return tensor.to(weight.dtype) if tensor.is_floating_point() else tensor

    if isinstance(inputs, Tensor):
        return as_weight(inputs)
    return {name: as_weight(tensor) for name, tensor in inputs.items()}


_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "open_clip", "peft")
_TELLING = ("global_pool", "pool_type", "num_prefix_tokens", "pool_include_prefix", "num_heads", "scale", "scaling")
"""Values of the libraries' modules that change an answer and are told by no weight and no name."""


def model_digest(model: Model) -> str:
    """A hash of the weights and the settings of a model, or of several."""
    models = networks(model)
    named = (
        (f"{place} {name}", tensor) for place, one in enumerate(models) for name, tensor in one.state_dict().items()
    )
    return tensors_digest(named, repr([_settings(one) for one in models]))


def _settings(model: nn.Module) -> list[Any]:
    """What a model does beside its weights: what its modules are and say of themselves, and their plain values.

    The libraries' modules also hold where they were loaded from and how they are best run, which is no part of it: of
    theirs only some count.
    """

    def plain(module: nn.Module) -> list[tuple[str, Any]]:
        is_library = type(module).__module__.partition(".")[0] in _LIBRARIES
        return sorted(
            (key, value)
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str)
            and (key in _TELLING if is_library else key != "training" and not key.startswith("_"))
        )

    return [(name, type(module).__name__, module.extra_repr(), plain(module)) for name, module in model.named_modules()]


@torch.no_grad()
def answers(
    model: Model,
    data: Data,
    *,
    labels: bool = True,
    features: bool = False,
    digest: bool = True,
    batch_size: int = 64,
    progress: bool | None = None,
    title: str = "answering",
) -> Answers:
    """Ask a model about every row, in evaluation mode.

    Args:
        model: a hydra, a member, any classifier, or several of them.
        data: tensors, `Batches`, or a loader.
        labels: False leaves them out, as for out-of-distribution sets, whose labels mean nothing to the model.
        features: keep also what the classifier reads; of one network only.
        digest: False leaves out the hashes of data and weights, for which all of them are read once more.
        batch_size: for data given as tensors.
        progress: show a bar; by default on a terminal.
        title: what the bar is called.
    """
    batches, asked = as_batches(data, batch_size), networks(model)
    if not asked:
        raise AnswerError("no model was given")
    if features and len(asked) > 1:
        raise AnswerError(f"features are those of one network, {len(asked)} were given")
    for one in asked:
        check_has_classes(one)
    device = next((p.device for p in asked[0].parameters()), torch.device("cpu"))
    console = Console(stderr=True)
    disable = not (console.is_terminal if progress is None else progress)
    columns: dict[str, list[Tensor]] = {"logits": [], "labels": [], "features": []}
    with in_evaluation_mode(asked):
        for batch in track(batches, title, total=len(batches), console=console, transient=True, disable=disable):
            inputs = inputs_to(batch.inputs, device)
            if features:
                read, said = features_and_logits(asked[0], inputs)
                columns["features"].append(read.cpu())
            else:
                said = member_logits(asked, inputs)
            columns["logits"].append(said.cpu())
            if labels and batch.labels is not None:
                columns["labels"].append(torch.as_tensor(batch.labels).cpu())
    whole = {name: torch.cat(parts) for name, parts in columns.items() if parts}
    order: Any = getattr(batches, "order", None)  # texts come in batches of like length
    if isinstance(order, Tensor):
        back = order.argsort()
        whole = {name: column[back] for name, column in whole.items()}
    hashes = {"digest": batches.digest, "model": model_digest(asked)} if digest else {}
    return Answers(**whole, **hashes)  # type: ignore[arg-type]


def check_has_classes(model: nn.Module) -> None:
    """Refuse a model whose features would be judged as if they were logits."""
    try:
        view = model if isinstance(model, Hydra) else Backbone.of(model.model if isinstance(model, Member) else model)
    except UnsupportedBackbone:
        return
    if view.ends_in_features:
        raise AnswerError(f"{type(model).__name__} has no classifier, only features; give one with classes")


@contextmanager
def in_evaluation_mode(models: list[nn.Module]) -> Iterator[None]:
    """Models as they answer, and afterwards as they were."""
    # Of every module: a model that trains may have parts that do not.
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training


def load_answers(directory: str | Path) -> Mapping[str, Answers]:
    """All answers kept in the directories of one directory, by name."""
    directory = Path(directory).expanduser()
    found = sorted(directory.iterdir()) if directory.is_dir() else []
    names = [path.name for path in found if (path / "config.json").is_file()]
    if not names:
        raise AnswerError(f"{directory} holds no answers; evaluate with keep= first")
    return {name: Answers.load(directory / name) for name in names}
