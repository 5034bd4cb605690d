"""What the contract refuses is refused with a message that names the module and says why."""

import copy

import pytest
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from transformers import BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from families import IMAGE, _open_clip, _timm, _torchvision, model_of
from hydra_ensembles import Backbone, fuse, load_model
from hydra_ensembles.backbones import UnknownReference, UnsupportedBackbone
from hydra_ensembles.backbones.stems import InputError


class _OtherBlock(Block):
    """A block as timm's in every parameter, that halves its attention."""

    def forward(self, x, attn_mask=None, is_causal=False):
        x = x + 0.5 * self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Other(VisionTransformer):
    def forward_head(self, x, pre_logits=False):
        return 3 * super().forward_head(x, pre_logits)


class _Mean(VisionTransformer):
    def forward_head(self, x, pre_logits=False):
        return self.head(self.norm(x).mean(1))


class _MeanPooled(BertForSequenceClassification):
    def forward(self, input_ids, attention_mask=None, return_dict=True):
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state.mean(1)
        pooled = torch.tanh(self.bert.pooler.dense(hidden))
        return SequenceClassifierOutput(logits=self.classifier(pooled))


def _timm_class(name, second_block=None):
    from timm.models import vision_transformer

    model = _timm(block_fn=getattr(vision_transformer, name))
    if second_block is not None:
        model.blocks[1] = second_block(32, 4, qkv_bias=True)
    return model


def _other_model():
    return _Other(**IMAGE)


def _silent():
    """As a model of other arithmetic, before its classifier is trained."""
    model = _Mean(**IMAGE)
    torch.nn.init.zeros_(model.head.weight)
    return model


def _not_a_number():
    model = _other_model()
    model.head.weight.data[0, 0] = float("nan")
    return model


def _mean_pooled_bert():
    return _MeanPooled(model_of("bert").config)


def _overlapping_patches():
    model = _timm(dynamic_img_size=True)
    model.patch_embed.proj.stride = (2, 2)
    return model


def _other_heads():
    model = _torchvision()
    model.heads.add_module("squash", torch.nn.Sigmoid())
    return model


def _shared_block():
    model = copy.deepcopy(model_of("timm"))
    model.blocks[2] = model.blocks[0]
    return model


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


def _eva_named(name, **kwargs):
    return _timm_named(name, **IMAGE, **kwargs)


REFUSED = {
    "EVA with a norm over concatenated heads": (
        lambda: _eva_named("eva02_base_patch16_clip_224"),
        r"blocks\.0\.attn\.norm \(scale_attn_inner\): a norm over concatenated heads",
    ),
    "angles of a head's own": (
        lambda: _eva_named("vit_small_patch16_rope_mixed_224"),
        r"rope \(RotaryEmbeddingMixed\): heads or layers have angles of their own",
    ),
    "EVA with grouped queries": (
        lambda: _eva_named("vit_small_patch16_dinov3", attn_type="rope", num_kv_heads=2, qkv_fused=False),
        r"blocks\.0\.attn: grouped-query attention is not supported",
    ),
    "EVA with norms behind": (lambda: _eva_named("eva02_enormous_patch14_clip_224"), "has no place in the backbone"),
    "norm over concatenated heads": (
        lambda: _timm(scale_attn_norm=True),
        r"blocks\.0\.attn\.norm \(scale_attn_norm\): a norm over concatenated heads",
    ),
    "parallel blocks": (
        lambda: _timm_class("ParallelScalingBlock"),
        r"blocks\.0 \(ParallelScalingBlock\): parallel blocks",
    ),
    "parallel things": (lambda: _timm_class("ParallelThingsBlock"), r"blocks\.0 \(ParallelThingsBlock\): parallel"),
    "res-post-norm": (lambda: _timm_class("ResPostBlock"), r"blocks\.0 \(ResPostBlock\): norms after attention"),
    "a block of other arithmetic": (
        lambda: _timm_class("Block", _OtherBlock),
        r"blocks\.1 \(_OtherBlock\): has parameters in a known layout but computes something else",
    ),
    "a model of other arithmetic": (
        _other_model,
        "_Other: has parameters in a known layout but computes something else",
    ),
    "other arithmetic before a classifier of zeros": (_silent, "_Mean: has parameters in a known layout but computes"),
    "other arithmetic, and a class that is no number": (_not_a_number, "_Other: has parameters in a known layout but"),
    "mean pooling in a subclass": (_mean_pooled_bert, "_MeanPooled: has parameters in a known layout but computes"),
    "overlapping patches": (_overlapping_patches, "does not cut the image into patches side by side"),
    "a replaced torchvision head": (_other_heads, "heads: expected 'head', or 'pre_logits', 'act', 'head'"),
    "a block in two places": (_shared_block, r"blocks\.2 \(Block\): shares parameters with another block"),
    "no blocks": (lambda: _timm(depth=0), "has no blocks|not in a layout"),
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
    "no classifier": (_bert_base, "BertModel: has no 'classifier' on top of one encoder"),
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


def test_a_model_without_numbers_is_tried_once_it_has_some():
    model = _other_model().eval()
    patches = model.patch_embed.proj.bias.data.clone()
    model.patch_embed.proj.bias.data.fill_(float("nan"))  # as memory that is not filled yet may hold
    Backbone.of(model)
    model.patch_embed.proj.bias.data.copy_(patches)
    with pytest.raises(UnsupportedBackbone, match="computes something else"):
        Backbone.of(model)


def test_a_classifier_of_zeros_is_as_before_when_the_model_was_tried():
    model = _torchvision()
    torch.nn.init.zeros_(model.heads.head.weight)
    Backbone.of(model)
    assert not model.heads.head.weight.any()


def test_wrong_inputs_are_refused_with_what_is_expected():
    vision, text = Backbone.of(model_of("timm")), Backbone.of(model_of("bert"))
    with pytest.raises(InputError, match=r"takes images of shape \(batch, 3, 16, 16\), found \(2, 3, 32, 32\)"):
        vision(torch.zeros(2, 3, 32, 32))
    with pytest.raises(InputError, match="takes at most 32 tokens, found 40"):
        text(torch.zeros(1, 40, dtype=torch.long))
    hydra = fuse([model_of("bert")])
    for wrong, found in (
        (["hello there"], "list"),
        (torch.zeros(4, dtype=torch.long), r"torch.int64 of shape \(4,\)"),
        (torch.zeros(1, 4), r"torch.float32 of shape \(1, 4\)"),
        ({"input_ids": [[1, 2]]}, "list"),
    ):
        for asked in (text, hydra):
            with pytest.raises(InputError, match=rf"takes token ids of shape \(batch, tokens\), found {found}"):
                asked(wrong)


def test_inputs_a_backbone_does_not_read_are_refused():
    text, clip = Backbone.of(model_of("bert")), Backbone.of(model_of("open_clip"))
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(InputError, match="'position_ids' is not an input of this backbone"):
        text({"input_ids": ids, "position_ids": ids})
    with pytest.raises(InputError, match="takes 'input_ids'; found"):
        text({"attention_mask": ids})
    with pytest.raises(InputError, match=r"takes inputs by tower, \{text, vision\}; found a tensor"):
        clip(torch.zeros(1, 3, 16, 16))
    with pytest.raises(InputError, match="found \\['vision'\\]"):
        clip({"vision": torch.zeros(1, 3, 16, 16)})
    with pytest.raises(InputError, match="last_block='ful' is not known"):
        text.towers["text"](ids, "ful")


def test_electra_reads_its_own_activation():
    from transformers import ElectraConfig, ElectraForSequenceClassification

    sizes = {"vocab_size": 50, "embedding_size": 32, "hidden_size": 32, "num_hidden_layers": 2}
    model = ElectraForSequenceClassification(ElectraConfig(**sizes, num_attention_heads=4, intermediate_size=48)).eval()
    ids = torch.randint(0, 50, (2, 6))
    with torch.no_grad():
        torch.testing.assert_close(Backbone.of(model)(ids), model(ids).logits, rtol=1e-5, atol=1e-5)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    import sys

    from hydra_ensembles.backbones import load_model
    from hydra_ensembles.optional import MissingExtra

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"building a timm model needs the 'vision' extra: pip install"):
        load_model("timm:vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"problem_type": "multi_label_classification"}, "made for multi_label_classification, not for one label"),
        ({"num_labels": 1}, "has one output, as for regression"),
    ],
)
def test_models_that_do_not_choose_one_of_several_classes_are_refused(settings, said):
    config = copy.deepcopy(model_of("bert").config)
    for name, value in settings.items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedBackbone, match=said):
        Backbone.of(BertForSequenceClassification(config))


def test_another_number_of_classes_than_a_stored_classifier_has_is_refused(tmp_path):
    model_of("bert").save_pretrained(tmp_path)
    with pytest.raises(UnknownReference, match="has a classifier for 5 classes, 3 were asked for"):
        load_model(f"hf:{tmp_path}", num_labels=3)
    assert load_model(f"hf:{tmp_path}", num_labels=5).config.num_labels == 5


@pytest.mark.parametrize(
    ("ids", "mask", "told"),
    [
        ([[1, 2, 3]], [[1, 1]], r"attention_mask has shape \(1, 2\), input_ids \(1, 3\)"),
        ([[1, 9999]], None, "found 1 to 9999; take this model's own tokeniser"),
        ([[-1, 1]], None, "found -1 to 1"),
        ([[]], None, "no tokens at all"),
    ],
    ids=["mask", "beyond", "below", "empty"],
)
def test_tokens_that_a_backbone_cannot_read_are_told(ids, mask, told):
    inputs = {"input_ids": torch.tensor(ids, dtype=torch.int64)}
    inputs |= {} if mask is None else {"attention_mask": torch.tensor(mask)}
    with pytest.raises(InputError, match=told):
        Backbone.of(model_of("bert"))(inputs)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ([[0, 1]], r"token_type_ids has shape \(1, 2\), input_ids \(1, 3\)"),
        ([[0, 1, 7]], "token_type_ids are numbers from 0 to 1 here, found 0 to 7"),
    ],
)
def test_types_of_tokens_that_a_backbone_cannot_read_are_told(types, told):
    inputs = {"input_ids": torch.tensor([[1, 2, 3]]), "token_type_ids": torch.tensor(types)}
    with pytest.raises(InputError, match=told):
        Backbone.of(model_of("bert"))(inputs)
