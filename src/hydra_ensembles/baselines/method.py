"""What every method has in common: it is trained on data, answers with several members, and has a cost.

Shapes: B batch, M members, C classes.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.data import Data
from hydra_ensembles.errors import HydraError
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe


class BaselineError(HydraError):
    """A method that does not fit its model or data."""


@runtime_checkable
class Method(Protocol):
    """A way to several answers from one pre-trained classifier; `evaluate` takes it as it takes a hydra."""

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train by a recipe; `options` are those of `finetune`."""

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every member `(B, M, C)`."""

    def cost(self, text_tokens: int | None = None) -> Cost:
        """Parameters to store, and multiply-adds per input with full last blocks."""
