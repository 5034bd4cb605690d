"""Monte-Carlo dropout: one network asked several times with its dropout on (Gal and Ghahramani, 2016).

torch-uncertainty's `mc_dropout` takes tensors only; this one takes tokens too, and draws the same each time.
Shapes: B batch, M passes, C classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.data import Data
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import own_logits
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.trainee import Trainee


class McDropout(nn.Module):
    """`passes` answers of one network, each with other units dropped.

    `p` is set on the dropout layers that a recipe's `dropout` sets: those inside the blocks, but for attention weights.
    None leaves all as they are, and a network whose dropout is 0 everywhere, as timm builds it, is refused: its answers
    would be the same M times. Each batch draws from the same seed, so answers depend on how rows are batched.
    """

    def __init__(self, network: nn.Module, passes: int = 10, p: float | None = None, seed: int = 0):
        super().__init__()
        self.network, self.passes, self.seed = network, passes, seed
        if p is not None:
            for layer in Trainee(network).dropouts():
                layer.p = p
        if not any(layer.p > 0 for layer in network.modules() if isinstance(layer, nn.Dropout)):
            raise BaselineError(f"{type(network).__name__} has no dropout to keep on; give p=0.1")

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train the network as a single one, with its dropout."""
        finetune(self.network, train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every pass `(B, M, C)`."""
        with _dropping(self.network), own_randomness():
            torch.manual_seed(self.seed)
            return torch.stack([own_logits(self.network, inputs) for _ in range(self.passes)], dim=1)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """The parameters of one network, the multiply-adds of every pass."""
        one = network_cost(self.network, self.network, text_tokens)
        return Cost(one.params, self.passes * one.mult_adds)


@contextmanager
def _dropping(network: nn.Module) -> Iterator[None]:
    """Within, every part is in training mode: attention drops its weights by a flag of its own, not by a layer.

    So is what else is random in training: blocks or patches that a network was built to drop.
    """
    modes = {module: module.training for module in network.modules()}
    network.train()
    try:
        yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training
