"""A store: a directory that holds `model.safetensors` (numbers) and `config.json` (everything else).

Nothing is pickled, nothing is fetched. A store we wrote says its `kind` and `format_version`; a directory without
them is a plain model that somebody else put together.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hydra_ensembles.errors import HydraError

FORMAT_VERSION = 1
_TENSORS, _CONFIG = "model.safetensors", "config.json"


class StoreError(HydraError):
    """A store directory cannot be read or written."""


def write_store(directory: str | Path, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a store; it appears whole or not at all. A store that stands there already is replaced."""
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise StoreError(f"{directory} is a file; a store is a directory")
    strangers = sorted({p.name for p in directory.glob("*")} - {_TENSORS, _CONFIG}) if directory.exists() else []
    if strangers:
        raise StoreError(f"{directory} holds '{strangers[0]}', which is not part of a store; choose another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        head = {"format_version": FORMAT_VERSION, "kind": kind}
        text = json.dumps({**head, **config}, indent=1, ensure_ascii=False, allow_nan=False)
        (draft / _CONFIG).write_text(text + "\n", encoding="utf-8")
        owned = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
        save_file(owned, draft / _TENSORS, metadata={"format": "pt"})
        draft.chmod(0o777 & ~_umask())
        if directory.exists():
            shutil.rmtree(directory)
        draft.rename(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def read_store(directory: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a store of this kind."""
    config = read_config(directory)
    version = config.get("format_version")
    if version is None:
        raise StoreError(f"{_file(directory, _CONFIG)} has no 'format_version': this is not a store written by us")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{_file(directory, _CONFIG)} has format_version {version!r}, this library reads {FORMAT_VERSION}; "
            "update hydra-ensembles or write the store again"
        )
    if config.get("kind") != kind:
        raise StoreError(f"{directory} is a store of kind {config.get('kind')!r}, expected {kind!r}")
    return config, read_tensors(directory)


def read_config(directory: str | Path) -> dict[str, Any]:
    """The parsed config.json of a directory."""
    path = _file(directory, _CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise StoreError(f"{path} holds a {type(config).__name__}, expected an object")
    return config


def read_tensors(directory: str | Path) -> dict[str, Tensor]:
    """The tensors of a directory, by name."""
    path = _file(directory, _TENSORS)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise StoreError(
            f"{path} ({path.stat().st_size} bytes) is truncated or not a safetensors file: {error}"
        ) from None


def check_tensors(directory: str | Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names or shapes are not the expected ones."""
    path = Path(directory) / _TENSORS
    for name, tensor in expected.items():
        if name not in found:
            strange = next((other for other in found if other not in expected), None)
            instead = f" (it has '{strange}', which does not belong there)" if strange else ""
            raise StoreError(f"{path} lacks tensor '{name}'{instead}")
        if found[name].shape != tensor.shape:
            raise StoreError(
                f"{path}: tensor '{name}' has shape {tuple(found[name].shape)}, "
                f"config.json implies {tuple(tensor.shape)}"
            )
    for name in found:
        if name not in expected:
            raise StoreError(f"{path} has tensor '{name}', which does not belong to the model in config.json")


def _file(directory: str | Path, name: str) -> Path:
    directory = Path(directory)
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory")
    path = directory / name
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in directory.iterdir())[:5]) or "nothing"
        raise StoreError(f"{directory} has no {name}; it holds {found}")
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
