"""Deep Ensembles, and one network: whole models that know nothing of each other.

Shapes: B batch, M members, C classes.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.answers import member_logits
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads.cost import NOTHING, Cost
from hydra_ensembles.members import Recipe, finetune_members


class DeepEnsemble(nn.Module):
    """M networks, trained one by one, each with its own seed; with M = 1 the single network.

    The paper's Deep Ensembles (D): all start from one pre-trained encoder, each with its own classifier.
    """

    def __init__(self, networks: Sequence[nn.Module]):
        super().__init__()
        if not networks:
            raise BaselineError("an ensemble has at least one network, found none")
        self.networks = nn.ModuleList(networks)

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train every network; `options` are those of `finetune_members`, among them `seeds`."""
        finetune_members(list(self.networks), train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every network `(B, M, C)`."""
        return member_logits(list(self.networks), inputs)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """The sum over networks."""
        return sum((network_cost(one, one, text_tokens) for one in self.networks), NOTHING)
