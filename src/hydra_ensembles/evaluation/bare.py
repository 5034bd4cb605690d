"""The arithmetic of a hydra, bare: its products, attentions, norms, activations and sums, one call after another.

All but norms write into tensors that are there already, of the same shapes, and no module stands between them. Blocks
of one shape share them, as a hydra's blocks share the memory they free. What a hydra takes beyond this is overhead.

Shapes: M members, B batch, N = M * B (B in the trunk), T tokens, S tokens read, D width, H heads a member, K head dim.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hydra_ensembles.backbones import Inputs
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.parts import ACTIVATIONS, OVERWRITING, num_slices
from hydra_ensembles.backbones.stems import PatchStem
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.fusion.attention import FusedAttention
from hydra_ensembles.fusion.grouped import MemberLinear, MemberNorm


class BareError(HydraError):
    """A hydra with parts whose arithmetic is not written down here."""


class Bare:
    """`bare()` computes as much as `hydra.members(images)` does, on other numbers, and returns nothing.

    Written for what the paper's vision transformers are made of: one shared stem, pre-norm blocks with LayerNorm,
    members with equal numbers of heads, MLPs of two layers, a readout of the first token. Others are refused.
    """

    def __init__(self, hydra: Hydra, images: Inputs):
        (tower, *others) = hydra.towers.values()
        stem: Any = tower.stem
        readout: Any = tower.readout
        takes_images = type(stem) is PatchStem and isinstance(images, Tensor)
        if others or not takes_images or readout.pool != "first" or readout.hidden is not None:
            raise BareError("the bare reference is written for images, one shared stem and a readout of one token")
        assert isinstance(images, Tensor)
        self.calls: list[Callable[[], object]] = []
        self._places: dict[tuple[str | int, ...], Tensor] = {}
        self._like, tokens, width = stem.weight, stem.num_tokens, stem.width
        self.calls.append(lambda: F.conv2d(images, stem.weight, stem.bias, stride=stem.patch_size))
        rows = len(images)
        blocks: Any = tower.blocks
        x = self._place("x", rows * tokens, width)
        for layer, block in enumerate(blocks):
            if layer == tower.trunk:
                rows *= hydra.num_members
                x = self._place("x", rows * tokens, width)
            is_read = layer == len(blocks) - 1 and hydra.last_block == "read"
            read = 1 if is_read else tokens
            after = self._place(f"after {layer % 2}", rows * read, width)
            self._block(block, x, after, rows, tokens, read)
            x = after
        if tower.trunk == len(blocks):
            rows *= hydra.num_members
        pooled = self._place("pooled", rows, width)
        self._norm(readout.norm, pooled)
        self._linear(readout.classifier, pooled, self._place("logits", rows, _outputs(readout.classifier)))

    def __call__(self) -> None:
        for call in self.calls:
            call()

    def _place(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name and shape, filled at random when first asked for."""
        if (name, *shape) not in self._places:
            self._places[name, *shape] = torch.randn(shape, device=self._like.device).to(self._like.dtype)
        return self._places[name, *shape]

    def _block(self, block: Block, x_all: Tensor, after: Tensor, rows: int, tokens: int, read: int) -> None:
        """From `x_all` `(N * T, D)` into `after` `(N * S, D)`."""
        mlp: Any = block.mlp
        plain = (block.scale_attention, block.scale_mlp, block.norm_projected, mlp.gate, mlp.norm)
        if block.post_norm or any(part is not None for part in plain):
            raise BareError("the bare reference is written for pre-norm blocks without LayerScale and gates")
        width = self._like.shape[0]
        normed = self._place("normed", rows * tokens, width)
        self._norm(block.norm_attention, x_all)
        self._attention(block.attention, normed, after, rows, tokens, read)
        x = x_all[: rows * read]
        self.calls.append(lambda: torch.add(x, after, out=after))
        few = normed[: rows * read]
        self._norm(block.norm_mlp, after)
        activation = OVERWRITING.get(mlp.activation, ACTIVATIONS[mlp.activation])
        # As many slices as the hydra makes of it: parts that stay in the cache are faster here too.
        inner = mlp.fc_out.in_features
        slices = 1 if isinstance(mlp.fc_in, MemberLinear) else num_slices(few, inner)
        for part, place in zip(few.tensor_split(slices), after.tensor_split(slices), strict=True):
            hidden, out = self._place("hidden", len(part), inner), self._place("mlp", len(part), width)
            self._linear(mlp.fc_in, part, hidden)
            self.calls.append(lambda a=hidden: activation(a))  # type: ignore[misc]
            self._linear(mlp.fc_out, hidden, out)
            self.calls.append(lambda a=place, b=out: a.add_(b))  # type: ignore[misc]

    def _attention(self, attention: Any, x: Tensor, out: Tensor, rows: int, tokens: int, read: int) -> None:
        """Products of queries, keys and values, attention, and W_O into `out` `(N * S, D)`."""
        extras = (attention.q_norm, attention.k_norm, attention.gate, attention.head_scale)
        if any(part is not None for part in extras):
            raise BareError("the bare reference is written for attention without norms and gates")
        heads, qkv, qkv_bias, w_o, w_o_bias = _matrices(attention)
        size, scale, members = heads * attention.head_dim, attention.scale, len(qkv)
        packed = self._place("packed", rows, tokens, (3 if read == tokens else 2) * size)
        if read == tokens:
            self._products(x, qkv, qkv_bias, packed)
            q, k, v = _heads(packed, 3, heads)
        else:
            queries, first = self._place("queries", rows, read, size), x[: rows * read]
            self._products(first, qkv[..., :size], qkv_bias[:, :size], queries)
            self._products(x, qkv[..., size:], qkv_bias[:, size:], packed)
            (q,), (k, v) = _heads(queries, 1, heads), _heads(packed, 2, heads)
        places = out.view(members, -1, out.shape[-1])

        def attend() -> None:
            z = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).reshape(members, -1, size)
            for m in range(members):
                torch.addmm(w_o_bias[m], z[m], w_o[m], out=places[m])

        self.calls.append(attend)

    def _products(self, x: Tensor, weights: Tensor, biases: Tensor, out: Tensor) -> None:
        """One product a member, each into its part of one tensor."""
        rows, places = x.reshape(len(weights), -1, x.shape[-1]), out.view(len(weights), -1, out.shape[-1])
        for row, weight, bias, place in zip(rows, weights, biases, places, strict=True):
            self.calls.append(lambda a=bias, b=row, c=weight, d=place: torch.addmm(a, b, c, out=d))  # type: ignore[misc]

    def _linear(self, layer: Any, x: Tensor, out: Tensor) -> None:
        if layer.bias is None:
            raise BareError("the bare reference is written for layers with biases")
        if isinstance(layer, MemberLinear):
            self._products(x, layer.weight, layer.bias, out)
        else:
            self._products(x, layer.weight.T[None], layer.bias[None], out)

    def _norm(self, norm: Any, x: Tensor) -> None:
        if norm is None or norm.kind != "layer" or norm.weight is None or norm.bias is None:
            raise BareError("the bare reference is written for LayerNorm")
        several = isinstance(norm, MemberNorm)
        weights, biases = (norm.weight, norm.bias) if several else (norm.weight[None], norm.bias[None])
        for part, weight, bias in zip(x.tensor_split(len(weights)), weights, biases, strict=True):
            # torch 2.13 has no norm that writes into a given tensor: its `out` variant makes a new one and copies it.
            self.calls.append(
                lambda a=part, b=weight, c=bias: F.layer_norm(a, [norm.size], b, c, norm.eps)  # type: ignore[misc]
            )


def _matrices(attention: Any) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
    """Heads a member, W_QKV `(M, D, 3HK)` and bias, W_O `(M, HK, D)` and bias."""
    bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    has_key_bias = attention.key_bias if isinstance(attention, FusedAttention) else attention.qkv.has_key_bias
    if not has_key_bias:
        raise BareError("the bare reference is written for attention with biases")
    if isinstance(attention, FusedAttention):
        if not attention.is_equal:
            raise BareError("the bare reference is written for members with equal numbers of heads")
        members, heads = len(attention.heads_of), attention.heads_of[0]
        rows: Tensor = attention.qkv
        bias, out, out_bias = attention.qkv_bias, attention.out, attention.out_bias
    else:
        pairs = attention.qkv.matrices()
        members, heads = 1, attention.num_heads
        rows = torch.cat([weight for weight, _ in pairs])
        bias = None if pairs[0][1] is None else torch.cat([bias for _, bias in pairs])
        out, out_bias = attention.out.weight.T, attention.out.bias
    qkv = rows.reshape(members, -1, rows.shape[-1]).transpose(1, 2)
    if bias is None or out_bias is None:
        raise BareError("the bare reference is written for attention with biases")
    width = qkv.shape[1]
    return heads, qkv, bias.reshape(members, -1), out.reshape(members, -1, width), out_bias.reshape(members, width)


def _heads(packed: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    rows, tokens, _ = packed.shape
    return packed.view(rows, tokens, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind()


def _outputs(layer: Any) -> int:
    return int(layer.weight.shape[-1] if isinstance(layer, MemberLinear) else layer.weight.shape[0])
