"""What the contract refuses is refused with a message that names the module and says why."""

import copy

import pytest
import torch

from families import _open_clip, _timm, _torchvision, model_of
from hydra_ensembles import Backbone
from hydra_ensembles.backbones import UnsupportedBackbone
from hydra_ensembles.backbones.stems import InputError


def _timm_class(name):
    from timm.models import vision_transformer

    return _timm(block_fn=getattr(vision_transformer, name))


def _timm_named(name, **kwargs):
    import timm

    return timm.create_model(name, **kwargs)


def _with_lora():
    model = copy.deepcopy(model_of("timm"))
    model.blocks[1].attn.proj.lora_a = torch.nn.Parameter(torch.zeros(2, 32))
    return model


def _with_bias_table():
    model = copy.deepcopy(model_of("timm"))
    model.blocks[1].attn.table = torch.nn.Parameter(torch.zeros(2, 32))
    return model


def _with_own_activation():
    class Mystery(torch.nn.Module):
        def forward(self, x):
            return x

    model = copy.deepcopy(model_of("timm"))
    model.blocks[2].mlp.act = Mystery()
    return model


def _bert_base():
    return model_of("bert").bert


def _bert_decoder():
    model = copy.deepcopy(model_of("bert"))
    model.config.is_decoder = True
    return model


def _grouped_query():
    from timm.layers import AttentionRope

    return torch.nn.Sequential(AttentionRope(32, num_heads=4, num_kv_heads=2, qkv_fused=False))


def _mpnet():
    from transformers import MPNetConfig, MPNetForSequenceClassification

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return MPNetForSequenceClassification(MPNetConfig(**sizes, intermediate_size=48))


REFUSED = {
    "norm over concatenated heads": (
        lambda: _timm(scale_attn_norm=True),
        r"blocks\.0\.attn\.norm \(scale_attn_norm\): a norm over concatenated heads",
    ),
    "parallel blocks": (
        lambda: _timm_class("ParallelScalingBlock"),
        r"blocks\.0 \(ParallelScalingBlock\): parallel blocks",
    ),
    "parallel things": (lambda: _timm_class("ParallelThingsBlock"), r"blocks\.0 \(ParallelThingsBlock\): parallel"),
    "known layout, other arithmetic": (
        lambda: _timm_class("ResPostBlock"),
        r"blocks\.0 \(ResPostBlock\): has the parameters of a known block but computes something else",
    ),
    "differential attention": (lambda: _timm(attn_layer="diff"), r"blocks\.0\.attn \(DiffAttention\)"),
    "windowed attention": (
        lambda: _timm_named("swin_tiny_patch4_window7_224"),
        r"layers\.0\.blocks\.0 .*windowed attention",
    ),
    "windowed blocks": (lambda: _timm_named("samvit_base_patch16"), r"blocks\.0.*windowed|SAM|has no"),
    "grouped-query attention": (_grouped_query, r"0 \(AttentionRope\): grouped-query attention"),
    "distilled DeiT": (lambda: _timm_named("deit_tiny_distilled_patch16_224"), "dist_token"),
    "max pooling": (lambda: _timm(global_pool="max"), "global_pool='max' is not supported; supported: 'token'"),
    "a convolution net": (lambda: _timm_named("resnet18"), "ResNet: no family recognises this model"),
    "an adapted layer": (_with_lora, r"blocks\.1\.attn\.proj \(Linear\): a linear layer has no parameter 'lora_a'"),
    "an unread parameter": (
        _with_bias_table,
        r"blocks\.1\.attn \(Attention\): parameter 'blocks\.1\.attn\.table' has no",
    ),
    "unknown activation": (_with_own_activation, r"blocks\.2\.mlp\.act: activation Mystery is not known"),
    "no classifier": (_bert_base, "BertModel: has no classifier; load it as BertForSequenceClassification"),
    "decoder": (_bert_decoder, "decoders are not supported"),
    "another transformers family": (_mpnet, "MPNetForSequenceClassification: not in a layout that its family reads"),
    "open_clip inner norm": (
        lambda: _open_clip(vision={"scale_attn_inner": True}),
        r"visual\.transformer\.resblocks\.0\.attn\.ln_inner \(scale_attn_inner\): a norm over concatenated heads",
    ),
    "open_clip cosine attention": (
        lambda: _open_clip(vision={"scaled_cosine_attn": True}),
        r"visual\.transformer\.resblocks\.0\.attn\.logit_scale: scaled cosine attention",
    ),
    "open_clip attentional pooling": (lambda: _open_clip(vision={"attentional_pool": True}), r"visual\.attn_pool"),
    "open_clip class embedding": (
        lambda: _open_clip("CustomTextCLIP", embed_cls=True),
        r"text\.transformer: class embeddings \(CoCa\)",
    ),
    "torchvision convolution stem": (
        lambda: _torchvision_conv_stem(),
        r"conv_proj: a stem of several convolutions",
    ),
    "no transformer at all": (lambda: torch.nn.Linear(2, 2), "Linear: no family recognises this model; known: timm"),
}


def _torchvision_conv_stem():
    from torchvision.models.vision_transformer import ConvStemConfig

    return _torchvision(conv_stem_configs=[ConvStemConfig(out_channels=8, kernel_size=4, stride=4)])


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_outside_the_contract_is_refused_by_name(what):
    build, message = REFUSED[what]
    with pytest.raises(UnsupportedBackbone, match=message) as error:
        Backbone.of(build().eval())
    assert "\n" not in str(error.value)


def test_a_probe_of_a_training_model_does_not_change_its_flags():
    model = _torchvision(dropout=0.5).train()
    model.encoder.layers[1].eval()
    flags = [module.training for module in model.modules()]
    Backbone.of(model)
    assert [module.training for module in model.modules()] == flags


def test_wrong_inputs_are_refused_with_what_is_expected():
    vision, text = Backbone.of(model_of("timm")), Backbone.of(model_of("bert"))
    with pytest.raises(InputError, match=r"takes images of shape \(batch, 3, 16, 16\), found \(2, 3, 32, 32\)"):
        vision(torch.zeros(2, 3, 32, 32))
    with pytest.raises(InputError, match="takes at most 32 tokens, found 40"):
        text(torch.zeros(1, 40, dtype=torch.long))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    import sys

    from hydra_ensembles.backbones import load_model
    from hydra_ensembles.optional import MissingExtra

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"building a timm model needs the 'vision' extra: pip install"):
        load_model("timm:vit_tiny_patch16_224")
