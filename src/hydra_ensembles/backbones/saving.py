"""A model as a directory that commands and recipes take as a reference: `model.safetensors` and `config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles.backbones.backbone import Backbone, build_model, dtype_of, table_not_computed
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import UnsupportedBackbone
from hydra_ensembles.backbones.references import num_classes, origin_of
from hydra_ensembles.errors import HydraError
from hydra_ensembles.store import write_model


class SavingError(HydraError):
    """A model that cannot be written so that it could be read again."""


def save_model(
    model: nn.Module,
    directory: str | Path,
    classes: Sequence[str] | None = None,
    preprocess: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model of a supported family; `load_model(directory)` reads it, and so does `hydra-ens run`.

    Args:
        model: unpruned; members and hydras have a `save` of their own.
        directory: new, or one that this function wrote.
        classes: names of the classes, in their order; without them those that the model knows, if any.
        preprocess: how inputs are prepared; without it what the model's library says.
    """
    if isinstance(classes, str):
        raise SavingError(f"classes are a list of names, found the text '{classes}'")
    origin = origin_of(model)
    origin = replace(
        origin,
        classes=origin.classes if classes is None else list(classes),
        preprocess=origin.preprocess if preprocess is None else dict(preprocess),
    )
    count = num_classes(model)
    if origin.classes is not None and count is not None and len(origin.classes) != count:
        raise SavingError(f"the model has {count} classes, {len(origin.classes)} names were given")
    if _built_again(origin) != Backbone.of(model).spec():
        raise SavingError(
            f"{origin.library} would not build this model again from '{origin.architecture}' with {origin.kwargs}; "
            "a pruned model is a Member and has a save of its own"
        )
    table = table_not_computed(model, lambda: build_model(origin))
    if table is not None:
        raise SavingError(
            f"{table} is computed, not stored, and {origin.library} would compute other numbers, as after a cast to "
            "another dtype and back; load the model anew"
        )
    dtype = str(dtype_of(model)).removeprefix("torch.")
    return write_model(directory, {**origin.to_json(), "dtype": dtype}, model.state_dict())


def _built_again(origin: Origin) -> dict[str, Any] | None:
    """What a model of this origin is made of; None where its library refuses."""
    try:
        with torch.device("meta"):
            return Backbone.of(build_model(origin)).spec()
    except UnsupportedBackbone:
        return None
