"""Model references: how a command or a recipe names a model.

    timm:NAME  torchvision:NAME  open_clip:NAME   an architecture, with random weights
    open_clip:DIR                                 a directory in open_clip's format, with open_clip_config.json
    hf:DIR                                        a directory written by transformers' save_pretrained
    hf:pkg:IMPORT/SUBDIR                          such a directory inside an installed package
    DIR                                           a directory with model.safetensors and config.json

`${VAR}`, `${VAR:-otherwise}` and `~` expand.
"""

import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from hydra_ensembles.backbones.backbone import build_model, family_of, filled
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import UnsupportedBackbone
from hydra_ensembles.backbones.preprocessing import transformers_preprocess
from hydra_ensembles.errors import HydraError, HydraWarning, in_one_line
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store import StoreError, read_config, read_store, read_tensors

_LIBRARIES = ("timm", "torchvision", "open_clip")
_OPEN_CLIP = "open_clip_config.json"
# Pickled ones are not read.
_OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "model.safetensors")
_OTHER_TASKS = ("ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering")
_TWO_TOWERS = ("clip", "siglip")
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<instead>[^}]*))?\}")


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
        if scheme == "open_clip" and Path(name).is_dir():
            model = _load_open_clip(Path(name), weights, settings)
        elif scheme in _LIBRARIES and name:
            model = build_model(Origin(scheme, name, settings))
        elif scheme == "hf" and name:
            model = _load_transformers(_package_directory(name), weights, settings)
        else:
            model = _load_directory(Path(expand(reference)), weights, settings)
    return model.eval()


def expand(reference: str) -> str:
    """`${VAR}`, `${VAR:-what to take without it}` and `~` replaced; a variable that is not set is an error.

    >>> expand("${NOT_SET_ANYWHERE:-data}/train.parquet")
    'data/train.parquet'
    """

    def value(found: re.Match[str]) -> str:
        variable, instead = found["name"], found["instead"]
        known = os.environ.get(variable) or instead
        if known is None:
            raise UnknownReference(f"'{reference}' names the environment variable {variable}, which is not set")
        return known

    return os.path.expanduser(os.path.expandvars(_VARIABLE.sub(value, reference)))


def settings_for_classes(reference: str, classes: int | None) -> dict[str, int]:
    """What the library's constructor calls a number of classes; nothing where none is asked for.

    >>> settings_for_classes("${MY_MODEL:-hf:bert-base-uncased}", 3)
    {'num_labels': 3}
    """
    if classes is None:
        return {}
    return {"num_labels" if expand(reference).startswith("hf:") else "num_classes": classes}


def files_of(reference: str) -> list[Path]:
    """The files that hold a model's numbers and settings; none for an architecture with random weights."""
    scheme, _, name = expand(reference).partition(":")
    in_format = scheme == "open_clip" and Path(name).is_dir()
    if scheme in _LIBRARIES and name and not in_format:
        return []
    directory = Path(name) if in_format else Path(expand(reference))
    directory = _package_directory(name) if scheme == "hf" and name else directory
    if not directory.is_dir():
        raise UnknownReference(f"'{reference}' leads to {directory}, which is not a directory")
    return sorted(path for path in directory.iterdir() if path.is_file())


def tokenizer_of(reference: str) -> Callable[[list[str]], Tensor]:
    """What makes token ids `(texts, T)` of the texts of a two-tower model that `open_clip:` or `hf:` names."""
    scheme, _, name = expand(reference).partition(":")
    if scheme == "open_clip" and name:
        open_clip = import_extra("open_clip", "clip", "reading texts as open_clip does")
        return open_clip.get_tokenizer(f"local-dir:{name}" if Path(name).is_dir() else name)  # type: ignore[no-any-return]
    if scheme != "hf" or not name:
        raise UnknownReference(f"'{reference}' names no tokeniser; of two-tower models open_clip: and hf: do")
    directory = _package_directory(name)
    transformers = import_extra("transformers", "text", "reading texts as transformers does")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        length = transformers.AutoConfig.from_pretrained(directory, local_files_only=True).text_config
    except Exception as error:
        # Whatever transformers makes of a directory it does not like.
        raise UnknownReference(f"hf:{directory} has no tokeniser of a two-tower model: {in_one_line(error)}") from error
    how = {"padding": "max_length", "truncation": True, "max_length": length.max_position_embeddings}
    return lambda texts: tokenizer(texts, return_tensors="pt", **how)["input_ids"]


def _load_open_clip(directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    """Built by open_clip from its own files; a text tower of transformers from the config.json beside them."""
    if settings:
        raise UnknownReference(f"'{directory}' has its settings in {_OPEN_CLIP}; it takes no others")
    open_clip = import_extra("open_clip", "clip", "reading open_clip models")
    try:
        config = json.loads((directory / _OPEN_CLIP).read_text())["model_cfg"]
        text, more = config["text_cfg"], {}
        if "hf_model_name" in text:
            # By its name it would be fetched.
            more = {"text_cfg": {**text, "hf_model_name": str(directory), "hf_model_pretrained": False}}
        with _quiet_root():
            model = open_clip.create_model(
                f"local-dir:{directory}",
                load_weights=False,
                pretrained_image=False,
                pretrained_text=False,
                device="cpu" if weights else "meta",
                # Of an image tower of timm nothing else says the size.
                force_image_size=config["vision_cfg"].get("image_size"),
                **more,
            )
            if weights:
                open_clip.load_checkpoint(model, str(_open_clip_weights(directory)), device="cpu")
        return model  # type: ignore[no-any-return]
    except HydraError:
        raise
    except Exception as error:
        # Whatever open_clip makes of a directory it does not like.
        raise UnknownReference(f"open_clip cannot read open_clip:{directory}: {in_one_line(error)}") from error


def _open_clip_weights(directory: Path) -> Path:
    for name in _OPEN_CLIP_WEIGHTS:
        if (directory / name).is_file():
            return directory / name
    raise UnknownReference(f"open_clip:{directory} has no weights; they are in {' or '.join(_OPEN_CLIP_WEIGHTS)}")


@contextmanager
def _quiet_root() -> Iterator[None]:
    """Without open_clip's warnings that nothing was loaded yet, which go to the root logger."""
    was_disabled = logging.root.disabled
    logging.root.disabled = True
    try:
        yield
    finally:
        logging.root.disabled = was_disabled


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
        with _quiet(transformers):
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
            f"transformers cannot read hf:{directory} as a classifier or as two towers: {in_one_line(error)}"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its bar and its report of tensors that are new: which may be, is checked here."""
    logging = transformers.utils.logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def _from_pretrained(transformers: Any, directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    local = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(directory, **local, **settings)
    if config.model_type in _TWO_TOWERS:
        auto = transformers.AutoModel
    elif hasattr(config, "patch_size"):
        auto = transformers.AutoModelForImageClassification
    else:
        auto = transformers.AutoModelForSequenceClassification
    if auto is not transformers.AutoModel:
        _check_task(directory, config)
    if not weights:
        return auto.from_config(config)  # type: ignore[no-any-return]
    if "num_labels" in settings and _has_classifier(directory):
        stored = transformers.AutoConfig.from_pretrained(directory, **local).num_labels
        if settings["num_labels"] != stored:
            raise UnknownReference(
                f"hf:{directory} has a classifier for {stored} classes, {settings['num_labels']} were asked for; leave "
                "the number out, or save the model without its classifier"
            )
    model, report = auto.from_pretrained(
        directory, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **local
    )
    missing = sorted(report["missing_keys"])
    for name in missing:
        if not name.startswith(("classifier.", "pre_classifier.")) and ".pooler." not in name:
            raise UnknownReference(f"hf:{directory} lacks tensor '{name}'; only a classifier may be missing")
    if missing and "num_labels" not in settings:  # who says how many classes there are knows that they are new
        warnings.warn(
            f"hf:{directory} has no {missing[0]}: its classifier is random; train it before you rank, evaluate or ask",
            HydraWarning,
            stacklevel=2,
        )
    return model  # type: ignore[no-any-return]


def _has_classifier(directory: Path) -> bool:
    """Do the stored tensors hold one?"""
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if any(name.startswith("classifier.") for name in file.keys()):  # noqa: SIM118
                return True
    return False


def _check_task(directory: Path, config: Any) -> None:
    """Refuse weights that were trained for something else than one of several classes for each input."""
    trained = next(iter(config.architectures or ()), "")
    if trained.endswith(_OTHER_TASKS):
        raise UnknownReference(f"hf:{directory} holds a {trained}, which does not classify whole inputs")
    if config.problem_type not in (None, "single_label_classification"):
        raise UnknownReference(f"hf:{directory} was trained for {config.problem_type}; one class an input is meant")
    if config.num_labels < 2:
        raise UnknownReference(f"hf:{directory} has {config.num_labels} output, no classes; two are the fewest")


def _load_directory(directory: Path, weights: bool, settings: dict[str, Any]) -> nn.Module:
    if not directory.is_dir():
        raise UnknownReference(
            f"'{directory}' is neither a directory nor a reference; references start with timm:, torchvision:, "
            "open_clip: or hf:"
        )
    is_store = "format_version" in (config := read_config(directory))
    if is_store and not _keeps_all_heads(config):
        kind = str(config.get("kind"))
        raise UnknownReference(
            f"'{directory}' is a {kind}, no whole model; load it with {kind.capitalize()}.load. Whole "
            "models are written by save_model, and by 'finetune' of a whole one"
        )
    origin = read_origin(directory)
    if settings:
        raise UnknownReference(
            f"'{directory}' has its settings in config.json; it takes no others ({', '.join(settings)})"
        )
    if weights:
        stored = read_store(directory, "member")[1] if is_store else read_tensors(directory)
        tensors = {name: found.float() if found.is_floating_point() else found for name, found in stored.items()}
        model = filled(lambda: build_model(origin), directory, tensors)
    else:
        model = build_model(origin)
    if origin.preprocess is None and origin.library == "transformers":
        origin = replace(origin, preprocess=transformers_preprocess(directory, model.config))
    model.origin = origin  # type: ignore[assignment]
    return model


def _keeps_all_heads(config: Mapping[str, Any]) -> bool:
    """Does a store's config describe a member that has lost no head, as a whole model that was fine-tuned is stored?"""
    heads = config.get("heads")
    if config.get("kind") != "member" or not isinstance(heads, Mapping):
        return False
    return all(tower["kept"] == [list(range(total)) for total in tower["num_heads"]] for tower in heads.values())


def read_origin(directory: str | Path) -> Origin:
    """What a directory's config.json says about how to build its model."""
    config = read_config(directory)
    for field in ("library", "architecture"):
        if not isinstance(config.get(field), str):
            hint = f"; of transformers it is 'hf:{directory}'" if "model_type" in config else ""
            raise StoreError(f"{Path(directory) / 'config.json'} does not say '{field}'{hint}")
    return Origin.from_json(config)


def num_classes(model: object) -> int | None:
    """How many classes a model, a member or a hydra has; None without a classifier, and for two bare towers."""
    if isinstance(model, nn.Module):
        with suppress(UnsupportedBackbone, AttributeError):
            return family_of(model).view(model).num_classes
    if hasattr(model, "model"):  # a member's
        return num_classes(model.model)
    # What a hydra says, or any other classifier in a common place.
    said = getattr(model, "num_classes", None) or getattr(getattr(model, "config", None), "num_labels", None)
    return said if isinstance(said, int) else None


def origin_of(model: nn.Module) -> Origin:
    """How to build an unpruned model of this shape again, with the classes and preprocessing it was loaded with."""
    origin = family_of(model).origin(model)
    loaded = getattr(model, "origin", None)
    if not isinstance(loaded, Origin):
        return origin
    # Names stay behind when another classifier is put in.
    is_named = loaded.classes and num_classes(model) in (None, len(loaded.classes))
    return replace(
        origin,
        preprocess=loaded.preprocess or origin.preprocess,
        classes=loaded.classes if is_named else origin.classes,
    )
