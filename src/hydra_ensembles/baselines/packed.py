"""Packed-Ensembles (Laurent et al., 2023) made of slices of a pre-trained network.

Shapes: B batch, M members, D width, H heads, K head dim, F hidden units of an MLP, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, Tower
from hydra_ensembles.backbones.attention import Attention, PackedQKV, PackedQKVWithoutKeyBias
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.parts import FeedForward, Norm, Scale, named_tensors, rebuild
from hydra_ensembles.backbones.readouts import Projection, Readout
from hydra_ensembles.backbones.stems import PatchStem
from hydra_ensembles.backbones.surgery import channels_of, chosen, keep_columns, keep_rows, packed_rows
from hydra_ensembles.baselines.method import BaselineError
from hydra_ensembles.baselines.starting import start_of, tower_of
from hydra_ensembles.data import Data
from hydra_ensembles.fusion import fuse
from hydra_ensembles.fusion.grouped import MemberLinear, MemberNorm, MemberScale
from hydra_ensembles.heads import single_cost
from hydra_ensembles.heads.cost import Cost
from hydra_ensembles.members import Recipe, finetune


class PackedEnsemble(nn.Module):
    """M narrow networks side by side in one, each a slice of a pre-trained network; trained together, sharing nothing.

    Every member keeps h = H * alpha / M heads of each layer, rounded, at least 1, and the same share h / H of the width
    and of the MLP's hidden units: a window that starts 1 / M further on for each member, and goes on at the front when
    it has reached the end. So M members have about alpha times the width of the network, and, for alpha above 1, start
    from slices that overlap. Every matrix of the whole is block-diagonal, one block a member.

    This is not the method of its paper, which trains such a network from nothing: a slice of a pre-trained network is
    no good network before it is trained. There are no groups within a member (the paper's gamma is 1). The grouped
    layers are those of a hydra: torch-uncertainty 0.13 has a `PackedLayerNorm` that takes mean and variance over the
    channels of all members, so that members of its packed transformer depend on each other. Like a hydra, the whole
    has no dropout.
    """

    def __init__(self, model: nn.Module, members: int = 3, alpha: float = 2.0):
        super().__init__()
        start = start_of(model, "a packed ensemble")
        heads = heads_of_member(start, members, alpha)
        slices = [slice_of(start, heads, m, members) for m in range(members)]
        self.network = fuse(slices, mlp="grouped")
        for tower in self.network.towers.values():
            _own_parts(tower, members)
        self._slice: Any = slices[0].spec()

    def fit(self, train: Data, val: Data | None, recipe: Recipe | str, **options: Any) -> None:
        """Train all members at once, each by its own loss; `options` are those of `finetune`."""
        finetune(self.network, train, val, recipe, **options)

    def members(self, inputs: Inputs) -> Tensor:
        """The logits of every member `(B, M, C)`."""
        return self.network.members(inputs)

    def cost(self, text_tokens: int | None = None) -> Cost:
        """M narrow networks."""
        one = single_cost(rebuild(self._slice), text_tokens=text_tokens)
        return Cost(sum(p.numel() for p in self.parameters()), self.network.num_members * one.mult_adds)


def heads_of_member(model: nn.Module, members: int, alpha: float) -> int:
    """How many heads of each layer a member keeps."""
    if members < 2:
        raise BaselineError(f"a packed ensemble has at least 2 members, asked for {members}")
    numbers: list[int] = sorted({block.attention.num_heads for block in tower_of(model).blocks})
    if len(numbers) != 1:
        raise BaselineError(f"layers have {numbers} heads; a packed ensemble slices a network with as many in each")
    heads = max(1, round(numbers[0] * alpha / members))
    if heads >= numbers[0]:
        raise BaselineError(
            f"alpha={alpha:g} leaves each of {members} members all {numbers[0]} heads, so all would be one network; "
            "lower alpha, or ask for more members"
        )
    return heads


def slice_of(model: nn.Module, heads: int, m: int, members: int) -> Backbone:
    """Member m: a window of heads, channels and hidden units, with the weights between them."""
    view = Backbone.of(model)
    narrow: Backbone = rebuild(view.spec())
    narrow.load_state_dict({name: tensor.detach().clone() for name, tensor in named_tensors(view)}, assign=True)
    tower: Any = next(iter(narrow.towers.values()))
    total: int = tower.blocks[0].attention.num_heads

    def window(size: int) -> Tensor:
        """A share heads / total of `size` things, from the m-th of M equal steps on."""
        return (m * size // members + torch.arange(size * heads // total)) % size

    channels = window(tower.stem.width)
    _narrow_stem(tower, channels)
    for block in tower.blocks:
        _narrow_norms(block, channels)
        _narrow_attention(block.attention, channels, window(total))
        _narrow_mlp(block.mlp, channels, window(block.mlp.fc_out.in_features))
    _narrow_readout(tower.readout, channels)
    return narrow


def _narrow_stem(tower: Tower, channels: Tensor) -> None:
    stem = tower.stem
    if isinstance(stem, PatchStem):
        _choose(stem, channels, 0, "weight", "bias")
        _choose(stem, channels, -1, "positions", "cls_token", "registers")
        _narrow_norm(stem.norm_patches, channels)
    else:
        _choose(stem, channels, -1, "words", "positions", "types")
    _narrow_norm(stem.norm, channels)


def _narrow_norms(block: Block, channels: Tensor) -> None:
    for norm in (block.norm_attention, block.norm_mlp, block.norm_projected):
        _narrow_norm(norm, channels)
    for scale in (block.scale_attention, block.scale_mlp):
        if scale is not None:
            _choose(scale, channels, 0, "weight")


def _narrow_attention(attention: Attention, channels: Tensor, heads: Tensor) -> None:
    rows = channels_of(heads.tolist(), attention.head_dim)
    qkv = attention.qkv
    if isinstance(qkv, PackedQKV):
        _choose(qkv, packed_rows(rows, len(qkv.weight) // 3), 0, "weight", "bias")
        if isinstance(qkv, PackedQKVWithoutKeyBias):
            _choose(qkv, rows, 0, "q_bias", "v_bias")
        _choose(qkv, channels, 1, "weight")
    else:
        for layer in (qkv.q, qkv.k, qkv.v):
            _narrow_linear(layer, rows, channels)
    if attention.gate is not None:
        _narrow_linear(attention.gate, rows, channels)
    if attention.head_scale is not None:
        _choose(attention, heads, 0, "head_scale")
    _narrow_linear(attention.out, channels, rows)
    attention.num_heads = len(heads)


def _narrow_mlp(mlp: FeedForward, channels: Tensor, units: Tensor) -> None:
    hidden = mlp.fc_out.in_features
    both_halves = mlp.gate in ("first", "last")
    _narrow_linear(mlp.fc_in, torch.cat([units, units + hidden]) if both_halves else units, channels)
    if mlp.fc_gate is not None:
        _narrow_linear(mlp.fc_gate, units, channels)
    _narrow_norm(mlp.norm, units)
    _narrow_linear(mlp.fc_out, channels, units)


def _narrow_readout(readout: Readout, channels: Tensor) -> None:
    """Only what is read gets narrower: a hidden layer in front of the classifier keeps its size."""
    if readout.latent is not None:
        raise BaselineError("pooling by a learned query is not sliced; give a network that reads CLS or the mean")
    _narrow_norm(readout.norm, channels)
    _narrow_norm(readout.norm_pooled, channels)
    first = readout.classifier if readout.hidden is None else readout.hidden
    assert first is not None
    _choose(first, channels, 1, "weight")


def _narrow_linear(layer: nn.Linear, rows: Tensor, columns: Tensor) -> None:
    keep_rows(layer, rows)
    keep_columns(layer, columns)


def _narrow_norm(norm: Norm | None, channels: Tensor) -> None:
    if norm is not None:
        _choose(norm, channels, 0, "weight", "bias")
        norm.size = len(channels)


def _choose(part: nn.Module, index: Tensor, dim: int, *names: str) -> None:
    for name in names:
        if (parameter := getattr(part, name)) is not None:
            setattr(part, name, chosen(parameter, index, dim))


def _own_parts(module: nn.Module, members: int) -> None:
    """Give every member its own copy of parts that are alike in all slices, as norms are that were never trained.

    `fuse` keeps such a part once; members that shared it would be trained through each other.
    """
    for name, part in module.named_children():
        if isinstance(part, Norm):
            if part.weight is not None:
                setattr(module, name, MemberNorm([part] * members))
        elif isinstance(part, Scale):
            setattr(module, name, MemberScale(part.weight.detach().expand(members, -1).clone()))
        elif isinstance(part, nn.Linear | Projection):
            weight, bias = part.weight.detach().T.expand(members, -1, -1).clone(), part.bias
            own = None if bias is None else bias.detach().expand(members, -1).clone()
            setattr(module, name, MemberLinear(weight, own))
        elif name != "stem":
            _own_parts(part, members)
