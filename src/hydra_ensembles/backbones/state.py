"""What flows from block to block, and how a part of its tokens is taken.

Shapes: B batch, T tokens, S tokens read, D width, H heads, K head dim.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Read: TypeAlias = slice | Tensor | None
"""Token positions: a slice, one position per input `(B,)`, or None for all."""


class State(NamedTuple):
    """The tokens of one tower between two blocks, with what its attention needs."""

    tokens: Tensor
    """`(B, T, D)`; `(B, S, D)` once narrowed to the positions that the readout reads."""
    mask: Tensor | None = None
    """Added to attention scores; broadcastable to `(B, H, T, T)`."""
    causal: bool = False
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine tables, `(T, K)` each; positions that do not turn have cosine 1 and sine 0."""
    pool: Tensor | None = None
    """The position `(B,)` that an index readout takes."""
    narrowed: bool = False


def take(x_BTD: Tensor, read: Read) -> Tensor:
    """The tokens at the positions read: `(B, S, D)`.

    >>> x = torch.arange(6.0).reshape(2, 3, 1)
    >>> take(x, torch.tensor([2, 0])).flatten().tolist()
    [2.0, 3.0]
    """
    if read is None:
        return x_BTD
    if isinstance(read, slice):
        return x_BTD[:, read]
    return x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), read][:, None]


def repeated(state: State, copies: int) -> State:
    """The state several times, behind each other: where a trunk branches, where candidates part."""
    mask, pool = state.mask, state.pool
    return state._replace(
        tokens=state.tokens.repeat(copies, 1, 1),
        mask=mask if mask is None or mask.shape[0] == 1 else mask.repeat(copies, 1, 1, 1),
        pool=None if pool is None else pool.repeat(copies),
    )


def attention_bias(state: State, read: Read) -> tuple[Tensor | None, bool]:
    """The additive mask for the queries at `read`, and whether the kernel may use its causal flag."""
    if not state.causal:
        return _mask_rows(state.mask, read), False
    if state.mask is None and read is None:
        return None, True
    T, device = state.tokens.shape[1], state.tokens.device
    positions = torch.arange(T, device=device)
    queries = read[:, None] if isinstance(read, Tensor) else positions[read or slice(None)][None]
    ahead = positions[None, None, None, :] > queries[:, None, :, None]
    causal = torch.zeros(ahead.shape, dtype=state.tokens.dtype, device=device).masked_fill(ahead, float("-inf"))
    mask = _mask_rows(state.mask, read)
    return (causal if mask is None else causal + mask), False


def _mask_rows(mask: Tensor | None, read: Read) -> Tensor | None:
    if mask is None or read is None or mask.shape[-2] == 1:
        return mask
    if isinstance(read, slice):
        return mask[..., read, :]
    rows = mask.expand(read.shape[0], *mask.shape[1:])
    return rows[torch.arange(read.shape[0], device=mask.device), :, read][:, :, None]
