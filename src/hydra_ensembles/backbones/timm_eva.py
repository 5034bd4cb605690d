"""timm Eva: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with rotary position embeddings.

A worked example of a family (docs/adding-a-backbone.md): what is like timm's plain ViT is taken from there.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import timm
from hydra_ensembles.backbones.attention import Attention, PackedQKV, PackedQKVWithoutKeyBias, SplitQKV
from hydra_ensembles.backbones.backbone import Backbone, Tower, comes_from
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.checks import evaluating, own_block
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import Scale, UnsupportedBackbone, linear_of, norm_of
from hydra_ensembles.backbones.stems import Rotary
from hydra_ensembles.backbones.surgery import channels_of, chosen

own_forward, build = timm.own_forward, timm.build


def recognises(model: nn.Module) -> bool:
    blocks: Any = getattr(model, "blocks", None)
    return comes_from(model, "timm") and hasattr(model, "rope") and bool(blocks) and hasattr(blocks[0], "gamma_1")


def view(model: Any) -> Backbone:
    blocks = [_block(block, f"blocks.{i}") for i, block in enumerate(model.blocks)]
    return Backbone({"vision": Tower(timm.stem(model, _rotary(model)), blocks, timm.readout(model))})


def _rotary(model: Any) -> Rotary | None:
    """Sines and cosines of every patch, which timm keeps behind each other."""
    if model.rope is None:
        return None
    with evaluating(model.rope):
        table = model.rope.get_embed(list(model.patch_embed.grid_size) if model.dynamic_img_size else None)
    if table.ndim != 2:
        raise UnsupportedBackbone(f"rope ({type(model.rope).__name__}): heads or layers have angles of their own")
    sin, cos = table.chunk(2, dim=-1)
    settings = {
        k: v for k, v in vars(model.rope).items() if isinstance(v, int | float | str | tuple) and k != "training"
    }
    return Rotary(torch.stack([cos, sin]), {**settings, "kind": type(model.rope).__name__})


def _block(block: Any, path: str) -> Block:
    kind, attn = type(block).__name__, block.attn
    if not isinstance(attn.norm, nn.Identity):
        raise UnsupportedBackbone(
            f"{path}.attn.norm (scale_attn_inner): a norm over concatenated heads ties them together"
        )
    out = linear_of(attn.proj, f"{path}.attn.proj")
    q_norm, k_norm = norm_of(attn.q_norm, f"{path}.attn.q_norm"), norm_of(attn.k_norm, f"{path}.attn.k_norm")
    gate, interleaved = getattr(attn, "gate", None), not getattr(attn, "rotate_half", False)
    return Block(
        Attention(_qkv(attn, path), out, attn.head_dim, attn.scale, q_norm, k_norm, gate, interleaved=interleaved),
        timm.feed_forward(block.mlp, f"{path}.mlp"),
        norm_attention=norm_of(block.norm1, f"{path}.norm1"),
        norm_mlp=norm_of(block.norm2, f"{path}.norm2"),
        scale_attention=None if block.gamma_1 is None else Scale(block.gamma_1),
        scale_mlp=None if block.gamma_2 is None else Scale(block.gamma_2),
        own=own_block(block),
        shrink=partial(_shrink, block),
        path=f"{path} ({kind})",
    )


def _qkv(attn: Any, path: str) -> PackedQKV | SplitQKV:
    if getattr(attn, "num_kv_heads", attn.num_heads) != attn.num_heads:
        raise UnsupportedBackbone(f"{path}.attn: grouped-query attention is not supported; heads share keys and values")
    if attn.qkv is None:
        return SplitQKV(attn.q_proj, attn.k_proj, attn.v_proj)
    biases = attn.qkv if isinstance(attn.qkv, QueryValueBias) else attn
    if getattr(biases, "q_bias", None) is not None:
        return PackedQKVWithoutKeyBias(attn.qkv.weight, biases.q_bias, biases.v_bias)
    return PackedQKV(attn.qkv.weight, attn.qkv.bias)


class QueryValueBias(nn.Linear):
    """A packed layer whose keys have no bias, as in EvaAttention."""

    def __init__(self, attn: Any):
        super().__init__(1, 1, bias=False, device="meta")
        self.weight, self.q_bias, self.v_bias = attn.qkv.weight, attn.q_bias, attn.v_bias
        self.out_features = len(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias]))


def _shrink(block: Any, keep: Sequence[int]) -> None:
    attn = block.attn = _freed(block.attn)
    timm.shrink(attn, keep)
    if isinstance(attn.qkv, QueryValueBias):
        channels = channels_of(keep, attn.head_dim)
        attn.qkv.q_bias, attn.qkv.v_bias = chosen(attn.qkv.q_bias, channels), chosen(attn.qkv.v_bias, channels)


def _freed(old: Any) -> Any:
    """EvaAttention insists that its heads fill the width; timm's AttentionRope computes the same and does not."""
    from timm.layers import AttentionRope

    if isinstance(old, AttentionRope):
        return old
    new: Any = AttentionRope(old.head_dim, num_heads=1, num_prefix_tokens=old.num_prefix_tokens, device="meta")
    new.rotate_half, new.fused_attn, new.qkv = old.rotate_half, old.fused_attn, None
    for name, child in old.named_children():
        setattr(new, name, child)
    if old.q_bias is not None:
        new.qkv = QueryValueBias(old)
    return new.train(old.training)


def origin(model: Any) -> Origin:
    """By timm's name, which says all but these settings."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if "architecture" not in config:
        raise UnsupportedBackbone("an Eva without a name; build it with timm.create_model, which gives it one")
    kwargs = {**timm.shape_settings(model), "dynamic_img_size": model.dynamic_img_size}
    return Origin("timm", config["architecture"], kwargs, timm.preprocess(model, config))
