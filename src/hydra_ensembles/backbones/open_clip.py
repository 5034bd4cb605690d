"""open_clip CLIP: an image and a text tower whose attention has the parameters of nn.MultiheadAttention.

Towers borrowed from other libraries, a timm trunk and a BERT-layout text encoder, are read as those libraries' own.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import timm, transformers
from hydra_ensembles.backbones.attention import Attention, PackedQKV
from hydra_ensembles.backbones.backbone import Backbone, Contrast, Inputs, Tower, by_tower, comes_from
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
from hydra_ensembles.backbones.preprocessing import CLIP_MEAN, CLIP_STD, image_preprocess
from hydra_ensembles.backbones.readouts import Projection, Readout, projection_of
from hydra_ensembles.backbones.stems import PatchStem, TokenStem, images_for
from hydra_ensembles.backbones.surgery import shrink_packed
from hydra_ensembles.optional import import_extra

_HF_POOLS = {"MeanPooler": "masked_mean", "ClsPooler": "first", "ClsLastHiddenStatePooler": "first"}
_TEXT_POOLS = {"argmax": "index", "eos": "index", "first": "first"}


def recognises(model: nn.Module) -> bool:
    return comes_from(model, "open_clip") and hasattr(model, "visual") and hasattr(model, "logit_scale")


def own_forward(model: Any, inputs: Inputs) -> Tensor:
    fields = by_tower(inputs, {"vision": model.visual, "text": model})
    return model.get_logits(images_for(model, fields["vision"]), fields["text"])[0]  # type: ignore[no-any-return]


def own_features(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Features of the towers that there are inputs for; open_clip's own text tower wants texts of full length."""
    found = {}
    if "vision" in inputs:
        found["vision"] = model.encode_image(images_for(model, inputs["vision"]))
    if "text" in inputs:
        ids = inputs["text"]
        missing = 0 if _is_borrowed(getattr(model, "text", None)) else model.context_length - ids.shape[1]
        found["text"] = model.encode_text(F.pad(ids, (0, missing)))
    return found


def _is_borrowed(text: Any) -> bool:
    """Is this text tower one of transformers?"""
    return hasattr(text, "pooler") and hasattr(text, "proj")


def view_contrast(model: Any) -> tuple[Tensor, Tensor | None]:
    """Logit scale, as a logarithm, and bias."""
    return model.logit_scale, model.logit_bias


def view(model: Any) -> Backbone:
    # CLIP keeps the text tower's parts as its own attributes, CustomTextCLIP in a module `text`.
    text, prefix = (model.text, "text.") if hasattr(model, "text") else (model, "")
    towers = {"vision": _vision(model.visual), "text": _text(text, prefix)}
    return Backbone(towers, Contrast(model.logit_scale, model.logit_bias))


def _vision(visual: Any) -> Tower:
    if hasattr(visual, "trunk"):
        return _timm_tower(visual)
    if not hasattr(visual, "conv1") or not hasattr(visual, "transformer"):
        raise UnsupportedBackbone(
            f"visual ({type(visual).__name__}): of image towers, open_clip's own VisionTransformer and timm's are read"
        )
    if visual.attn_pool is not None:
        raise UnsupportedBackbone("visual.attn_pool: attentional pooling is not supported")
    if visual.pool_type not in ("tok", "avg") or visual.output_tokens:
        raise UnsupportedBackbone(
            f"visual: pool_type='{visual.pool_type}' with output_tokens={visual.output_tokens} is not supported"
        )
    stem = PatchStem(
        visual.conv1,
        visual.image_size,
        visual.positional_embedding,
        cls_token=visual.class_embedding,
        norm=norm_of(visual.ln_pre, "visual.ln_pre"),
    )
    norm = norm_of(visual.ln_post, "visual.ln_post")
    is_mean = visual.pool_type == "avg"
    readout = Readout(
        "mean" if is_mean else "first",
        None if visual.proj is None else Projection(visual.proj, transposed=True),
        norm=None if visual.final_ln_after_pool else norm,
        norm_pooled=norm if visual.final_ln_after_pool else None,
        skip=1 if is_mean else 0,
    )
    return Tower(stem, _blocks(visual.transformer, "visual.transformer"), readout)


def _timm_tower(visual: Any) -> Tower:
    """A trunk of timm; its classifier, or a linear layer behind it, leads to the features."""
    tower, layers = timm.tower(visual.trunk, "visual.trunk."), dict(visual.head.named_children())
    layers.pop("drop", None)
    if not layers:
        return tower
    if list(layers) != ["proj"] or tower.readout.classifier is not None:
        raise UnsupportedBackbone(f"visual.head: {', '.join(layers)} is not supported; a linear 'proj' is")
    tower.readout.classifier = projection_of(linear_of(layers["proj"], "visual.head.proj"))
    return tower


def _hf_tower(text: Any, prefix: str) -> Tower:
    """A BERT-layout encoder of transformers. It makes its own mask, from the padding token."""
    base, path = text.transformer, f"{prefix}transformer"
    if not hasattr(base, "encoder") or not hasattr(base.encoder, "layer"):
        raise UnsupportedBackbone(f"{path} ({type(base).__name__}): of borrowed text towers, BERT's layout is read")
    pool, hidden, activation = _HF_POOLS.get(type(text.pooler).__name__), None, None
    if pool is None:
        raise UnsupportedBackbone(f"{prefix}pooler: {type(text.pooler).__name__} is not supported")
    if type(text.pooler).__name__ == "ClsPooler" and getattr(base, "pooler", None) is not None:
        hidden, activation = base.pooler.dense, activation_name(base.pooler.activation, f"{path}.pooler")
    out: Any = text.proj
    if not isinstance(out, nn.Identity | nn.Linear):
        raise UnsupportedBackbone(f"{prefix}proj: {type(out).__name__} is not supported; a linear layer is")
    readout = Readout(
        pool,
        None if isinstance(out, nn.Identity) else projection_of(out),
        hidden=None if hidden is None else projection_of(hidden),
        activation=activation,
    )
    stem = transformers.token_stem(base.embeddings, path, hidden_id=text.config.pad_token_id)
    return Tower(stem, transformers.bert_blocks(base, path), readout)


def _text(text: Any, prefix: str) -> Tower:
    if _is_borrowed(text):
        return _hf_tower(text, prefix)
    if not hasattr(text, "token_embedding") or not hasattr(text, "transformer"):
        raise UnsupportedBackbone(
            f"text ({type(text).__name__}): of text towers, open_clip's own TextTransformer and BERT's layout are read"
        )
    pool = _get(text, "pool_type", "text_pool_type")
    if getattr(text, "cls_emb", None) is not None or getattr(text, "use_pad_mask", False):
        raise UnsupportedBackbone(f"{prefix}transformer: class embeddings (CoCa) and padding masks are not supported")
    if pool not in _TEXT_POOLS:
        raise UnsupportedBackbone(
            f"{prefix}transformer: pool_type='{pool}' is not supported; supported: {', '.join(_TEXT_POOLS)}"
        )
    stem = TokenStem(
        text.token_embedding,
        text.positional_embedding,
        causal=text.attn_mask is not None,
        pool=pool if _TEXT_POOLS[pool] == "index" else None,
        eos_id=_get(text, "eos_id", "text_eos_id") if pool == "eos" else None,
    )
    projection = text.text_projection
    if projection is not None:
        is_layer = isinstance(projection, nn.Linear)
        projection = projection_of(projection) if is_layer else Projection(projection, transposed=True)
    readout = Readout(_TEXT_POOLS[pool], projection, norm=norm_of(text.ln_final, f"{prefix}ln_final"))
    return Tower(stem, _blocks(text.transformer, f"{prefix}transformer"), readout)


def _get(text: Any, own: str, inside_clip: str) -> Any:
    return getattr(text, own) if hasattr(text, own) else getattr(text, inside_clip)


def _blocks(transformer: Any, path: str) -> list[Block]:
    return [_block(block, f"{path}.resblocks.{i}") for i, block in enumerate(transformer.resblocks)]


def _block(block: Any, path: str) -> Block:
    attn, mlp = block.attn, block.mlp
    if not hasattr(attn, "in_proj_weight"):
        raise UnsupportedBackbone(f"{path}.attn ({type(attn).__name__}): has no 'in_proj_weight'")
    if not isinstance(getattr(attn, "ln_inner", nn.Identity()), nn.Identity):
        raise UnsupportedBackbone(
            f"{path}.attn.ln_inner (scale_attn_inner): a norm over concatenated heads ties them together, so that "
            "no head can be removed without changing the others"
        )
    if getattr(attn, "logit_scale", None) is not None:
        raise UnsupportedBackbone(f"{path}.attn.logit_scale: scaled cosine attention is not supported")
    return Block(
        Attention(
            PackedQKV(attn.in_proj_weight, attn.in_proj_bias),
            linear_of(attn.out_proj, f"{path}.attn.out_proj"),
            head_dim=attn.head_dim,
            q_norm=norm_of(getattr(attn, "ln_q", nn.Identity()), f"{path}.attn.ln_q"),
            k_norm=norm_of(getattr(attn, "ln_k", nn.Identity()), f"{path}.attn.ln_k"),
            head_scale=getattr(attn, "head_scale", None),
        ),
        FeedForward(
            linear_of(mlp.c_fc, f"{path}.mlp.c_fc"),
            linear_of(mlp.c_proj, f"{path}.mlp.c_proj"),
            activation_name(mlp.gelu, f"{path}.mlp.gelu"),
            norm=norm_of(getattr(mlp, "ln", nn.Identity()), f"{path}.mlp.ln"),
        ),
        norm_attention=norm_of(block.ln_1, f"{path}.ln_1"),
        norm_mlp=norm_of(block.ln_2, f"{path}.ln_2"),
        norm_projected=norm_of(getattr(block, "ln_attn", nn.Identity()), f"{path}.ln_attn"),
        scale_attention=scale_of(block.ls_1),
        scale_mlp=scale_of(block.ls_2),
        own=own_block(block),
        shrink=partial(_shrink, block),
        path=f"{path} ({type(block).__name__})",
    )


def _shrink(block: Any, keep: Sequence[int]) -> None:
    block.attn = shrink_packed(block.attn, keep)


def origin(model: Any) -> Origin:
    text = model.text if hasattr(model, "text") else model
    visual = model.visual
    is_timm, is_hf = hasattr(visual, "trunk"), _is_borrowed(text)
    kwargs = {
        "embed_dim": _embed_dim(model),
        "quick_gelu": not is_timm and type(visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU",
        "init_logit_bias": None if model.logit_bias is None else 0.0,
        "nonscalar_logit_scale": model.logit_scale.ndim == 1,
        "vision_cfg": _timm_settings(visual) if is_timm else _vision_settings(visual),
        "text_cfg": _hf_settings(text) if is_hf else _text_settings(text),
    }
    return Origin("open_clip", type(model).__name__, kwargs, _preprocess(visual))


def _embed_dim(model: Any) -> int:
    """How long features are: as long as what the image tower ends in."""
    classifier = _vision(model.visual).readout.classifier
    if classifier is not None:
        return classifier.out_features
    return int(model.visual.output_dim if hasattr(model.visual, "output_dim") else model.visual.trunk.num_features)


def _vision_settings(visual: Any) -> dict[str, Any]:
    return {
        "image_size": list(visual.image_size),
        "patch_size": list(visual.patch_size),
        "head_width": visual.transformer.resblocks[0].attn.head_dim,
        "no_ln_pre": isinstance(visual.ln_pre, nn.Identity),
        "pool_type": visual.pool_type,
        "final_ln_after_pool": visual.final_ln_after_pool,
        **_transformer_settings(visual.transformer),
    }


def _text_settings(text: Any) -> dict[str, Any]:
    projection = text.text_projection
    return {
        "context_length": text.context_length,
        "vocab_size": text.vocab_size,
        "heads": text.transformer.resblocks[0].attn.num_heads,
        "no_causal_mask": text.attn_mask is None,
        "pool_type": _get(text, "pool_type", "text_pool_type"),
        "eos_id": _get(text, "eos_id", "text_eos_id"),
        "proj_type": "none" if projection is None else "linear",
        "proj_bias": isinstance(projection, nn.Linear) and projection.bias is not None,
        **_transformer_settings(text.transformer),
    }


def _timm_settings(visual: Any) -> dict[str, Any]:
    """Our own words: open_clip's would name a model and perhaps fetch it."""
    trunk, head = timm.origin(visual.trunk), dict(visual.head.named_children())
    layer = head.get("proj")
    biased = None if layer is None else layer.bias is not None
    return {"trunk": {"architecture": trunk.architecture, "kwargs": trunk.kwargs}, "proj_bias": biased}


def _hf_settings(text: Any) -> dict[str, Any]:
    pooler = {"MeanPooler": "mean_pooler", "ClsPooler": "cls_pooler"}.get(type(text.pooler).__name__)
    config = json.loads(text.config.to_json_string(use_diff=True))
    config = {name: value for name, value in config.items() if name not in ("transformers_version", "dtype")}
    return {
        "config": {**config, "model_type": text.config.model_type},
        "pooler": pooler or "cls_last_hidden_state_pooler",
        "proj": None if isinstance(text.proj, nn.Identity) else "linear",
        "has_pooler": getattr(text.transformer, "pooler", None) is not None,
    }


def _preprocess(visual: Any) -> dict[str, Any]:
    """Of images; how texts become tokens is not read yet. Without a config of its own, a model takes OpenAI's."""
    config = getattr(visual, "preprocess_cfg", None) or {}
    modes = {"shortest": "center", "squash": "squash", "longest": "border"}
    return image_preprocess(
        visual.image_size,
        config.get("mean", CLIP_MEAN),
        config.get("std", CLIP_STD),
        config.get("interpolation", "bicubic"),
        crop_mode=modes[config.get("resize_mode", "shortest")],
    )


def _transformer_settings(transformer: Any) -> dict[str, Any]:
    block = transformer.resblocks[0]
    attn, mlp = block.attn, block.mlp
    return {
        "width": transformer.width,
        "layers": len(transformer.resblocks),
        "mlp_ratio": (mlp.c_fc.out_features + 0.5) / transformer.width,
        "ls_init_value": 1e-5 if hasattr(block.ls_1, "gamma") else None,
        "block_type": "custom" if hasattr(block, "ln_attn") else None,
        "qk_norm": not isinstance(getattr(attn, "ln_q", nn.Identity()), nn.Identity),
        "scale_heads": getattr(attn, "head_scale", None) is not None,
        "scale_attn": not isinstance(getattr(block, "ln_attn", nn.Identity()), nn.Identity),
        "scale_fc": not isinstance(getattr(mlp, "ln", nn.Identity()), nn.Identity),
    }


def build(origin: Origin) -> nn.Module:
    open_clip = import_extra("open_clip", "clip", "building an open_clip model")
    for cfg in ("vision_cfg", "text_cfg"):
        for name in origin.kwargs.get(cfg, {}):
            if name.startswith(("timm_", "hf_")):  # they would fetch
                raise UnsupportedBackbone(f"{cfg}: '{name}' would fetch a tower; build the model with open_clip itself")
    if "trunk" in origin.kwargs.get("vision_cfg", {}) or "config" in origin.kwargs.get("text_cfg", {}):
        return _with_borrowed_towers(open_clip, origin.kwargs)
    if origin.architecture in ("CLIP", "CustomTextCLIP"):
        return getattr(open_clip, origin.architecture)(**origin.kwargs)  # type: ignore[no-any-return]
    if origin.architecture not in open_clip.list_models():
        raise UnsupportedBackbone(
            f"open_clip has no model named '{origin.architecture}'; open_clip.list_models() lists them"
        )
    config = open_clip.get_model_config(origin.architecture)
    borrowed = ("timm_model_name" in config["vision_cfg"], "hf_model_name" in config["text_cfg"])
    if "multimodal_cfg" in config or any(borrowed):
        raise UnsupportedBackbone(
            f"{origin.architecture}: by name, models with open_clip's own two towers are built; load others yourself"
        )
    model_class = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    return model_class(**config, **origin.kwargs)  # type: ignore[no-any-return]


def _with_borrowed_towers(open_clip: Any, kwargs: dict[str, Any]) -> nn.Module:
    """A model of open_clip's class whose towers, one or both, are built here, as open_clip would fetch them."""
    small = {"width": 64, "layers": 1}
    vision, text = kwargs["vision_cfg"], kwargs["text_cfg"]
    settings = {
        **kwargs,
        "vision_cfg": {**small, "image_size": 16, "patch_size": 16} if "trunk" in vision else vision,
        "text_cfg": {**small, "heads": 1, "context_length": 4, "vocab_size": 8} if "config" in text else text,
    }
    model = open_clip.CustomTextCLIP(**settings)
    if "trunk" in vision:
        model.visual = _build_timm_tower(open_clip, vision, kwargs["embed_dim"])
    if "config" in text:
        model.text = _build_hf_tower(open_clip, text, kwargs["embed_dim"])
        model.vocab_size, model.context_length = model.text.vocab_size, model.text.context_length
    return model  # type: ignore[no-any-return]


def _build_timm_tower(open_clip: Any, settings: dict[str, Any], embed_dim: int) -> nn.Module:
    trunk: Any = timm.build(Origin("timm", settings["trunk"]["architecture"], settings["trunk"]["kwargs"]))
    # Not by its constructor, which builds trunks by timm's names alone.
    kind = open_clip.timm_model.TimmModel
    visual = kind.__new__(kind)
    nn.Module.__init__(visual)
    visual.image_size, visual.trunk, visual.head = trunk.patch_embed.img_size, trunk, nn.Sequential()
    if settings["proj_bias"] is not None:
        visual.head.add_module("drop", nn.Dropout(0.0))
        visual.head.add_module("proj", nn.Linear(trunk.num_features, embed_dim, bias=settings["proj_bias"]))
    return visual  # type: ignore[no-any-return]


def _build_hf_tower(open_clip: Any, settings: dict[str, Any], embed_dim: int) -> nn.Module:
    library = import_extra("transformers", "text", "building a text tower of transformers")
    config = library.AutoConfig.for_model(**settings["config"])
    encoder = open_clip.hf_model.HFTextEncoder
    text = encoder("", embed_dim, config=config, pooler_type=settings["pooler"], proj_type=settings["proj"])
    if not settings["has_pooler"]:
        text.transformer.pooler = None
    return text  # type: ignore[no-any-return]
