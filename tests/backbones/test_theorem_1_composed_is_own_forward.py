"""Theorem 1: the composed backbone is the model's own forward."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from families import BY_NAME, CASES, model_of, own_output
from hydra_ensembles import Backbone
from hydra_ensembles.backbones import family_of
from hydra_ensembles.heads import own_logits

names = pytest.mark.parametrize("name", [case.name for case in CASES])
batches, lengths, seeds = st.integers(1, 4), st.integers(1, 12), st.integers(0, 1000)


def composed(backbone: Backbone, inputs: object, last_block: str = "read") -> dict[str, Tensor]:
    with torch.no_grad():
        if len(backbone.towers) == 1:
            (tower,) = backbone.towers.values()
            return {"logits": tower(inputs, last_block)}
        return {name: tower(inputs[name], last_block) for name, tower in backbone.towers.items()}


@names
@given(batch=batches, tokens=lengths, seed=seeds)
def test_the_composed_backbone_is_the_own_forward(name, batch, tokens, seed):
    inputs = BY_NAME[name].inputs(batch, tokens, seed)
    expected = own_output(model_of(name), inputs)
    for last_block in ("full", "read"):
        found = composed(Backbone.of(model_of(name)), inputs, last_block)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@names
@given(tokens=lengths, seed=seeds)
def test_batch_order_and_split_do_not_matter(name, tokens, seed):
    backbone = Backbone.of(model_of(name))
    inputs = BY_NAME[name].inputs(4, tokens, seed)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))

    def rows(index: Tensor) -> object:
        if isinstance(inputs, Tensor):
            return inputs[index]
        return {field: part[index] for field, part in inputs.items()}

    whole = composed(backbone, inputs)
    for index in (order, order[:1], order[1:]):
        part = composed(backbone, rows(index))
        torch.testing.assert_close(part, {k: v[index] for k, v in whole.items()}, rtol=1e-5, atol=1e-5)


@names
def test_the_view_shares_every_parameter_of_the_model(name):
    model = model_of(name)
    assert {id(p) for p in Backbone.of(model).parameters()} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", ["open_clip", "open_clip-custom"])
def test_two_towers_join_to_the_models_own_logits(name):
    inputs = BY_NAME[name].inputs(3, 9, 0)
    with torch.no_grad():
        expected = model_of(name).get_logits(inputs["vision"], inputs["text"])[0]
        torch.testing.assert_close(Backbone.of(model_of(name))(inputs), expected, rtol=1e-5, atol=1e-5)


def test_causal_text_may_be_cut_behind_its_end():
    ids = BY_NAME["open_clip"].inputs(3, 9, 0)["text"]
    ids[:, 3], ids[:, 4:] = 49, 0
    tower = Backbone.of(model_of("open_clip")).towers["text"]
    with torch.no_grad():
        torch.testing.assert_close(tower(ids[:, :4]), tower(ids), rtol=1e-5, atol=1e-5)


def test_rotary_tables_turn_queries_and_keys_as_timm_does():
    from timm.layers import AttentionRope, RotaryEmbeddingCat

    from hydra_ensembles.backbones.attention import Attention, PackedQKV
    from hydra_ensembles.backbones.state import State

    torch.manual_seed(0)
    for rotate_half in (False, True):
        theirs = AttentionRope(32, num_heads=4, num_prefix_tokens=1, rotate_half=rotate_half).eval()
        rope = RotaryEmbeddingCat(8, in_pixels=False, feat_shape=[3, 3], rotate_half=rotate_half).get_embed()
        sin, cos = rope.chunk(2, dim=-1)
        one = torch.ones(1, 8)
        state = State(torch.randn(2, 10, 32), rotary=(torch.cat([one, cos]), torch.cat([0 * one, sin])))
        ours = Attention(PackedQKV(theirs.qkv.weight, theirs.qkv.bias), theirs.proj, 8, interleaved=not rotate_half)
        with torch.no_grad():
            expected = theirs(state.tokens, rope=rope)
            found = ours.project(ours.heads(state.tokens, state))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            first = ours.project(ours.heads(state.tokens, state, slice(0, 1)))
            torch.testing.assert_close(first, expected[:, :1], rtol=1e-5, atol=1e-5)
            third = ours.project(ours.heads(state.tokens, state, torch.tensor([2, 5])))
            torch.testing.assert_close(third[:, 0], expected[[0, 1], [2, 5]], rtol=1e-5, atol=1e-5)


@given(
    tokens=st.integers(1, 7),
    causal=st.booleans(),
    mask=st.sampled_from(["none", "keys", "square"]),
    seed=seeds,
)
def test_reading_some_positions_is_reading_all_and_taking_them(tokens, causal, mask, seed):
    """For every kind of mask, with a slice and with one position per input."""
    from hydra_ensembles.backbones.state import State

    generator = torch.Generator().manual_seed(seed)
    block = Backbone.of(model_of("timm")).towers["vision"].blocks[0]
    shape = {"keys": (3, 1, 1, tokens), "square": (3, 1, tokens, tokens)}.get(mask)
    bias = None if shape is None else torch.randn(shape, generator=generator)
    state = State(torch.randn(3, tokens, 32, generator=generator), bias, causal)
    position = torch.randint(0, tokens, (3,), generator=generator)
    with torch.no_grad():
        whole = block(state).tokens
        some = block(state, slice(tokens // 2, None)).tokens
        each = block(state, position).tokens
    torch.testing.assert_close(some, whole[:, tokens // 2 :], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(each[:, 0], whole[torch.arange(3), position], rtol=1e-5, atol=1e-5)


@names
def test_gradients_through_the_parts_are_those_of_the_own_forward(name):
    inputs = BY_NAME[name].inputs(3, 6, 0)
    grads = []
    for forward in (Backbone.of, lambda model: partial(family_of(model).own_forward, model)):
        model = copy.deepcopy(model_of(name))
        torch.nn.functional.cross_entropy(forward(model)(inputs), torch.arange(3)).backward()
        grads.append({key: p.grad for key, p in model.named_parameters()})
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["timm", "bert", "hf-vit", "distilbert"])
def test_under_autocast_the_parts_stay_close(name):
    inputs = BY_NAME[name].inputs(3, 6, 0)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = composed(Backbone.of(model_of(name)), inputs), own_output(model_of(name), inputs)
    torch.testing.assert_close(found["logits"].float(), expected["logits"].float(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", ["timm", "hf-vit", "torchvision"])
def test_under_autocast_tokens_are_as_wide_as_the_models(name):
    stem, images = Backbone.of(model_of(name)).towers["vision"].stem, BY_NAME[name].inputs(2, 0, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert stem(images).tokens.dtype == torch.float32


def test_images_may_come_as_a_processor_returns_them():
    images = BY_NAME["hf-vit"].inputs(2, 0, 0)
    backbone = Backbone.of(model_of("hf-vit"))
    assert torch.equal(backbone({"pixel_values": images}), backbone(images))


def test_the_view_follows_the_models_dtype_and_numbers():
    model = copy.deepcopy(model_of("timm"))
    backbone = Backbone.of(model)
    model.double()
    x = BY_NAME["timm"].inputs(2, 0, 0).double()
    with torch.no_grad():
        model.head.bias.add_(1.0)
        torch.testing.assert_close(backbone(x), model(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [case.name for case in CASES if case.modality != "text"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_own_forward_takes_the_images_that_the_composed_backbone_takes(name, dtype):
    case = BY_NAME[name]
    model, inputs = copy.deepcopy(model_of(name)).to(dtype), case.inputs(2, 6, 0)

    def asked(change):
        with torch.no_grad():
            given = change(inputs) if case.modality == "image" else {**inputs, "vision": change(inputs["vision"])}
            return own_logits(model, given)

    expected = asked(lambda images: images.bfloat16().to(dtype))
    assert torch.equal(asked(lambda images: images.bfloat16()), expected)
    assert torch.equal(asked(lambda images: images.bfloat16().double()), expected)
    assert torch.equal(asked(lambda images: {"pixel_values": images.bfloat16().float()}), expected)


@names
def test_a_model_can_be_read_under_autocast(name):
    with torch.autocast("cpu", torch.bfloat16):
        Backbone.of(copy.deepcopy(model_of(name)))
