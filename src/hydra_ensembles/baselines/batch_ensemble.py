"""BatchEnsemble (Wen et al., 2020): members share every weight matrix, and each scales its rows and columns.

Member m's matrix is W * (s_m r_m^T), element by element. The layers are torch-uncertainty's `BatchLinear`; what they
compute is computed here without repeating r, s and bias for every row, which costs time and memory.
Shapes: B batch, M members, N = M * B rows, member by member, D in, E out, C classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, family_of
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import check_layers_are_called, module_with, start_of, tower_of
from hydra_ensembles.data import Data
from hydra_ensembles.data.batches import rows_at, rows_of
from hydra_ensembles.heads import single_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.checkpoint import own_randomness
from hydra_ensembles.members.trainee import Trainee
from hydra_ensembles.optional import import_extra


class BatchEnsemble(nn.Module):
    """M members in one network: of the linear layers in its blocks, and of its classifier, each has its r, s and bias.

    The matrices start as the pre-trained ones, r and s are drawn around 1 with standard deviation `spread`. The
    library's own 0.5 is for training from nothing: in every layer of a pre-trained network it leaves nothing of what
    the network knows. In training, as in asking, every input is repeated for every member, as the authors' published
    code does; their paper divides a batch among the members instead.
    """

    def __init__(self, model: nn.Module, members: int = 3, spread: float = 0.1, seed: int = 0):
        super().__init__()
        start = start_of(model, "BatchEnsemble")
        check_layers_are_called(start, "BatchEnsemble")
        self.network = BatchTrainee(start, members, spread, seed)

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train what members share and what they do not together; `options` are those of `finetune`."""
        finetune(self.network, train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every member `(B, M, C)`."""
        return self.network(inputs)  # type: ignore[no-any-return]

    def cost(self, text_tokens: int | None = None) -> Cost:
        """One network and M sets of r, s and bias to store; M networks to run.

        The products with r and s are not matrix products, so they are not counted; they take time and memory all the
        same.
        """
        one = single_cost(Backbone({"tower": self.network.tower}), text_tokens=text_tokens)
        return Cost(sum(p.numel() for p in self.parameters()), self.network.num_members * one.mult_adds)


class BatchTrainee(Trainee):
    """A network whose linear layers are `ScaledLinear`; of the layers that a recipe trains, r, s and bias move too."""

    def __init__(self, model: nn.Module, members: int, spread: float, seed: int):
        super().__init__(model)  # reads the plain layers; those put in their place keep the matrices
        self.num_members = members
        generator = torch.Generator().manual_seed(seed)
        for path, layer in _linear_layers(model).items():
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, ScaledLinear(layer, members, spread, generator))

    def forward(self, inputs: Inputs) -> Tensor:
        every = torch.arange(rows_of(inputs)).repeat(self.num_members)
        logits_NC = family_of(self.model).own_forward(self.model, rows_at(inputs, every))
        return logits_NC.unflatten(0, (self.num_members, -1)).transpose(0, 1)  # type: ignore[no-any-return]

    def zero_head(self) -> None:
        """Set the shared matrix and every bias of the classifier to zero."""
        with torch.no_grad():
            for parameter in (self._classifier.matrix, self._classifier.layer.bias):
                if parameter is not None:
                    parameter.zero_()

    def trained(self, recipe: Recipe) -> dict[str, nn.Parameter]:
        """What the recipe moves of the plain network, and r, s and bias where it moves the matrix."""
        shared = super().trained(recipe)
        matrices = {id(parameter) for parameter in shared.values()}
        own = {id(p) for layer in self._layers if id(layer.matrix) in matrices for p in layer.own()}
        return shared | {name: p for name, p in self.model.named_parameters() if id(p) in own and p.requires_grad}

    def groups(self, trained: dict[str, nn.Parameter], recipe: Recipe) -> list[dict[str, Any]]:
        """As of the plain network; r, s and bias, like norms and biases there, are not drawn towards zero."""
        own = {id(p) for layer in self._layers for p in layer.own()}
        head = {id(p) for p in self._classifier.own()}
        share = 1.0 if recipe.head_learning_rate is None else recipe.head_learning_rate / recipe.learning_rate
        groups = super().groups({name: p for name, p in trained.items() if id(p) not in own}, recipe)
        for is_head in (False, True):
            moved = [p for p in trained.values() if id(p) in own and (id(p) in head) == is_head]
            groups.append({"params": moved, "weight_decay": 0.0, "share": share if is_head else 1.0})
        return [group for group in groups if group["params"]]

    @property
    def _layers(self) -> list["ScaledLinear"]:
        return [layer for layer in self.model.modules() if isinstance(layer, ScaledLinear)]

    @property
    def _classifier(self) -> "ScaledLinear":
        return next(layer for layer in self._layers if layer.matrix is self.tower.readout.classifier.weight)


class ScaledLinear(nn.Module):
    """Stands where a linear layer stood: a `BatchLinear` that takes tokens, not rows `(N, D)` alone.

    The same numbers as the layer itself gives, to rounding, as a test shows.
    """

    def __init__(self, plain: nn.Linear, members: int, spread: float, generator: torch.Generator):
        super().__init__()
        layers = import_extra("torch_uncertainty.layers", "eval", "BatchEnsemble")
        # from_linear takes a layer's shape and draws everything; the generators of others stay as they are.
        with own_randomness():
            self.layer: Any = layers.BatchLinear.from_linear(plain, members)
        self.layer.linear.weight = plain.weight
        with torch.no_grad():
            for factor in (self.layer.r_group, self.layer.s_group):
                factor.copy_(1 + spread * torch.randn(factor.shape, generator=generator))
            if plain.bias is not None:
                self.layer.bias.copy_(plain.bias.expand(members, -1))

    @property
    def out_features(self) -> int:
        """As of the layer whose place it takes."""
        return len(self.matrix)

    @property
    def matrix(self) -> nn.Parameter:
        """What all members share."""
        return self.layer.linear.weight  # type: ignore[no-any-return]

    def own(self) -> list[nn.Parameter]:
        """What each member has for itself: r `(M, D)`, s `(M, E)` and bias `(M, E)`."""
        return [p for p in self._factors() if p is not None]  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        r, s, bias = self._factors()
        x_MND = x.reshape(len(r), -1, x.shape[-1])
        out = F.linear(x_MND * r[:, None].to(x.dtype), self.matrix)
        # Under autocast `out` is in bf16; times a factor in fp32 it would be twice as large again.
        out = out * s[:, None].to(out.dtype)
        return (out if bias is None else out + bias[:, None].to(out.dtype)).reshape(*x.shape[:-1], -1)

    def _factors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.layer.r_group, self.layer.s_group, self.layer.bias


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """By path, the linear layers of attention and MLP in every block, and the classifier."""
    tower = tower_of(model)
    matrices = {id(p) for block in tower.blocks for part in (block.attention, block.mlp) for p in part.parameters()}
    classifier = module_with(model, tower.readout.classifier.weight)
    found = {
        path: layer
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and (layer is classifier or id(layer.weight) in matrices)
    }
    replaced = {id(layer.weight) for layer in found.values()}
    for name, parameter in model.named_parameters():
        if id(parameter) in matrices - replaced and parameter.ndim == 2:
            raise BaselineError(
                f"'{name}' is a matrix that no linear layer holds, as in nn.MultiheadAttention, so that it cannot be "
                "replaced; take the same network from timm or transformers"
            )
    return found
