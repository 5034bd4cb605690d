"""A store: a directory that holds `model.safetensors` (numbers) and `config.json` (everything else).

Nothing is pickled, nothing is fetched. A store we wrote says its `kind` and `format_version`; a directory without
them is a plain model that somebody else put together.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hydra_ensembles.errors import HydraError
from hydra_ensembles.store.whole import draft_of, whole

FORMAT_VERSION = 1
_MAKING = "'prune' makes members of a model, 'fuse' a hydra of members, which 'evaluate' and 'predict' take"
TENSORS, CONFIG, DRAFT = "model.safetensors", "config.json", ".draft"


class StoreError(HydraError):
    """A store directory cannot be read or written."""


def write_store(directory: str | Path, kind: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a store. An older store of ours that stands there is replaced; nothing else ever is.

    Each file appears whole or not at all. Both carry one mark, so that a pair of different writes is noticed.
    """
    return _write(Path(directory).expanduser(), kind, config, tensors)


def write_model(directory: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a plain model, without kind and version. An older one is replaced; nothing else ever is."""
    return _write(Path(directory).expanduser(), None, config, tensors)


def _write(directory: Path, kind: str | None, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    try:
        body = json.dumps(dict(config), indent=1, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"the config of {directory} cannot be written as JSON: {error}") from None
    mark = hashlib.sha256(body.encode()).hexdigest()[:16]
    head = {} if kind is None else {"format_version": FORMAT_VERSION, "kind": kind, "mark": mark}
    text = json.dumps({**head, **config}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    owned = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    try:
        check_may_write(directory, kind)
        directory.mkdir(parents=True, exist_ok=True)
        with _emptied(directory / DRAFT) as room, whole(directory / TENSORS) as draft:
            # One entry alone: safetensors writes several in an order by chance, and files would differ.
            save_file(owned, room / TENSORS, metadata={"mark": mark})
            (room / TENSORS).replace(draft)
        with whole(directory / CONFIG) as draft:
            draft.write_text(text, encoding="utf-8")
    except (OSError, SafetensorError) as error:  # a full disk is the one or the other
        raise StoreError(f"{directory} cannot be written: {error}") from error
    return directory


@contextmanager
def _emptied(room: Path) -> Iterator[Path]:
    """A directory that is gone afterwards: safetensors, when killed, leaves a file beside the one that it writes."""
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


def check_may_write(directory: str | Path, kind: str | None) -> None:
    """Refuse a place where a store may not be written; to be asked before the work whose result goes there."""
    directory = Path(directory).expanduser()
    if directory.exists() and not directory.is_dir():
        raise StoreError(f"{directory} is a file; a store is a directory")
    found = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    drafts = [DRAFT, *(draft_of(directory / name).name for name in (TENSORS, CONFIG))]  # of a write that was killed
    found = [name for name in found if name not in drafts]
    if not found or (found == [TENSORS] and _mark(directory) is not None):
        return
    strangers = [name for name in found if name not in (TENSORS, CONFIG)]
    config = {} if strangers else read_config(directory)
    if kind is not None and config.get("kind", kind) != kind:
        raise StoreError(f"{directory} is a store of kind '{config['kind']}', not '{kind}'; choose another directory")
    if strangers or not _is_alike(config, kind):
        what = "a store of ours" if kind is not None else "a model that save_model wrote"
        raise StoreError(
            f"{directory} holds '{(strangers or found)[0]}', which is not part of {what}; choose another directory"
        )


def _is_alike(config: Mapping[str, Any], kind: str | None) -> bool:
    """Is it of the sort that may be replaced: a store by one of its kind, a plain model by a plain model?"""
    if kind is not None:
        return "format_version" in config
    return "format_version" not in config and {"library", "architecture"} <= set(config)


def _mark(directory: str | Path) -> str | None:
    """The mark that we put on the tensors we write."""
    try:
        with safe_open(_file(directory, TENSORS), framework="pt") as file:
            return (file.metadata() or {}).get("mark")
    except SafetensorError:
        return None


def read_store(directory: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a store of this kind."""
    config = check_store(directory, kind)
    tensors = read_tensors(directory)
    mark = _mark(directory)
    if mark is not None and mark != config.get("mark"):
        raise StoreError(f"{TENSORS} and {CONFIG} of {directory} come from different writes; write the store again")
    return config, tensors


def check_store(directory: str | Path, kind: str) -> dict[str, Any]:
    """The config of a store, checked to be one of ours, of this version and kind."""
    config = read_config(directory)
    version = config.get("format_version")
    if version is None:
        if {"library", "architecture"} <= set(config) and "kind" not in config:
            raise StoreError(f"{directory} holds a whole model, no {kind}; {_MAKING}")
        raise StoreError(f"{_file(directory, CONFIG)} has no 'format_version': this is not a store written by us")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{_file(directory, CONFIG)} has format_version {version!r}, this library reads {FORMAT_VERSION}; "
            "update hydra-ensembles or write the store again"
        )
    if config.get("kind") != kind:
        hint = f"; {_MAKING}" if {config.get("kind"), kind} <= {"member", "hydra"} else ""
        raise StoreError(f"{directory} is a store of kind {config.get('kind')!r}, expected {kind!r}{hint}")
    return config


def read_config(directory: str | Path) -> dict[str, Any]:
    """The parsed config.json of a directory."""
    path = _file(directory, CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise StoreError(f"{path} holds a {type(config).__name__}, expected an object")
    return config


def read_tensors(directory: str | Path) -> dict[str, Tensor]:
    """The tensors of a directory, by name."""
    path = _file(directory, TENSORS)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise StoreError(
            f"{path} ({path.stat().st_size} bytes) is truncated or not a safetensors file: {error}"
        ) from None


def check_whole(directory: str | Path) -> None:
    """Refuse a store that is damaged: a file that cannot be read, or two of different writes. Tensors are not read."""
    config, path = read_config(directory), _file(directory, TENSORS)
    try:
        with safe_open(path, framework="pt") as file:
            mark = (file.metadata() or {}).get("mark")
    except SafetensorError as error:
        raise StoreError(f"{path} is truncated or not a safetensors file: {error}") from None
    if mark != config.get("mark"):
        raise StoreError(f"{TENSORS} and {CONFIG} of {directory} come from different writes")


def check_tensors(directory: str | Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names or shapes are not the expected ones."""
    path = Path(directory) / TENSORS
    for name, tensor in expected.items():
        if name in found and found[name].is_floating_point() != tensor.is_floating_point():
            raise StoreError(f"{path}: tensor '{name}' is of dtype {found[name].dtype}, expected {tensor.dtype}")
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
    directory = Path(directory).expanduser()
    if not directory.is_dir():
        raise StoreError(f"{directory} is not a directory")
    path = directory / name
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in directory.iterdir())[:5]) or "nothing"
        raise StoreError(f"{directory} has no {name}; it holds {found}")
    return path
