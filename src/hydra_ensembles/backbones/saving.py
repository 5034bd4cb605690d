"""A model as a directory that commands and recipes take as a reference: `model.safetensors` and `config.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from hydra_ensembles.backbones.backbone import Backbone, build_model
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import UnsupportedBackbone
from hydra_ensembles.backbones.references import num_classes, origin_of
from hydra_ensembles.errors import HydraError
from hydra_ensembles.store import whole

_FILES = ("model.safetensors", "config.json")


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
    directory = Path(directory).expanduser()
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
    strangers = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    strangers = [name for name in strangers if name not in _FILES]
    if strangers:
        raise SavingError(f"{directory} holds '{strangers[0]}', which is not part of a model; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    with whole(directory / _FILES[0]) as draft:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, draft)
    with whole(directory / _FILES[1]) as draft:
        text = json.dumps({**origin.to_json(), "dtype": dtype}, indent=1, ensure_ascii=False)
        draft.write_text(text + "\n", encoding="utf-8")
    return directory


def _built_again(origin: Origin) -> dict[str, Any] | None:
    """What a model of this origin is made of; None where its library refuses."""
    try:
        with torch.device("meta"):
            return Backbone.of(build_model(origin)).spec()
    except UnsupportedBackbone:
        return None
