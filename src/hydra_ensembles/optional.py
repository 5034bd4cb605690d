"""Optional libraries, imported where they are used."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any

from hydra_ensembles.errors import HydraError

_LIBRARIES = (
    "timm",
    "torchvision",
    "transformers",
    "open_clip",
    "tokenizers",
    "PIL",
    "torchmetrics",
    "torch_uncertainty",
)
"""Whose versions results depend on."""


class MissingExtra(HydraError):
    """An optional library is not installed."""


@cache
def version_of(module: str) -> str | None:
    """The version of the distribution that brings a module; None where that is not known."""
    try:
        # Of a working copy, which is not among those that bring modules, the name is the module's.
        return version(_distributions().get(module, [module])[0])
    except PackageNotFoundError:
        return None


@cache
def _distributions() -> Mapping[str, list[str]]:
    """By module, the distributions that bring it; looked up once, as every installed package is read for it."""
    return packages_distributions()


def versions() -> dict[str, str]:
    """Of Python and of the libraries that are installed."""
    found = {name: version_of(name) for name in ("hydra_ensembles", "torch", "numpy", *_LIBRARIES)}
    return {"python": platform.python_version(), **{name: of for name, of in found.items() if of is not None}}


def made_with(dtype: Any = None) -> dict[str, Any]:
    """What a result depends on beside weights and data, as far as rounding goes."""
    import torch

    kind = {} if dtype is None else {"dtype": str(dtype).removeprefix("torch.")}
    return {"versions": versions(), **kind, "threads": torch.get_num_threads()}


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, or say which extra brings it.

    >>> import_extra("no_such_library", "vision", "reading timm models")
    Traceback (most recent call last):
        ...
    hydra_ensembles.optional.MissingExtra: reading timm models needs the 'vision' extra: \
pip install 'hydra-ensembles[vision]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(f"{purpose} needs the '{extra}' extra: pip install 'hydra-ensembles[{extra}]'") from None
