"""Optional libraries, imported where they are used."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions, version
from typing import Any

from hydra_ensembles.errors import HydraError


class MissingExtra(HydraError):
    """An optional library is not installed."""


@cache
def version_of(module: str) -> str | None:
    """The version of the distribution that brings a module; None where that is not known."""
    names = _distributions().get(module)
    return version(names[0]) if names else None


@cache
def _distributions() -> Mapping[str, list[str]]:
    """By module, the distributions that bring it; looked up once, as every installed package is read for it."""
    return packages_distributions()


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
