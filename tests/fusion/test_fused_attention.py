"""Fused attention by itself: every member's own attention on its own rows, whatever the mask and the tables."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hydra_ensembles.backbones.attention import Attention, PackedQKV
from hydra_ensembles.backbones.parts import Norm
from hydra_ensembles.backbones.state import State, repeated
from hydra_ensembles.fusion.attention import FusedAttention
from hydra_ensembles.fusion.grouped import MemberNorm, grouped_linear

D, K, T, B = 12, 4, 5, 2


def attention(heads, norm):
    qkv, out = nn.Linear(D, 3 * heads * K), nn.Linear(heads * K, D)
    norms = [Norm("layer", nn.Parameter(torch.randn(K)), nn.Parameter(torch.randn(K)), 1e-5, K) for _ in range(2)]
    return Attention(PackedQKV(qkv.weight, qkv.bias), out, K, None, *(norms if norm else (None, None)))


@given(
    heads=st.one_of(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 3).map(lambda h: [h] * 3)),
    mask=st.sampled_from(["none", "one", "padding", "square"]),
    causal=st.booleans(),
    rotary=st.booleans(),
    norm=st.booleans(),
    read=st.sampled_from(["all", "first", "last", "each"]),
    seed=st.integers(0, 999),
)
def test_each_member_gets_its_own_attention(heads, mask, causal, rotary, norm, read, seed):
    torch.manual_seed(seed)
    members = [attention(h, norm) for h in heads]
    norms = [MemberNorm([getattr(m, which) for m in members]) if norm else None for which in ("q_norm", "k_norm")]
    fused = FusedAttention(members, *norms)
    shapes = {"one": (1, 1, 1, T), "padding": (B, 1, 1, T), "square": (B, 1, T, T)}
    bias = torch.randn(shapes[mask]) if mask in shapes else None
    angles = torch.rand(T, K // 2).repeat_interleave(2, dim=1)
    tables = (angles.cos(), angles.sin()) if rotary else None
    state = State(torch.randn(B, T, D), bias, causal, tables)
    positions = {"all": None, "first": slice(0, 1), "last": slice(-1, None), "each": torch.randint(0, T, (B,))}[read]
    x = torch.randn(len(heads) * B, T, D)
    everywhere = positions.repeat(len(heads)) if isinstance(positions, torch.Tensor) else positions
    with torch.no_grad():
        expected = [
            m.project(m.heads(rows, state, positions)) for m, rows in zip(members, x.chunk(len(heads)), strict=True)
        ]
        found = fused.project(fused.heads(x, repeated(state, len(heads)), everywhere))
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)


@given(M=st.integers(1, 4), rows=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_grouped_layer_is_a_block_diagonal_one(M, rows, seed):
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(M, rows, 3), torch.randn(M, 3, 2), torch.randn(M, 2)
    concatenated = x.transpose(0, 1).reshape(rows, M * 3)
    expected = concatenated @ torch.block_diag(*weight) + bias.flatten()
    found = grouped_linear(x, weight, bias).transpose(0, 1).reshape(rows, M * 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_hydra_trains_with_heads_missing_everywhere():
    fused = FusedAttention([attention(0, False), attention(0, False)], None, None)
    state = State(torch.randn(2 * B, T, D))
    fused.project(fused.heads(state.tokens, state)).sum().backward()
    assert fused.out_bias.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_masks_follow_the_dtype_of_the_network(dtype):
    fused = FusedAttention([attention(2, False), attention(1, False)], None, None).to(dtype)
    state = repeated(State(torch.randn(B, T, D, dtype=dtype), torch.zeros(B, 1, 1, T)), 2)
    assert fused.project(fused.heads(state.tokens, state)).dtype == dtype
