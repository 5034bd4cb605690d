"""Model references: how a command or a recipe names a model.

    timm:NAME  torchvision:NAME  open_clip:NAME   an architecture, with random weights
    hf:DIR                                        a directory written by transformers' save_pretrained
    hf:pkg:IMPORT/SUBDIR                          such a directory inside an installed package
    DIR                                           a directory with model.safetensors and config.json

`${VAR}` and `~` expand.
"""

import os
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles.backbones.backbone import build_model, family_of
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.preprocessing import transformers_preprocess
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store import StoreError, check_tensors, read_config, read_tensors

_LIBRARIES = ("timm", "torchvision", "open_clip")


class UnknownReference(HydraError):
    """A model reference that leads nowhere."""


def load_model(reference: str, weights: bool = True, **settings: Any) -> nn.Module:
    """The model that `reference` names, in fp32 and evaluation mode.

    Args:
        reference: see the module's docstring, or `hydra-ens inspect --help`.
        weights: False builds the shape alone, without memory for its numbers (torch's meta device).
        settings: for the library's constructor, e.g. `num_classes=10` (timm), `num_labels=2` (transformers).
    """
    scheme, _, name = expand(reference).partition(":")
    with nullcontext() if weights else torch.device("meta"):
        if scheme in _LIBRARIES and name:
            model = build_model(Origin(scheme, name, settings))
        elif scheme == "hf" and name:
            model = _load_transformers(_package_directory(name), weights, settings)
        else:
            model = _load_directory(Path(expand(reference)), weights, settings)
    return model.eval()


def expand(reference: str) -> str:
    """`${VAR}` and `~` replaced; a variable that is not set is an error."""
    expanded = os.path.expanduser(os.path.expandvars(reference))
    if "${" in expanded:
        variable = expanded.split("${", 1)[1].split("}", 1)[0]
        raise UnknownReference(f"'{reference}' names the environment variable {variable}, which is not set")
    return expanded


def _package_directory(name: str) -> Path:
    if not name.startswith("pkg:"):
        return Path(name)
    package, _, inside = name.removeprefix("pkg:").partition("/")
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UnknownReference(f"package '{package}' is not installed; install it or name a directory with hf:DIR")
    return Path(spec.submodule_search_locations[0]) / inside


def _load_transformers(directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    if not (directory / "config.json").is_file():
        raise UnknownReference(f"hf:{directory} has no config.json; save a model there with save_pretrained")
    transformers = import_extra("transformers", "text", "reading transformers models")
    try:
        model = _from_pretrained(transformers, directory, weights, settings)
        # Classes are left to the model's own config, which knows when a classifier is replaced.
        preprocess = transformers_preprocess(directory, model.config)
        model.origin = Origin("transformers", type(model).__name__, preprocess=preprocess)  # type: ignore[assignment]
        return model
    except HydraError:
        raise
    except Exception as error:
        # Whatever transformers makes of a directory it does not like.
        raise UnknownReference(
            f"transformers cannot read hf:{directory} as a classifier: {in_one_line(error)}"
        ) from error


def _from_pretrained(transformers: Any, directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    local = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(directory, **local, **settings)
    is_image = hasattr(config, "patch_size")
    auto = transformers.AutoModelForImageClassification if is_image else transformers.AutoModelForSequenceClassification
    if not weights:
        return auto.from_config(config)  # type: ignore[no-any-return]
    model, report = auto.from_pretrained(
        directory, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **local
    )
    for name in sorted(report["missing_keys"]):
        if not name.startswith(("classifier.", "pre_classifier.")) and ".pooler." not in name:
            raise UnknownReference(f"hf:{directory} lacks tensor '{name}'; only a classifier may be missing")
    return model  # type: ignore[no-any-return]


def _load_directory(directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    if not directory.is_dir():
        raise UnknownReference(
            f"'{directory}' is neither a directory nor a reference; references start with timm:, torchvision:, "
            "open_clip: or hf:"
        )
    origin = read_origin(directory)
    if "format_version" in (config := read_config(directory)):
        kind = str(config.get("kind")).capitalize()
        raise UnknownReference(f"'{directory}' is a store of ours; load it with {kind}.load")
    if settings:
        raise UnknownReference(
            f"'{directory}' has its settings in config.json; it takes no others ({', '.join(settings)})"
        )
    model = build_model(origin)
    if weights:
        tensors = read_tensors(directory)
        check_tensors(directory, tensors, model.state_dict())
        model.load_state_dict(tensors)
    if origin.preprocess is None and origin.library == "transformers":
        origin = replace(origin, preprocess=transformers_preprocess(directory, model.config))
    model.origin = origin  # type: ignore[assignment]
    return model


def read_origin(directory: str | Path) -> Origin:
    """What a directory's config.json says about how to build its model."""
    config = read_config(directory)
    for field in ("library", "architecture"):
        if not isinstance(config.get(field), str):
            raise StoreError(f"{Path(directory) / 'config.json'} does not say '{field}'")
    return Origin.from_json(config)


def origin_of(model: nn.Module) -> Origin:
    """How to build an unpruned model of this shape again, with the classes and preprocessing it was loaded with."""
    origin = family_of(model).origin(model)
    loaded = getattr(model, "origin", None)
    if not isinstance(loaded, Origin):
        return origin
    return Origin(
        origin.library,
        origin.architecture,
        origin.kwargs,
        loaded.preprocess or origin.preprocess,
        loaded.classes or origin.classes,
    )
