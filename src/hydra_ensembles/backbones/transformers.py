"""transformers: BERT-layout encoders and DistilBERT for sequence classification, ViT for image classification.

transformers v5 has no head pruning and no head masks any more; its attentions reshape with a free number of heads,
so a physically smaller one runs through the stock forward.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from hydra_ensembles.backbones.attention import Attention, SplitQKV
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
from hydra_ensembles.backbones.readouts import Readout, projection_of
from hydra_ensembles.backbones.stems import PatchStem, TokenStem, images_for
from hydra_ensembles.backbones.surgery import NoHeads, channels_of, keep_columns, keep_rows
from hydra_ensembles.optional import import_extra

_BERT_LAYERS = ("query", "key", "value")
_TASKS = ("ForSequenceClassification", "ForImageClassification")


def recognises(model: nn.Module) -> bool:
    return comes_from(model, "transformers") and hasattr(model, "config")


def own_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    if _is_clip(model):
        return _clip().own_forward(model, inputs)  # type: ignore[no-any-return]
    if isinstance(inputs, Mapping):
        if "pixel_values" in inputs:
            inputs = {**inputs, "pixel_values": images_for(model, inputs)}
        return model(**inputs, return_dict=True).logits  # type: ignore[no-any-return]
    return model(images_for(model, inputs), return_dict=True).logits  # type: ignore[no-any-return]


def _is_clip(model: nn.Module) -> bool:
    return hasattr(model, "vision_model") and hasattr(model, "text_model") and hasattr(model, "logit_scale")


def _clip() -> Any:
    """The file for models of two towers, which uses this one."""
    return import_module("hydra_ensembles.backbones.transformers_clip")


def own_features(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Features of the towers of CLIP or SigLIP that there are inputs for."""
    return _clip().own_features(model, inputs)  # type: ignore[no-any-return]


def view_contrast(model: Any) -> tuple[Tensor, Tensor | None]:
    """Logit scale, as a logarithm, and bias, of CLIP or SigLIP."""
    return _clip().view_contrast(model)  # type: ignore[no-any-return]


def view(model: Any) -> Backbone:
    if _is_clip(model):
        return _clip().view(model)  # type: ignore[no-any-return]
    base = getattr(model, model.base_model_prefix, None)
    if base is None or base is model or not hasattr(model, "classifier"):
        raise UnsupportedBackbone(
            f"{type(model).__name__}: has no 'classifier' on top of one encoder; of transformers, BERT, RoBERTa and "
            f"DistilBERT {_TASKS[0]} and ViT {_TASKS[1]} are read; add others with register_backbone"
        )
    if getattr(model.config, "is_decoder", False):
        raise UnsupportedBackbone(f"{type(model).__name__}: decoders are not supported")
    if getattr(model.config, "problem_type", None) not in (None, "single_label_classification"):
        raise UnsupportedBackbone(f"{type(model).__name__}: made for {model.config.problem_type}, not for one label")
    if model.config.num_labels == 1:
        raise UnsupportedBackbone(f"{type(model).__name__}: has one output, as for regression; classes are several")
    prefix = model.base_model_prefix
    if hasattr(base, "encoder") and hasattr(base.encoder, "layer"):
        return _bert(model, base, prefix)
    if hasattr(base, "transformer") and hasattr(base.transformer, "layer"):
        return _distilbert(model, base, prefix)
    if hasattr(base, "layers") and hasattr(base.embeddings, "patch_embeddings"):
        return _vit(model, base, prefix)
    raise UnsupportedBackbone(
        f"{prefix} ({type(base).__name__}): the layouts of BERT, RoBERTa, DistilBERT and ViT are supported; "
        "add this one with register_backbone"
    )


def _bert(model: Any, base: Any, prefix: str) -> Backbone:
    blocks = bert_blocks(base, prefix)
    head = model.classifier
    if isinstance(head, nn.Linear):  # BERT: the pooler is the hidden layer
        hidden, out, act = (
            base.pooler.dense,
            head,
            activation_name(base.pooler.activation, f"{prefix}.pooler"),
        )
    else:  # RoBERTa's head applies torch.tanh itself, others name their activation
        act = activation_name(head.activation, "classifier.activation") if hasattr(head, "activation") else "tanh"
        hidden, out = head.dense, head.out_proj
    readout = Readout("first", projection_of(out), hidden=projection_of(hidden), activation=act)
    return Backbone({"text": Tower(token_stem(base.embeddings, prefix), blocks, readout)})


def bert_blocks(base: Any, prefix: str) -> list[Block]:
    """The layers of a BERT-layout encoder; `prefix` is where it stands inside a larger model."""
    blocks = []
    for i, layer in enumerate(base.encoder.layer):
        path = f"{prefix}.encoder.layer.{i}"
        attention = layer.attention
        blocks.append(
            Block(
                attention_of(attention.self, _BERT_LAYERS, attention.output.dense, f"{path}.attention.self"),
                FeedForward(
                    linear_of(layer.intermediate.dense, f"{path}.intermediate.dense"),
                    linear_of(layer.output.dense, f"{path}.output.dense"),
                    activation_name(layer.intermediate.intermediate_act_fn, f"{path}.intermediate"),
                ),
                norm_attention=norm_of(attention.output.LayerNorm, f"{path}.attention.output.LayerNorm"),
                norm_mlp=norm_of(layer.output.LayerNorm, f"{path}.output.LayerNorm"),
                post_norm=True,
                own=own_block(layer),
                shrink=partial(shrink, attention, "self", _BERT_LAYERS, None),
                path=f"{path} ({type(layer).__name__})",
            )
        )
    return blocks


def _distilbert(model: Any, base: Any, prefix: str) -> Backbone:
    names = ("q_lin", "k_lin", "v_lin")
    blocks = []
    for i, layer in enumerate(base.transformer.layer):
        path = f"{prefix}.transformer.layer.{i}"
        blocks.append(
            Block(
                attention_of(layer.attention, names, layer.attention.out_lin, f"{path}.attention"),
                FeedForward(
                    linear_of(layer.ffn.lin1, f"{path}.ffn.lin1"),
                    linear_of(layer.ffn.lin2, f"{path}.ffn.lin2"),
                    activation_name(layer.ffn.activation, f"{path}.ffn.activation"),
                ),
                norm_attention=norm_of(layer.sa_layer_norm, f"{path}.sa_layer_norm"),
                norm_mlp=norm_of(layer.output_layer_norm, f"{path}.output_layer_norm"),
                post_norm=True,
                own=own_block(layer),
                shrink=partial(shrink, layer, "attention", names, "out_lin"),
                path=f"{path} ({type(layer).__name__})",
            )
        )
    hidden, out = projection_of(model.pre_classifier), projection_of(model.classifier)
    readout = Readout("first", out, hidden=hidden, activation="relu")
    return Backbone({"text": Tower(token_stem(base.embeddings, prefix), blocks, readout)})


def _vit(model: Any, base: Any, prefix: str) -> Backbone:
    names = ("q_proj", "k_proj", "v_proj")
    blocks = []
    for i, layer in enumerate(base.layers):
        path = f"{prefix}.layers.{i}"
        blocks.append(
            Block(
                attention_of(layer.attention, names, layer.attention.o_proj, f"{path}.attention"),
                FeedForward(
                    linear_of(layer.mlp.fc1, f"{path}.mlp.fc1"),
                    linear_of(layer.mlp.fc2, f"{path}.mlp.fc2"),
                    activation_name(layer.mlp.activation_fn, f"{path}.mlp.activation_fn"),
                ),
                norm_attention=norm_of(layer.layernorm_before, f"{path}.layernorm_before"),
                norm_mlp=norm_of(layer.layernorm_after, f"{path}.layernorm_after"),
                own=own_block(layer),
                shrink=partial(shrink, layer, "attention", names, "o_proj"),
                path=f"{path} ({type(layer).__name__})",
            )
        )
    embeddings = base.embeddings
    stem = PatchStem(
        embeddings.patch_embeddings.projection,
        embeddings.patch_embeddings.image_size,
        embeddings.position_embeddings,
        cls_token=embeddings.cls_token,
    )
    out = projection_of(linear_of(model.classifier, "classifier"))
    readout = Readout("first", out, norm=norm_of(base.layernorm, f"{prefix}.layernorm"))
    return Backbone({"vision": Tower(stem, blocks, readout)})


def attention_of(attention: Any, names: Sequence[str], out: nn.Module, path: str) -> Attention:
    head_dim = getattr(attention, "attention_head_size", None) or attention.head_dim
    q, k, v = (linear_of(getattr(attention, name), f"{path}.{name}") for name in names)
    if not q.out_features == k.out_features == v.out_features:
        raise UnsupportedBackbone(f"{path}: grouped-query attention is not supported; its heads share keys")
    return Attention(SplitQKV(q, k, v), linear_of(out, f"{path} output"), head_dim)


def token_stem(embeddings: Any, prefix: str, hidden_id: int | None = None) -> TokenStem:
    counts_padding = hasattr(embeddings, "create_position_ids_from_input_ids")
    return TokenStem(
        embeddings.word_embeddings,
        embeddings.position_embeddings.weight,
        types=getattr(embeddings, "token_type_embeddings", None),
        norm=norm_of(embeddings.LayerNorm, f"{prefix}.embeddings.LayerNorm"),
        padding_id=embeddings.padding_idx if counts_padding else None,
        hidden_id=hidden_id,
    )


def shrink(owner: Any, name: str, layers: Sequence[str], out: str | None, keep: Sequence[int]) -> None:
    """Shrink the attention `owner.name`; `out` names its output layer, None where the owner's `output` has it."""
    attention = getattr(owner, name)
    head_dim = getattr(attention, "attention_head_size", None) or attention.head_dim
    channels = channels_of(keep, head_dim)
    for layer in layers:
        keep_rows(getattr(attention, layer), channels)
    keep_columns(owner.output.dense if out is None else getattr(attention, out), channels)
    for count in ("num_attention_heads", "n_heads", "num_heads"):
        if hasattr(attention, count):
            setattr(attention, count, len(keep))
    if hasattr(attention, "all_head_size"):
        attention.all_head_size = len(channels)
    if not keep:
        setattr(owner, name, NoHeads(attention, head_dim, out).train(attention.training))


def origin(model: Any) -> Origin:
    if _is_clip(model):
        return _clip().origin(model)  # type: ignore[no-any-return]
    config = model.config
    head = model.classifier
    count = (head if isinstance(head, nn.Linear) else head.out_proj).out_features
    if count != config.num_labels:  # a classifier put in by hand
        config = copy.deepcopy(config)
        config.num_labels = count
    settings = json.loads(config.to_json_string(use_diff=True))
    kwargs = {name: value for name, value in settings.items() if name not in ("transformers_version", "dtype")}
    labels = [config.id2label[i] for i in range(config.num_labels)]
    unnamed = [f"LABEL_{i}" for i in range(config.num_labels)]
    classes = None if labels == unnamed else labels
    return Origin("transformers", type(model).__name__, kwargs, classes=classes)


def build(origin: Origin) -> nn.Module:
    transformers = import_extra("transformers", "text", "building a transformers model")
    architecture = origin.architecture
    is_known = architecture.endswith(_TASKS) or architecture in _clip().MODELS
    if not is_known or not hasattr(transformers, architecture):
        raise UnsupportedBackbone(
            f"transformers has no classifier named '{architecture}'; names end in {' or '.join(_TASKS)}, "
            f"or are {' or '.join(_clip().MODELS)}"
        )
    model_class = getattr(transformers, architecture)
    return model_class(model_class.config_class.from_dict(dict(origin.kwargs)))  # type: ignore[no-any-return]
