"""Interop: a hydra where other libraries expect a model of theirs. One file a library, imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra_ensembles.interop.openood import HydraPostprocessor
    from hydra_ensembles.interop.scikit_learn import HydraClassifier
    from hydra_ensembles.interop.torch_uncertainty import MemberRows
    from hydra_ensembles.interop.transformers import as_pipeline

_FILES = {
    "HydraClassifier": "scikit_learn",
    "HydraPostprocessor": "openood",
    "MemberRows": "torch_uncertainty",
    "as_pipeline": "transformers",
}

__all__ = ["HydraClassifier", "HydraPostprocessor", "MemberRows", "as_pipeline"]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'hydra_ensembles.interop' has no attribute '{name}'")
    return getattr(import_module(f"hydra_ensembles.interop.{_FILES[name]}"), name)
