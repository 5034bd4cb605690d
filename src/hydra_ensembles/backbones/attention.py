"""Multi-head self-attention, opened between its heads and its output projection.

Keys on parameter layout: rows of one packed matrix (timm, nn.MultiheadAttention) or three linear layers
(transformers). Shapes: B batch, T tokens, S query tokens, D width, H heads, K head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.parts import Norm, Part, through
from hydra_ensembles.backbones.state import Read, State, attention_bias, take


class PackedQKV(Part):
    """Queries, keys and values as the rows of one matrix `(3HK, D)`, in this order."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.weight, self.bias = weight, bias

    @property
    def has_key_bias(self) -> bool:
        return self.bias is not None

    def row_bias(self) -> Tensor | None:
        """The bias of all rows `(3HK,)`."""
        return self.bias

    def matrices(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Weight `(HK, D)` and bias `(HK,)`, where there is one, of queries, keys and values."""
        biases = (None, None, None) if self.bias is None else self.bias.chunk(3)
        return tuple(zip(self.weight.chunk(3), biases, strict=True))

    def forward(self, x_BTD: Tensor, queries_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bias = self.row_bias()
        if queries_BSD is x_BTD:
            q, k, v = F.linear(x_BTD, self.weight, bias).chunk(3, dim=-1)
            return q, k, v
        rows = len(self.weight) // 3
        q = F.linear(queries_BSD, self.weight[:rows], None if bias is None else bias[:rows])
        k, v = F.linear(x_BTD, self.weight[rows:], None if bias is None else bias[rows:]).chunk(2, dim=-1)
        return q, k, v


class PackedQKVWithoutKeyBias(PackedQKV):
    """Packed rows whose keys have no bias (EVA); those of queries and values `(HK,)` are tensors of their own."""

    def __init__(self, weight: Tensor, q_bias: Tensor, v_bias: Tensor):
        super().__init__(weight, None)
        self.q_bias, self.v_bias = q_bias, v_bias

    def row_bias(self) -> Tensor:
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])

    def matrices(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        return tuple(zip(self.weight.chunk(3), (self.q_bias, None, self.v_bias), strict=True))


class SplitQKV(Part):
    """Queries, keys and values from three linear layers."""

    def __init__(self, q: nn.Linear, k: nn.Linear, v: nn.Linear):
        super().__init__()
        self.q, self.k, self.v = q, k, v

    @property
    def has_key_bias(self) -> bool:
        return self.k.bias is not None

    def matrices(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Weight `(HK, D)` and bias `(HK,)`, where there is one, of queries, keys and values."""
        return tuple((layer.weight, layer.bias) for layer in (self.q, self.k, self.v))

    def forward(self, x_BTD: Tensor, queries_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(queries_BSD), self.k(x_BTD), self.v(x_BTD)


class Attention(Part):
    """Heads, then the output projection W_O; between them a head can be removed."""

    facts = ("head_dim", "num_heads", "scale", "interleaved")

    def __init__(
        self,
        qkv: PackedQKV | SplitQKV,
        out: nn.Linear,
        head_dim: int,
        scale: float | None = None,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        gate: nn.Linear | None = None,
        head_scale: nn.Parameter | None = None,
        interleaved: bool = True,
    ):
        super().__init__()
        self.qkv, self.out, self.q_norm, self.k_norm = qkv, out, q_norm, k_norm
        self.gate, self.head_scale = gate, head_scale
        self.head_dim, self.num_heads = head_dim, out.in_features // head_dim
        self.scale = head_dim**-0.5 if scale is None else float(scale)
        self.interleaved = interleaved

    def heads(self, x_BTD: Tensor, state: State, read: Read = None) -> Tensor:
        """Each head's output before W_O: `(B, S, H, K)`."""
        queries_BSD = take(x_BTD, read)
        if not self.num_heads:
            return no_heads(queries_BSD, self.head_dim)
        q, k, v = (self._split(rows) for rows in self.qkv(x_BTD, queries_BSD))
        q, k = through(self.q_norm, q), through(self.k_norm, k)
        z = attend(q, k, v, state, read, self.scale, self.interleaved)
        if self.head_scale is not None:
            z = z * self.head_scale
        z_BSHK = z.transpose(1, 2)
        if self.gate is not None:
            z_BSHK = z_BSHK * torch.sigmoid(self.gate(queries_BSD)).unflatten(-1, (-1, self.head_dim))
        return z_BSHK

    def project(self, z_BSHK: Tensor) -> Tensor:
        """W_O: `(B, S, D)`; with no heads left, the output bias alone."""
        if not self.num_heads:
            nothing_BSD = z_BSHK.new_zeros(*z_BSHK.shape[:2], self.out.out_features)
            return nothing_BSD if self.out.bias is None else nothing_BSD + self.out.bias
        return self.out(z_BSHK.flatten(2))  # type: ignore[no-any-return]

    def _split(self, rows_BTN: Tensor) -> Tensor:
        return rows_BTN.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # type: ignore[no-any-return]


def no_heads(queries_BSD: Tensor, head_dim: int) -> Tensor:
    """The output of no heads at all: `(B, S, 0, K)`."""
    return queries_BSD.new_zeros(*queries_BSD.shape[:2], 0, head_dim)


def attend(q: Tensor, k: Tensor, v: Tensor, state: State, read: Read, scale: float, interleaved: bool) -> Tensor:
    """One attention call `(batch, heads, S, K)`, under the state's mask, causal flag and rotary tables."""
    if state.rotary is not None:
        q = rotate(q, state.rotary, read, interleaved)
        k = rotate(k, state.rotary, None, interleaved)
    bias, causal = attention_bias(state, read)
    bias = None if bias is None else bias.to(q.dtype)  # under autocast, tokens and queries differ in dtype
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale)


def rotate(x_BHTK: Tensor, rotary: tuple[Tensor, Tensor], read: Read, interleaved: bool) -> Tensor:
    """Turn pairs of channels by their position's angle; pairs are neighbours, or halves of the head."""
    cos, sin = (take(table[None], read)[:, None] for table in rotary)
    if interleaved:
        turned = torch.stack((-x_BHTK[..., 1::2], x_BHTK[..., ::2]), dim=-1).flatten(-2)
    else:
        first, last = x_BHTK.chunk(2, dim=-1)
        turned = torch.cat((-last, first), dim=-1)
    return (x_BHTK * cos + turned * sin).to(x_BHTK.dtype)
