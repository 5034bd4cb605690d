"""Head surgery on a library's own modules: take rows and columns out, put a drop-in where a class insists.

Shapes: B batch, T tokens, D width, H heads kept, K head dim.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.errors import HydraError


def channels_of(keep: Sequence[int], head_dim: int) -> Tensor:
    """The channels of the kept heads in a concatenation of all heads.

    >>> channels_of([0, 2], head_dim=2).tolist()
    [0, 1, 4, 5]
    """
    return (torch.tensor(list(keep), dtype=torch.long)[:, None] * head_dim + torch.arange(head_dim)).flatten()


def chosen(parameter: Tensor, index: Tensor, dim: int = 0) -> nn.Parameter:
    """A new parameter with the chosen entries, trainable or frozen like the old one."""
    kept = parameter.detach().index_select(dim, index.to(parameter.device)).clone()
    return nn.Parameter(kept, requires_grad=parameter.requires_grad)


def keep_rows(layer: nn.Linear, rows: Tensor) -> None:
    """Leave only these outputs of a linear layer, in place."""
    layer.weight = chosen(layer.weight, rows)
    if layer.bias is not None:
        layer.bias = chosen(layer.bias, rows)
    layer.out_features = len(rows)


def keep_columns(layer: nn.Linear, columns: Tensor) -> None:
    """Leave only these inputs of a linear layer, in place."""
    layer.weight = chosen(layer.weight, columns, dim=1)
    layer.in_features = len(columns)


def packed_rows(channels: Tensor, rows_each: int) -> Tensor:
    """The same channels in each third of a packed query-key-value matrix."""
    return torch.cat([channels + part * rows_each for part in range(3)])


class PrunedAttention(nn.Module):
    """Stands where an nn.MultiheadAttention stood, or a class with its parameter layout, with fewer heads.

    nn.MultiheadAttention insists that width equals heads times head dim. Parameter names stay the same, so does the
    call; always plain scaled-dot-product attention, because the fast path of nn.MultiheadAttention cannot be
    exported to ONNX. It has no attention weights to return: `returns_pair` makes the call return (output, None), as
    nn.MultiheadAttention does under need_weights=False.
    """

    def __init__(
        self,
        in_proj_weight: nn.Parameter,
        in_proj_bias: nn.Parameter | None,
        out_proj: nn.Linear,
        head_dim: int,
        dropout: float = 0.0,
        batch_first: bool = True,
        returns_pair: bool = True,
        ln_q: nn.Module | None = None,
        ln_k: nn.Module | None = None,
        head_scale: nn.Parameter | None = None,
    ):
        super().__init__()
        self.in_proj_weight, self.in_proj_bias, self.out_proj = in_proj_weight, in_proj_bias, out_proj
        self.head_dim, self.num_heads = head_dim, out_proj.in_features // head_dim
        self.dropout, self.batch_first, self.returns_pair = dropout, batch_first, returns_pair
        self.ln_q, self.ln_k = ln_q or nn.Identity(), ln_k or nn.Identity()
        self.head_scale = head_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if (key is not None and key is not query) or (value is not None and value is not query):
            raise HydraError("a pruned attention is self-attention: query, key and value must be one tensor")
        x_BTD = query if self.batch_first else query.transpose(0, 1)
        q, k, v = (
            rows.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for rows in F.linear(x_BTD, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        )
        z = F.scaled_dot_product_attention(
            self.ln_q(q),
            self.ln_k(k),
            v,
            attn_mask=self._bias(attn_mask, key_padding_mask, x_BTD),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal and attn_mask is None,
        )
        if self.head_scale is not None:
            z = z * self.head_scale
        out = self.out_proj(z.transpose(1, 2).flatten(2))
        out = out if self.batch_first else out.transpose(0, 1)
        return (out, None) if self.returns_pair else out

    def _bias(self, attn_mask: Tensor | None, padding: Tensor | None, x_BTD: Tensor) -> Tensor | None:
        """nn.MultiheadAttention's masks (True hides a position) as one additive mask."""
        bias = None
        for mask in (attn_mask, None if padding is None else padding[:, None, None]):
            if mask is None:
                continue
            if mask.ndim == 3:
                raise HydraError("a pruned attention takes a mask of shape (T, T), not one mask per head")
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=x_BTD.dtype).masked_fill(mask, float("-inf"))
            bias = mask.to(x_BTD.dtype) if bias is None else bias + mask.to(x_BTD.dtype)
        return bias


def shrink_packed(attention: Any, keep: Sequence[int]) -> PrunedAttention:
    """A drop-in with the kept heads, for nn.MultiheadAttention and classes with its parameter layout."""
    head_dim = attention.head_dim
    channels = channels_of(keep, head_dim)
    rows = packed_rows(channels, len(attention.in_proj_weight) // 3)
    bias, head_scale = attention.in_proj_bias, getattr(attention, "head_scale", None)
    keep_columns(attention.out_proj, channels)
    own_dropout = getattr(attention, "attn_drop", None)
    return PrunedAttention(
        chosen(attention.in_proj_weight, rows),
        None if bias is None else chosen(bias, rows),
        attention.out_proj,
        head_dim,
        dropout=attention.dropout if own_dropout is None else own_dropout.p,
        batch_first=getattr(attention, "batch_first", True),
        returns_pair=getattr(attention, "returns_pair", isinstance(attention, nn.MultiheadAttention)),
        ln_q=getattr(attention, "ln_q", None),
        ln_k=getattr(attention, "ln_k", None),
        head_scale=None if head_scale is None else chosen(head_scale, torch.tensor(list(keep), dtype=torch.long)),
    ).train(attention.training)


class NoHeads(nn.Module):
    """Stands where a transformers attention stood that has no head left; its parameter names stay.

    The stock forward reshapes with a free dimension, which an empty tensor leaves undecided. With an output layer
    of its own (`out`, its name) it returns that layer's bias, else nothing for the next layer to project.
    """

    def __init__(self, attention: nn.Module, head_dim: int, out: str | None):
        super().__init__()
        for name, child in attention.named_children():
            self.add_module(name, child)
        self.attention_head_size = self.head_dim = head_dim
        self.out = out

    def forward(self, hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, None]:
        z = hidden_states[..., :0]
        return (z if self.out is None else self.get_submodule(self.out)(z)), None
