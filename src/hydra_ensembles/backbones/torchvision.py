"""torchvision VisionTransformer, whose attention is nn.MultiheadAttention."""

from collections.abc import Sequence
from functools import partial
from typing import Any

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
)
from hydra_ensembles.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, image_preprocess
from hydra_ensembles.backbones.readouts import Readout, projection_of
from hydra_ensembles.backbones.stems import PatchStem, images_for
from hydra_ensembles.backbones.surgery import shrink_packed
from hydra_ensembles.optional import import_extra

_SWAG_PIXELS, _VIT_L_16 = (384, 512, 518), (24, 1024, 16)


def recognises(model: nn.Module) -> bool:
    return comes_from(model, "torchvision") and hasattr(model, "conv_proj") and hasattr(model, "encoder")


def own_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    return model(images_for(model, inputs))  # type: ignore[no-any-return]


def view(model: Any) -> Backbone:
    if not isinstance(model.conv_proj, nn.Conv2d):
        raise UnsupportedBackbone("conv_proj: a stem of several convolutions (conv_stem_configs) is not supported")
    size = (model.image_size, model.image_size)
    stem = PatchStem(model.conv_proj, size, model.encoder.pos_embedding, cls_token=model.class_token)
    blocks = [_block(block, f"encoder.layers.{name}") for name, block in model.encoder.layers.named_children()]
    heads = dict(model.heads.named_children())
    if list(heads) not in (["head"], ["pre_logits", "act", "head"]):
        raise UnsupportedBackbone("heads: expected 'head', or 'pre_logits', 'act', 'head'; replace heads.head instead")
    hidden = heads.get("pre_logits")
    readout = Readout(
        "first",
        projection_of(linear_of(heads["head"], "heads.head")),
        norm=norm_of(model.encoder.ln, "encoder.ln"),
        hidden=None if hidden is None else projection_of(linear_of(hidden, "heads.pre_logits")),
        activation=None if hidden is None else activation_name(heads["act"], "heads.act"),
    )
    return Backbone({"vision": Tower(stem, blocks, readout)})


def _block(block: Any, path: str) -> Block:
    attn, mlp = block.self_attention, block.mlp
    return Block(
        Attention(
            PackedQKV(attn.in_proj_weight, attn.in_proj_bias),
            linear_of(attn.out_proj, f"{path}.self_attention.out_proj"),
            head_dim=attn.head_dim,
        ),
        # torchvision's MLPBlock is a Sequential: linear, activation, dropout, linear, dropout.
        FeedForward(
            linear_of(mlp[0], f"{path}.mlp.0"),
            linear_of(mlp[3], f"{path}.mlp.3"),
            activation_name(mlp[1], f"{path}.mlp.1"),
        ),
        norm_attention=norm_of(block.ln_1, f"{path}.ln_1"),
        norm_mlp=norm_of(block.ln_2, f"{path}.ln_2"),
        own=own_block(block),
        shrink=partial(_shrink, block),
        path=f"{path} ({type(block).__name__})",
    )


def _shrink(block: Any, keep: Sequence[int]) -> None:
    block.self_attention = shrink_packed(block.self_attention, keep)
    block.num_heads = len(keep)


def origin(model: Any) -> Origin:
    layers = model.encoder.layers
    kwargs = {
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_layers": len(layers),
        "num_heads": layers[0].num_heads,
        "hidden_dim": model.hidden_dim,
        "mlp_dim": model.mlp_dim,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "num_classes": model.heads.head.out_features,
        "representation_size": model.representation_size,
    }
    return Origin("torchvision", "VisionTransformer", kwargs, _preprocess(model))


def _preprocess(model: Any) -> dict[str, Any]:
    """As the published weights of such a model have it; which it holds it does not say.

    Those of IMAGENET1K_V1 resize to 256, of ViT-L/16 to 242, and cut out 224; SWAG's larger ones do not cut. SWAG's for
    224 pixels do not either, but cannot be told from the first: they need a `preprocess` of their own.
    """
    size, settings = (model.image_size, model.image_size), (IMAGENET_MEAN, IMAGENET_STD)
    if model.image_size in _SWAG_PIXELS:
        return image_preprocess(size, *settings, "bicubic")
    is_large = (len(model.encoder.layers), model.hidden_dim, model.patch_size) == _VIT_L_16
    # Sizes are rounded down, so a half more than 242 is meant.
    return image_preprocess(size, *settings, "bilinear", crop_pct=224 / 242.5 if is_large else 0.875)


def build(origin: Origin) -> nn.Module:
    models = import_extra("torchvision.models", "vision", "building a torchvision model")
    if origin.architecture == "VisionTransformer":
        return models.VisionTransformer(**origin.kwargs)  # type: ignore[no-any-return]
    known = [name for name in models.list_models() if name.startswith("vit_")]
    if origin.architecture not in known:
        raise UnsupportedBackbone(
            f"torchvision has no vision transformer named '{origin.architecture}'; it has {', '.join(known)}"
        )
    return models.get_model(origin.architecture, weights=None, **origin.kwargs)  # type: ignore[no-any-return]
