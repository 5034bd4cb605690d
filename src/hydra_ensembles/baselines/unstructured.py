"""One network with single weights set to 0, and kept 0 while it is fine-tuned.

g is the gradient of the mean loss on a calibration set, H its Hessian, both over the weights that may go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Inputs, family_of
from hydra_ensembles.backbones.checks import evaluating
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import start_of, tower_of
from hydra_ensembles.data import Batches, Data, as_batches
from hydra_ensembles.data.batches import inputs_to, known_labels
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.trainee import Trainee, plain_attention
from hydra_ensembles.scoring.taylor import mean_gradients

SCORES = ("magnitude", "taylor", "hessian")


class UnstructuredPruning(nn.Module):
    """A share of the weights in the matrices of attention and MLPs is 0, the least of the whole network by a score.

    Args:
        model: pre-trained; stem, norms, biases and classifier stay whole.
        share: of those weights, how many become 0.
        by: `"magnitude"`: |w|. `"taylor"`: |w g|, what the loss changes by, to first order, when the weight goes alone.
            `"hessian"`: |w (H w)|, the weight's part in the second-order term when all go, exactly: the quantity of
            Optimal Brain Apoptosis (Sun et al., 2025), here from two backward passes. That paper removes in many steps;
            here all go at once.
        data: known inputs with labels, a calibration set; not needed by magnitude.
        batch_size: for data given as tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        share: float = 0.5,
        by: str = "magnitude",
        data: Data | None = None,
        batch_size: int = 32,
    ):
        super().__init__()
        if not 0 <= share < 1:
            raise BaselineError(f"share={share:g}: a share of the weights in [0, 1) can go")
        start = start_of(model, "unstructured pruning")
        weights = _matrices(start)
        scores = _scores(start, list(weights.values()), by, None if data is None else as_batches(data, batch_size))
        kept = _all_but_least(scores, share)
        with torch.no_grad():
            for weight, is_kept in zip(weights.values(), kept, strict=True):
                weight.mul_(is_kept)
        self.network = SparseTrainee(start, dict(zip(weights, kept, strict=True)))

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train the weights that are left; `options` are those of `finetune`."""
        finetune(self.network, train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of the one network `(B, 1, C)`."""
        return self.network(inputs)  # type: ignore[no-any-return]

    def cost(self, text_tokens: int | None = None) -> Cost:
        """The parameters that were not set to 0; all multiply-adds, as kernels for dense matrices run.

        Where the zeros are is not counted: stored, it takes at least a bit a weight.
        """
        whole = network_cost(self.network.model, self.network.model, text_tokens)
        gone = sum(int((~is_kept).sum()) for is_kept in self.network.kept.values())
        return Cost(whole.params - gone, whole.mult_adds)


class SparseTrainee(Trainee):
    """A network in training whose pruned weights have no gradient: being 0, they stay 0 under momentum and decay."""

    def __init__(self, model: nn.Module, kept: dict[str, Tensor]):
        super().__init__(model)
        self.kept = kept

    @contextmanager
    def set_up(self, recipe: Recipe) -> Iterator[dict[str, nn.Parameter]]:
        """As of any network, and within, gradients of pruned weights are 0."""
        with super().set_up(recipe) as trained:
            hooks = [
                trained[name].register_hook(lambda gradient, is_kept=is_kept: gradient * is_kept.to(gradient.device))
                for name, is_kept in self.kept.items()
                if name in trained
            ]
            try:
                yield trained
            finally:
                for hook in hooks:
                    hook.remove()


def _matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, the matrices of attention and MLP in every block."""
    blocks = tower_of(model).blocks
    inside = {id(p) for block in blocks for part in (block.attention, block.mlp) for p in part.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) in inside and p.ndim == 2 and p.numel()}


def _scores(model: nn.Module, weights: list[nn.Parameter], by: str, batches: Batches | None) -> list[Tensor]:
    if by == "magnitude":
        return [weight.detach().abs() for weight in weights]
    if by not in SCORES:
        raise BaselineError(f"by='{by}' is not known; known: {', '.join(SCORES)}")
    if batches is None:
        raise BaselineError(f"by='{by}' looks at the loss; give data=(inputs, labels)")
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with evaluating(model):
            found = (mean_gradients if by == "taylor" else hessian_products)(model, list(weights), batches)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    return [(weight.detach() * found[weight]).abs() for weight in weights]


def hessian_products(model: nn.Module, weights: list[Tensor], batches: Batches) -> dict[Tensor, Tensor]:
    """H w, by weight: the Hessian of the mean cross-entropy over all rows, times the weights themselves."""
    forward, device = family_of(model).own_forward, weights[0].device
    total = {weight: torch.zeros_like(weight) for weight in weights}
    # Only plain attention can be differentiated twice.
    with torch.enable_grad(), plain_attention(device), torch.autocast(device.type, enabled=False):
        for batch in batches:
            if batch.labels is None:
                raise BaselineError("by='hessian' needs labels; give (inputs, labels)")
            logits = forward(model, inputs_to(batch.inputs, device))
            labels = known_labels(batch.labels, logits.shape[-1], BaselineError).to(device)
            loss = F.cross_entropy(logits, labels, reduction="sum") / batches.num_rows
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            along = sum((g * w.detach()).sum() for g, w in zip(gradients, weights, strict=True))
            assert isinstance(along, Tensor)
            for weight, product in zip(weights, torch.autograd.grad(along, weights), strict=True):
                total[weight] += product
    return total


def _all_but_least(scores: list[Tensor], share: float) -> list[Tensor]:
    """By matrix, which entries stay, when a share of all entries together goes."""
    flat = torch.cat([score.flatten() for score in scores])
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[flat.argsort(stable=True)[: round(share * len(flat))]] = False
    return [
        part.reshape(score.shape)
        for part, score in zip(kept.split([score.numel() for score in scores]), scores, strict=True)
    ]
