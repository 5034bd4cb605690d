"""What is trained: a member, a plain model or a hydra, seen alike; which of its parameters move, and how it attends.

Shapes: B batch, M members (1 but for a hydra), C classes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydra_ensembles.backbones import Backbone, Inputs
from hydra_ensembles.backbones.parts import Norm, Scale
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.fusion.grouped import MemberNorm, MemberScale
from hydra_ensembles.heads import Member, own_logits
from hydra_ensembles.members.recipes import FineTuningError, Recipe

# Dropout on attention weights: timm; BERT and RoBERTa; DistilBERT. Other libraries keep it as a number, not a layer.
_ON_ATTENTION_WEIGHTS = ("attn_drop", "attention.self.dropout", "attention.dropout")


def dropout_rates(model: nn.Module) -> dict[str, float]:
    """Every number that says how much is dropped, of units, paths, patches or attention weights, by its name.

    >>> dropout_rates(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1)))
    {'1.p': 0.1}
    """
    return {
        f"{path}.{name}".removeprefix("."): float(value)
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        # torch and torchvision say p, timm drop_prob and prob, transformers attention_dropout.
        if type(value) in (int, float) and (name in ("p", "prob") or "drop" in name)
    }


def set_dropout_rates(model: nn.Module, rates: Mapping[str, float]) -> None:
    """Set the numbers that `dropout_rates` named."""
    for place, rate in rates.items():
        path, _, name = place.rpartition(".")
        setattr(model.get_submodule(path), name, rate)


class Trainee(nn.Module):
    """`trainee(inputs)` is the logits of every member `(B, M, C)`, by the model's own forward, dropout included."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        inner = model.model if isinstance(model, Member) else model
        # A view, kept out of the module tree: its parts hold the model's own parameters.
        view = inner if isinstance(inner, Hydra | Backbone) else Backbone.of(inner)
        if view.contrast is not None or len(view.towers) != 1:
            raise FineTuningError(
                f"{type(inner).__name__} compares images with texts and has no classifier to fine-tune; "
                "models of one tower with a classifier are fine-tuned"
            )
        (tower,) = view.towers.values()
        self._inner, self._tower = [inner], [tower]
        if tower.readout.classifier is None:  # type: ignore[union-attr]
            raise FineTuningError(f"{type(inner).__name__} has no classifier; build it with the number of classes")
        for name, parameter in model.named_parameters():
            if parameter.dtype in (torch.bfloat16, torch.float16):
                kind = str(parameter.dtype).removeprefix("torch.")
                raise FineTuningError(
                    f"'{name}' is of dtype {kind}, in which small steps are lost; train model.float(), with "
                    "precision='bf16' where speed is wanted"
                )

    def forward(self, inputs: Inputs) -> Tensor:
        if isinstance(self.model, Hydra):
            return self.model.members(inputs)
        if isinstance(self.model, Backbone):
            return self.model(inputs)[:, None]  # type: ignore[no-any-return]
        return own_logits(self.model, inputs)[:, None]

    @property
    def tower(self) -> Any:
        """Stem, blocks and readout, as parts that hold the model's own parameters."""
        return self._tower[0]

    def settings(self) -> dict[str, Any]:
        """What training depends on besides tensors and parts, as JSON; one with other settings is not gone on with."""
        return dict(dropout_rates(self.model))

    def zero_head(self) -> None:
        """Set the classifier to zero."""
        with torch.no_grad():
            for parameter in self.tower.readout.classifier.parameters():
                parameter.zero_()

    def trained(self, recipe: Recipe) -> dict[str, nn.Parameter]:
        """The parameters that the recipe moves, by name; those the caller has frozen stay so."""
        tower, depth = self.tower, len(self.tower.blocks)
        for field in ("freeze_blocks", "train_last_blocks"):
            if (getattr(recipe, field) or 0) > depth:
                raise FineTuningError(
                    f"the recipe says {field}={getattr(recipe, field)}, but the model has {depth} blocks; give {field}="
                )
        first = 0 if recipe.train_last_blocks is None else depth - recipe.train_last_blocks
        first = max(first, recipe.freeze_blocks)
        if recipe.head_only:
            parts = [tower.readout.classifier]
        else:
            parts = [*tower.blocks[first:], tower.readout]
            if first == 0 and recipe.train_last_blocks is None and not recipe.freeze_stem:
                parts.append(tower.stem)
        chosen = {id(parameter) for part in parts for parameter in part.parameters()}
        trained = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            # A layer without heads has parameters without numbers.
            if id(parameter) in chosen and parameter.requires_grad and parameter.numel()
        }
        if not trained:
            raise FineTuningError(f"recipe '{recipe.name}' leaves nothing to train: all it would move is frozen")
        return trained

    def groups(self, trained: dict[str, nn.Parameter], recipe: Recipe) -> list[dict[str, Any]]:
        """Parameters for the optimiser, by weight decay and by learning rate (`share` of the recipe's)."""
        head = {id(parameter) for parameter in self.tower.readout.classifier.parameters()}
        head_share = 1.0 if recipe.head_learning_rate is None else recipe.head_learning_rate / recipe.learning_rate
        exempt = {
            id(parameter)
            for part in self.tower.modules()
            for name, parameter in part.named_parameters(recurse=False)
            if isinstance(part, Norm | MemberNorm | Scale | MemberScale) or name.endswith("bias")
        }
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for parameter in trained.values():
            decay = 0.0 if id(parameter) in exempt else recipe.weight_decay
            share = head_share if id(parameter) in head else 1.0
            groups.setdefault((decay, share), []).append(parameter)
        return [{"params": p, "weight_decay": decay, "share": share} for (decay, share), p in groups.items()]

    @contextmanager
    def set_up(self, recipe: Recipe) -> Iterator[dict[str, nn.Parameter]]:
        """Within, only the recipe's parameters have gradients and dropout is the recipe's; then all is as before."""
        trained = self.trained(recipe)
        moving = {id(parameter) for parameter in trained.values()}
        frozen = [p for p in self.model.parameters() if p.requires_grad and id(p) not in moving]
        dropouts = [] if recipe.dropout is None else [(layer, layer.p) for layer in self.dropouts()]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for layer, _ in dropouts:
                assert recipe.dropout is not None
                layer.p = recipe.dropout
            yield trained
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
            for layer, p in dropouts:
                layer.p = p
            for parameter in trained.values():
                parameter.grad = None
            self.eval()

    def dropouts(self) -> Iterator[nn.Dropout]:
        """Dropout layers inside the blocks, but for attention weights; a hydra has none."""
        for block in self.tower.blocks:
            path = getattr(block, "path", "").split(" ")[0]
            if path:
                for name, layer in self._inner[0].get_submodule(path).named_modules():
                    if isinstance(layer, nn.Dropout) and not name.endswith(_ON_ATTENTION_WEIGHTS):
                        yield layer


def as_trainee(model: nn.Module) -> Trainee:
    """A trainee as it is, of anything else one."""
    return model if isinstance(model, Trainee) else Trainee(model)


@contextmanager
def plain_attention(device: torch.device) -> Iterator[None]:
    """On a CPU, attention as matmul, softmax, matmul: the fused kernel's backward is slow there under bf16.

    Measured with torch 2.13 on one core of a busy machine, forward and backward under bf16, without dropout: DeiT-Ti
    (50 tokens) 1.6 times, MiniLM (32 tokens) 2.1 times as fast. No difference in fp32, and none worth naming where
    attention weights have dropout, as torch then takes the plain products by itself.
    """
    if device.type != "cpu":
        yield
        return
    # Else torch would turn bf16 into fp32 for the plain products, which loses half of what is won.
    in_bf16 = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(in_bf16)
