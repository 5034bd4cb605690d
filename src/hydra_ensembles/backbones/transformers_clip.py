"""transformers CLIP and SigLIP: two towers with the same layers, joined by a scaled cosine similarity.

CLIP reads its image from the CLS token and its text, causal, from the end-of-text token; SigLIP its image by map
pooling and its text from the last token.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from hydra_ensembles.backbones import transformers as family
from hydra_ensembles.backbones.attention import PackedQKV
from hydra_ensembles.backbones.backbone import Backbone, Contrast, Inputs, Tower, by_tower
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.checks import own_block
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import FeedForward, UnsupportedBackbone, activation_name, linear_of, norm_of
from hydra_ensembles.backbones.preprocessing import CLIP_MEAN, CLIP_STD, image_preprocess
from hydra_ensembles.backbones.readouts import LatentPool, Readout, projection_of
from hydra_ensembles.backbones.stems import PatchStem, TokenStem, images_for

MODELS = ("CLIPModel", "SiglipModel")
_LAYERS = ("q_proj", "k_proj", "v_proj")
_OLD_EOS = 2  # of configs from before transformers knew the real one: there the highest id is the end of text


def own_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    fields = by_tower(inputs, {"vision": model, "text": model})
    images, texts = fields["vision"], fields["text"]
    named = {} if isinstance(images, Tensor) else dict(images)
    named["pixel_values"] = images_for(model, images)
    named |= {"input_ids": texts} if isinstance(texts, Tensor) else dict(texts)
    return model(**named, return_dict=True).logits_per_image  # type: ignore[no-any-return]


def own_features(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Features of the towers that there are inputs for."""
    found: dict[str, Any] = {}
    if "vision" in inputs:
        found["vision"] = model.get_image_features(pixel_values=images_for(model, inputs["vision"]))
    if "text" in inputs:
        found["text"] = model.get_text_features(input_ids=inputs["text"])
    return {tower: output.pooler_output for tower, output in found.items()}


def view_contrast(model: Any) -> tuple[Tensor, Tensor | None]:
    """Logit scale, as a logarithm, and bias."""
    return model.logit_scale, getattr(model, "logit_bias", None)


def view(model: Any) -> Backbone:
    is_siglip = hasattr(model, "logit_bias")
    vision, text = model.vision_model, model.text_model
    towers = {"vision": _siglip_vision(vision) if is_siglip else _clip_vision(vision, model.visual_projection)}
    towers["text"] = _siglip_text(text) if is_siglip else _clip_text(text, model.text_projection)
    return Backbone(towers, Contrast(model.logit_scale, getattr(model, "logit_bias", None)))


def _clip_vision(vision: Any, projection: Any) -> Tower:
    embeddings = vision.embeddings
    stem = PatchStem(
        embeddings.patch_embedding,
        (embeddings.image_size, embeddings.image_size),
        embeddings.position_embedding.weight,
        cls_token=embeddings.class_embedding,
        norm=norm_of(vision.pre_layrnorm, "vision_model.pre_layrnorm"),
    )
    norm = norm_of(vision.post_layernorm, "vision_model.post_layernorm")
    out = projection_of(linear_of(projection, "visual_projection"))
    return Tower(stem, _blocks(vision, "vision_model"), Readout("first", out, norm_pooled=norm))


def _siglip_vision(vision: Any) -> Tower:
    embeddings = vision.embeddings
    stem = PatchStem(
        embeddings.patch_embedding,
        (embeddings.image_size, embeddings.image_size),
        embeddings.position_embedding.weight,
    )
    if not getattr(vision, "use_head", True):
        raise UnsupportedBackbone("vision_model: SigLIP without its pooling head has no features to compare")
    head = vision.head
    attention = head.attention
    pool = LatentPool(
        head.probe,
        None,
        None,
        linear_of(attention.out_proj, "vision_model.head.attention.out_proj"),
        attention.num_heads,
        norm=norm_of(head.layernorm, "vision_model.head.layernorm"),
        mlp=_mlp(head.mlp, "vision_model.head.mlp"),
        qkv=PackedQKV(attention.in_proj_weight, attention.in_proj_bias),
    )
    norm = norm_of(vision.post_layernorm, "vision_model.post_layernorm")
    return Tower(stem, _blocks(vision, "vision_model"), Readout("map", None, norm=norm, latent=pool))


def _clip_text(text: Any, projection: Any) -> Tower:
    is_old = text.eos_token_id == _OLD_EOS
    stem = TokenStem(
        text.embeddings.token_embedding,
        text.embeddings.position_embedding.weight,
        causal=True,
        pool="argmax" if is_old else "eos",
        eos_id=None if is_old else text.eos_token_id,
    )
    norm = norm_of(text.final_layer_norm, "text_model.final_layer_norm")
    out = projection_of(linear_of(projection, "text_projection"))
    return Tower(stem, _blocks(text, "text_model"), Readout("index", out, norm=norm))


def _siglip_text(text: Any) -> Tower:
    stem = TokenStem(text.embeddings.token_embedding, text.embeddings.position_embedding.weight)
    norm = norm_of(text.final_layer_norm, "text_model.final_layer_norm")
    out = projection_of(linear_of(text.head, "text_model.head"))
    return Tower(stem, _blocks(text, "text_model"), Readout("last", out, norm=norm))


def _blocks(tower: Any, prefix: str) -> list[Block]:
    return [_block(layer, f"{prefix}.encoder.layers.{i}") for i, layer in enumerate(tower.encoder.layers)]


def _block(layer: Any, path: str) -> Block:
    attention = layer.self_attn
    return Block(
        family.attention_of(attention, _LAYERS, attention.out_proj, f"{path}.self_attn"),
        _mlp(layer.mlp, f"{path}.mlp"),
        norm_attention=norm_of(layer.layer_norm1, f"{path}.layer_norm1"),
        norm_mlp=norm_of(layer.layer_norm2, f"{path}.layer_norm2"),
        own=own_block(layer, attention_mask=None),
        shrink=partial(family.shrink, layer, "self_attn", _LAYERS, "out_proj"),
        path=f"{path} ({type(layer).__name__})",
    )


def _mlp(mlp: Any, path: str) -> FeedForward:
    return FeedForward(
        linear_of(mlp.fc1, f"{path}.fc1"),
        linear_of(mlp.fc2, f"{path}.fc2"),
        activation_name(mlp.activation_fn, f"{path}.activation_fn"),
    )


def origin(model: Any) -> Origin:
    settings = json.loads(model.config.to_json_string(use_diff=True))
    kwargs = {name: value for name, value in settings.items() if name not in ("transformers_version", "dtype")}
    size = model.config.vision_config.image_size
    if hasattr(model, "logit_bias"):  # SigLIP's own preprocessing squeezes images, CLIP's cuts them
        preprocess = image_preprocess((size, size), [0.5] * 3, [0.5] * 3, "bicubic", crop_mode="squash")
    else:
        preprocess = image_preprocess((size, size), CLIP_MEAN, CLIP_STD, "bicubic")
    return Origin("transformers", type(model).__name__, kwargs, preprocess)
