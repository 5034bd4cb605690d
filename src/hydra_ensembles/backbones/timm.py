"""timm VisionTransformer: plain ViT, DeiT, DINOv2 style (LayerScale, registers), q/k-norm, gated MLPs.

Read from the parameter layout of timm 1.0: packed `qkv`, `proj`, `norm1`, `ls1`, `mlp.fc1`, ...
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones.attention import Attention, PackedQKV
from hydra_ensembles.backbones.backbone import Backbone, Inputs, Tower, comes_from
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.checks import own_block
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import (
    FeedForward,
    UnsupportedBackbone,
    activation_name,
    linear_of,
    norm_of,
    scale_of,
)
from hydra_ensembles.backbones.preprocessing import image_preprocess
from hydra_ensembles.backbones.readouts import LatentPool, Readout, projection_of
from hydra_ensembles.backbones.stems import PatchStem, Rotary, RotaryPatchStem, images_for
from hydra_ensembles.backbones.surgery import channels_of, keep_columns, keep_rows, packed_rows
from hydra_ensembles.optional import import_extra

_PARALLEL = ("ParallelScalingBlock", "ParallelThingsBlock", "DiffParallelScalingBlock")
_SETTINGS = (
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "qkv_bias", "qk_norm", "scale_mlp_norm", "proj_bias", "init_values", "class_token", "pos_embed"),
    *("no_embed_class", "reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "dynamic_img_size"),
    *("norm_layer", "embed_norm_layer", "act_layer", "mlp_layer"),
    *("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
)
_POOLS = {"token": "first", "avg": "mean", "map": "map"}


def recognises(model: nn.Module) -> bool:
    return comes_from(model, "timm") and hasattr(model, "patch_embed") and hasattr(model, "blocks")


def own_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    return model(images_for(model, inputs))  # type: ignore[no-any-return]


def view(model: Any) -> Backbone:
    return Backbone({"vision": tower(model)})


def tower(model: Any, prefix: str = "") -> Tower:
    """The one encoder; `prefix` is where it stands inside a larger model."""
    for needed in ("patch_embed", "blocks", "norm", "head", "global_pool", "attn_pool"):
        if not hasattr(model, needed):
            raise UnsupportedBackbone(
                f"{type(model).__name__}: has no '{needed}'; of timm, models in the layout of VisionTransformer "
                "are supported; add this one with register_backbone"
            )
    blocks = [_block(block, f"{prefix}blocks.{i}") for i, block in enumerate(model.blocks)]
    return Tower(stem(model), blocks, readout(model))


def stem(model: Any, rotary: Rotary | None = None) -> PatchStem:
    """Patches, prefix tokens and positions."""
    embed = model.patch_embed
    if not isinstance(getattr(embed, "proj", None), nn.Conv2d):
        raise UnsupportedBackbone(f"patch_embed: {type(embed).__name__} is not a patch convolution")
    settings = {
        "positions": model.pos_embed,
        "positions_on": "patches" if model.no_embed_class else "all",
        "cls_token": model.cls_token,
        "registers": model.reg_token,
        "norm_patches": norm_of(embed.norm, "patch_embed.norm"),
        "norm": norm_of(model.norm_pre, "norm_pre"),
    }
    if rotary is None:
        return PatchStem(embed.proj, embed.img_size, **settings)
    return RotaryPatchStem(embed.proj, embed.img_size, rotary, **settings)


def _block(block: Any, path: str) -> Block:
    kind = type(block).__name__
    if kind in _PARALLEL:
        raise UnsupportedBackbone(f"{path} ({kind}): parallel blocks are not supported; attention must end first")
    if kind == "ResPostBlock":
        raise UnsupportedBackbone(f"{path} ({kind}): norms after attention and MLP (res-post-norm) are not supported")
    if getattr(block, "window_size", 0):
        raise UnsupportedBackbone(f"{path} ({kind}): windowed attention is not supported")
    attn = block.attn
    if not hasattr(attn, "qkv") or not isinstance(getattr(attn, "q_norm", None), nn.Module):
        raise UnsupportedBackbone(
            f"{path}.attn ({type(attn).__name__}): expected one packed 'qkv' layer, 'q_norm', 'k_norm' and 'proj'"
        )
    if not isinstance(attn.norm, nn.Identity):
        raise UnsupportedBackbone(
            f"{path}.attn.norm (scale_attn_norm): a norm over concatenated heads ties them together, so that no "
            "head can be removed without changing the others"
        )
    qkv = linear_of(attn.qkv, f"{path}.attn.qkv")
    return Block(
        Attention(
            PackedQKV(qkv.weight, qkv.bias),
            linear_of(attn.proj, f"{path}.attn.proj"),
            head_dim=attn.head_dim,
            scale=attn.scale,
            q_norm=norm_of(attn.q_norm, f"{path}.attn.q_norm"),
            k_norm=norm_of(attn.k_norm, f"{path}.attn.k_norm"),
            gate=getattr(attn, "gate", None),
        ),
        feed_forward(block.mlp, f"{path}.mlp"),
        norm_attention=norm_of(block.norm1, f"{path}.norm1"),
        norm_mlp=norm_of(block.norm2, f"{path}.norm2"),
        scale_attention=scale_of(getattr(block, "ls1", None)),
        scale_mlp=scale_of(getattr(block, "ls2", None)),
        own=own_block(block),
        shrink=partial(shrink, attn),
        path=f"{path} ({kind})",
    )


def feed_forward(mlp: Any, path: str) -> FeedForward:
    names = ("fc1_x", "fc1_g", "fc2") if hasattr(mlp, "fc1_x") else ("fc1", None, "fc2")
    fc_in, fc_gate, fc_out = (
        None if name is None else linear_of(getattr(mlp, name, mlp), f"{path}.{name}") for name in names
    )
    assert fc_in is not None
    assert fc_out is not None
    if fc_gate is not None:
        gate = "own"
    elif hasattr(mlp, "gate_last"):
        gate = "last" if mlp.gate_last else "first"
    else:
        gate = None
    norm = norm_of(mlp.norm, f"{path}.norm")
    return FeedForward(fc_in, fc_out, activation_name(mlp.act, f"{path}.act"), gate, fc_gate, norm)


def readout(model: Any) -> Readout:
    if model.global_pool not in _POOLS:
        raise UnsupportedBackbone(
            f"global_pool='{model.global_pool}' is not supported; supported: {', '.join(map(repr, _POOLS))}"
        )
    pool = _POOLS[model.global_pool]
    return Readout(
        pool,
        None if isinstance(model.head, nn.Identity) else projection_of(linear_of(model.head, "head")),
        norm=norm_of(model.norm, "norm"),
        norm_pooled=norm_of(model.fc_norm, "fc_norm"),
        # Eva, which has no such setting, looks at all tokens with `map`.
        skip=0 if pool == "first" or getattr(model, "pool_include_prefix", pool == "map") else model.num_prefix_tokens,
        latent=_latent_pool(model.attn_pool) if pool == "map" else None,
    )


def _latent_pool(pool: Any) -> LatentPool:
    if pool.pos_embed is not None or pool.pool != "token":
        raise UnsupportedBackbone("attn_pool: position embeddings and pooling of several latents are not supported")
    return LatentPool(
        pool.latent,
        None if isinstance(pool.q, nn.Identity) else linear_of(pool.q, "attn_pool.q"),
        linear_of(pool.kv, "attn_pool.kv"),
        linear_of(pool.proj, "attn_pool.proj"),
        pool.num_heads,
        q_norm=norm_of(pool.q_norm, "attn_pool.q_norm"),
        k_norm=norm_of(pool.k_norm, "attn_pool.k_norm"),
        norm=norm_of(pool.norm, "attn_pool.norm"),
        mlp=None if pool.mlp is None else feed_forward(pool.mlp, "attn_pool.mlp"),
    )


def shrink(attn: Any, keep: Sequence[int]) -> None:
    """Head surgery on an attention with packed or three layers, in place."""
    channels = channels_of(keep, attn.head_dim)
    if attn.qkv is not None:
        keep_rows(attn.qkv, packed_rows(channels, attn.qkv.out_features // 3))
    for name in ("q_proj", "k_proj", "v_proj", "gate"):
        if getattr(attn, name, None) is not None:
            keep_rows(getattr(attn, name), channels)
    keep_columns(attn.proj, channels)
    # head_dim and scale stay; timm reshapes to attn_dim (1.0.30) and to the numbers of heads.
    attn.num_heads = attn.num_kv_heads = len(keep)
    attn.attn_dim = attn.kv_dim = len(channels)


def origin(model: Any) -> Origin:
    """Architecture by timm's name where the model carries one; of the settings, those the name does not imply."""
    config = getattr(model, "pretrained_cfg", None) or {}
    architecture = config.get("architecture") or "VisionTransformer"
    usual, settings = _usual_settings(architecture), _settings(model)
    kwargs = {name: value for name, value in settings.items() if value != usual[name]}
    if "global_pool" in kwargs:  # timm derives fc_norm from the pooling unless it is told
        kwargs["fc_norm"] = settings["fc_norm"]
    return Origin("timm", architecture, kwargs, preprocess(model, config))


def build(origin: Origin) -> nn.Module:
    timm = import_extra("timm", "vision", "building a timm model")
    kwargs = dict(origin.kwargs)
    for name in kwargs:  # others, such as checkpoint_path, could read files or fetch them
        if name not in _SETTINGS:
            raise UnsupportedBackbone(f"'{name}' is not a setting of a timm model here; known: {', '.join(_SETTINGS)}")
    if "mlp_layer" in kwargs:
        kwargs["mlp_layer"] = getattr(timm.layers, kwargs["mlp_layer"])
    if origin.architecture == "VisionTransformer":
        return timm.models.VisionTransformer(**kwargs)  # type: ignore[no-any-return]
    if ":" in origin.architecture or not timm.is_model(origin.architecture):
        raise UnsupportedBackbone(f"timm has no model named '{origin.architecture}'; timm.list_models() lists them")
    return timm.create_model(origin.architecture, pretrained=False, **kwargs)  # type: ignore[no-any-return]


@cache
def _usual_settings(architecture: str) -> dict[str, Any]:
    with torch.device("meta"):
        return _settings(build(Origin("timm", architecture)))


def _settings(model: Any) -> dict[str, Any]:
    """Everything about a VisionTransformer that its constructor takes and its forward depends on."""
    embed, block = model.patch_embed, model.blocks[0]
    mlp, attn = block.mlp, block.attn
    fc_in = mlp.fc1_x if hasattr(mlp, "fc1_x") else mlp.fc1
    layer_scale = getattr(getattr(block, "ls1", None), "init_values", None)
    return {
        **shape_settings(model),
        # timm takes int(width * ratio); half a unit keeps it from rounding down.
        "mlp_ratio": (fc_in.out_features + 0.5) / model.embed_dim,
        "qkv_bias": attn.qkv.bias is not None,
        "qk_norm": not isinstance(attn.q_norm, nn.Identity),
        "scale_mlp_norm": not isinstance(mlp.norm, nn.Identity),
        "proj_bias": attn.proj.bias is not None,
        "init_values": layer_scale,
        "class_token": model.cls_token is not None,
        "pos_embed": "none" if model.pos_embed is None else "learn",
        "no_embed_class": model.no_embed_class,
        "reg_tokens": model.num_reg_tokens,
        "pre_norm": not isinstance(model.norm_pre, nn.Identity),
        "final_norm": not (isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity)),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "pool_include_prefix": model.pool_include_prefix,
        "dynamic_img_size": model.dynamic_img_size,
        "norm_layer": "rmsnorm" if "Rms" in type(block.norm1).__name__ else "layernorm",
        "embed_norm_layer": None if isinstance(embed.norm, nn.Identity) else "layernorm",
        "act_layer": activation_name(mlp.act, "blocks.0.mlp.act"),
        "mlp_layer": "SwiGLUPacked" if getattr(mlp, "gate_last", True) is False else type(mlp).__name__,
    }


def shape_settings(model: Any) -> dict[str, Any]:
    """Sizes and dropout: what a name of timm's does not settle."""
    embed, attn = model.patch_embed, model.blocks[0].attn
    return {
        "img_size": list(embed.img_size),
        "patch_size": list(embed.patch_size),
        "in_chans": embed.proj.in_channels,
        "num_classes": 0 if isinstance(model.head, nn.Identity) else model.head.out_features,
        "global_pool": model.global_pool,
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": attn.num_heads,
        "drop_rate": model.head_drop.p,
        "proj_drop_rate": attn.proj_drop.p,
        "attn_drop_rate": attn.attn_drop.p,
        "drop_path_rate": getattr(model.blocks[-1].drop_path1, "drop_prob", 0.0),
    }


def preprocess(model: Any, config: dict[str, Any]) -> dict[str, Any] | None:
    if not config.get("mean"):
        return None
    return image_preprocess(
        model.patch_embed.img_size,
        config["mean"],
        config["std"],
        config["interpolation"],
        crop_pct=config.get("crop_pct") or 0.875,  # timm's own default
        crop_mode=config.get("crop_mode") or "center",
    )
