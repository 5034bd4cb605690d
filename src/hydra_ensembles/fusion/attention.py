"""Fused attention: one call over all heads of all members, each member with its own weights and number of heads.

Members with equal numbers of heads become one batched product a step; unequal (ragged) ones are projected each by
themselves and meet in one attention call. A member without a head adds its output bias only.

Shapes: M members, B batch, N = M * B, T tokens, S query tokens, D width, K head dim, G heads of all members together.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.attention import Attention, attend, no_heads
from hydra_ensembles.backbones.parts import Norm, Part, through
from hydra_ensembles.backbones.state import Read, State, take
from hydra_ensembles.fusion.grouped import MemberNorm, grouped_linear, stacked


class FusedAttention(Part):
    """The attentions of all members. Rows of all members stand behind each other, member by member:

    `qkv` `(3GK, D)` (queries, keys, values of member 0, then of member 1, ...), `out` `(GK, D)`: W_O transposed.
    Where keys have no bias (EVA), `qkv_bias` is `(2GK,)`.
    """

    facts = ("heads_of", "head_dim", "scale", "interleaved", "key_bias")
    key_bias = True

    def __init__(self, attentions: list[Attention], q_norm: Part | None, k_norm: Part | None):
        super().__init__()
        first = attentions[0]
        self.heads_of = [attention.num_heads for attention in attentions]
        self.head_dim, self.scale, self.interleaved = first.head_dim, first.scale, first.interleaved
        matrices = [pair for attention in attentions for pair in attention.qkv.matrices()]
        biases = [bias for _, bias in matrices if bias is not None]
        self.qkv, self.qkv_bias = _rows([weight for weight, _ in matrices]), _rows(biases) if biases else None
        self.key_bias = first.qkv.has_key_bias
        self.out = _rows([attention.out.weight.T for attention in attentions])
        self.out_bias = None if first.out.bias is None else stacked([a.out.bias for a in attentions])
        self.q_norm, self.k_norm = q_norm, k_norm
        gates = [attention.gate for attention in attentions]
        self.gate = None if gates[0] is None else _rows([g.weight for g in gates if g is not None])
        has_bias = gates[0] is not None and gates[0].bias is not None
        self.gate_bias = _rows([g.bias for g in gates if g is not None]) if has_bias else None
        self.head_scale = None if first.head_scale is None else _rows([_present(a.head_scale) for a in attentions])

    @property
    def num_heads(self) -> int:
        """Heads of all members together."""
        return sum(self.heads_of)

    @property
    def is_equal(self) -> bool:
        """Do all members have the same number of heads, and any?"""
        return len(set(self.heads_of)) == 1 and self.heads_of[0] > 0

    def heads(self, x_NTD: Tensor, state: State, read: Read = None) -> Tensor:
        """Each head's output before W_O: `(N, S, H, K)` for H heads a member, `(B, S, G, K)` if ragged."""
        if self.is_equal:
            return self._equal(x_NTD, state, read)
        return self._ragged(x_NTD, state, read)

    def project(self, z: Tensor) -> Tensor:
        """Each member's W_O: `(N, S, D)`."""
        M, K = len(self.heads_of), self.head_dim
        if self.is_equal:
            N, S, H, _ = z.shape
            out_MED = self.out.reshape(M, H * K, -1)
            return grouped_linear(z.reshape(M, -1, H * K), out_MED, self.out_bias).reshape(N, S, out_MED.shape[-1])
        parts = []
        for m, (z_m, out_m) in enumerate(zip(z.split(self.heads_of, dim=2), self._split(self.out), strict=True)):
            # A product over no heads, said without one: ONNX has no reshape to an empty tensor of unknown batch.
            projected = z_m.flatten(2) @ out_m if self.heads_of[m] else z.new_zeros(*z.shape[:2], self.out.shape[1])
            parts.append(projected if self.out_bias is None else projected + self.out_bias[m])
        return torch.cat(parts)

    def _equal(self, x_NTD: Tensor, state: State, read: Read) -> Tensor:
        M, H, K = len(self.heads_of), self.heads_of[0], self.head_dim
        weight_MDE = self.qkv.reshape(M, 3 * H * K, -1).transpose(1, 2)
        bias = self._qkv_bias()
        bias_ME = None if bias is None else bias.reshape(M, 3 * H * K)
        queries_NSD = take(x_NTD, read)
        if queries_NSD is x_NTD:
            q, k, v = grouped_heads(x_NTD, weight_MDE, bias_ME, (H, K), parts=3)
        else:
            E = H * K
            biases = (None, None) if bias_ME is None else (bias_ME[:, :E], bias_ME[:, E:])
            (q,) = grouped_heads(queries_NSD, weight_MDE[..., :E], biases[0], (H, K), parts=1)
            k, v = grouped_heads(x_NTD, weight_MDE[..., E:], biases[1], (H, K), parts=2)
        q, k = through(self.q_norm, q), through(self.k_norm, k)
        z = attend(q, k, v, state, read, self.scale, self.interleaved)
        if self.head_scale is not None:
            z = (z.unflatten(0, (M, -1)) * self.head_scale.reshape(M, 1, H, 1, 1)).flatten(0, 1)
        if self.gate is not None:
            gate_MDE = self.gate.reshape(M, H * K, -1).transpose(1, 2)
            gate_bias_ME = None if self.gate_bias is None else self.gate_bias.reshape(M, -1)
            (gate,) = grouped_heads(queries_NSD, gate_MDE, gate_bias_ME, (H, K), parts=1)
            z = z * torch.sigmoid(gate)
        return z.transpose(1, 2)

    def _ragged(self, x_NTD: Tensor, state: State, read: Read) -> Tensor:
        M, K = len(self.heads_of), self.head_dim
        members = x_NTD.unflatten(0, (M, -1)).unbind()
        B = members[0].shape[0]
        read = read[:B] if isinstance(read, Tensor) else read
        mask = state.mask if state.mask is None or state.mask.shape[0] == 1 else state.mask[:B]
        weights, biases = self._split(self.qkv, 3), self._split_bias(self._qkv_bias(), 3)
        queries, keys, values = [], [], []
        if not self.num_heads:
            return no_heads(take(members[0], read), K)
        for m, (x, weight, bias) in enumerate(zip(members, weights, biases, strict=True)):
            if not self.heads_of[m]:
                continue
            rows = self.heads_of[m] * K
            q = F.linear(take(x, read), weight[:rows], None if bias is None else bias[:rows])
            k, v = F.linear(x, weight[rows:], None if bias is None else bias[rows:]).chunk(2, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads_of[m], K)).transpose(1, 2) for part in (q, k, v))
            queries.append(_member_norm(self.q_norm, m, q))
            keys.append(_member_norm(self.k_norm, m, k))
            values.append(v)
        q, k, v = (torch.cat(parts, dim=1) for parts in (queries, keys, values))
        z = attend(q, k, v, state._replace(mask=mask), read, self.scale, self.interleaved)
        if self.head_scale is not None:
            z = z * self.head_scale
        z_BSGK = z.transpose(1, 2)
        if self.gate is not None:
            gate_biases = self._split_bias(self.gate_bias)
            gates = [
                F.linear(take(x, read), weight, bias)
                for x, weight, bias in zip(members, self._split(self.gate), gate_biases, strict=True)
                if len(weight)
            ]
            z_BSGK = z_BSGK * torch.sigmoid(torch.cat(gates, dim=-1)).unflatten(-1, (-1, K))
        return z_BSGK

    def _qkv_bias(self) -> Tensor | None:
        """Of all rows of `qkv`; zeros for keys that have none."""
        if self.qkv_bias is None or self.key_bias:
            return self.qkv_bias
        pairs = (bias.chunk(2) for bias in self._split(self.qkv_bias, 2))
        return torch.cat([part for q, v in pairs for part in (q, torch.zeros_like(q), v)])

    def _split(self, rows: Tensor, times: int = 1) -> list[Tensor]:
        """Each member's rows of a concatenated tensor."""
        return list(rows.split([times * heads * self.head_dim for heads in self.heads_of]))

    def _split_bias(self, rows: Tensor | None, times: int = 1) -> list[Tensor] | list[None]:
        return [None] * len(self.heads_of) if rows is None else self._split(rows, times)


def grouped_heads(
    x_NTD: Tensor, weight_MDE: Tensor, bias_ME: Tensor | None, heads: tuple[int, int], parts: int
) -> tuple[Tensor, ...]:
    """A grouped linear layer, cut into `parts` (queries, keys, ...) of `heads` = (H, K): `(N, H, T, K)` each."""
    N, T, D = x_NTD.shape
    rows = grouped_linear(x_NTD.reshape(len(weight_MDE), -1, D), weight_MDE, bias_ME)
    return rows.reshape(N, T, parts, *heads).permute(2, 0, 3, 1, 4).unbind(0)


def _rows(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]))


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _member_norm(norm: Part | None, m: int, x: Tensor) -> Tensor:
    if isinstance(norm, MemberNorm):
        return norm.of_member(m, x)
    assert norm is None or isinstance(norm, Norm)
    return through(norm, x)
