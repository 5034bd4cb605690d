"""Readouts: from the last state to logits or features, and which positions that takes."""

import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.attention import PackedQKV
from hydra_ensembles.backbones.parts import ACTIVATIONS, FeedForward, Norm, Part, through
from hydra_ensembles.backbones.state import Read, State, take


class Projection(Part):
    """A linear map whose matrix may be stored transposed, `(in, out)`, as open_clip does."""

    facts = ("transposed",)

    def __init__(self, weight: Tensor, bias: Tensor | None = None, transposed: bool = False):
        super().__init__()
        self.weight, self.bias, self.transposed = weight, bias, transposed

    @property
    def out_features(self) -> int:
        return self.weight.shape[1 if self.transposed else 0]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T if self.transposed else self.weight, self.bias)


def projection_of(layer: nn.Linear) -> Projection:
    """A library's linear layer as a projection."""
    return Projection(layer.weight, layer.bias)


class LatentPool(Part):
    """Map pooling: one learned query attends over the tokens, then a residual MLP.

    Queries, keys and values come from `q` and `kv`, or from one packed matrix, `qkv`.
    """

    facts = ("num_heads",)

    def __init__(
        self,
        latent: nn.Parameter,
        q: nn.Linear | None,
        kv: nn.Linear | None,
        out: nn.Linear,
        num_heads: int,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
        norm: Norm | None = None,
        mlp: FeedForward | None = None,
        qkv: PackedQKV | None = None,
    ):
        super().__init__()
        self.qkv = qkv
        self.latent, self.q, self.kv, self.out, self.num_heads = latent, q, kv, out, num_heads
        self.q_norm, self.k_norm, self.norm, self.mlp = q_norm, k_norm, norm, mlp

    def forward(self, x_BTD: Tensor) -> Tensor:
        packed = getattr(self, "qkv", None)  # what was stored before there were packed ones says nothing of it
        if packed is not None:
            q, k, v = packed(x_BTD, self.latent)
        else:
            assert self.kv is not None
            q = self.latent if self.q is None else self.q(self.latent)
            k, v = self.kv(x_BTD).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        q, k = through(self.q_norm, q), through(self.k_norm, k)
        z = F.scaled_dot_product_attention(q.expand(x_BTD.shape[0], -1, -1, -1), k, v)
        x = self.out(z.transpose(1, 2).flatten(2))
        if self.mlp is not None:
            x = x + self.mlp(through(self.norm, x))
        return x[:, 0]  # type: ignore[no-any-return]


def _masked_mean(x_BTD: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the tokens to whose attention scores nothing is added `(B, D)`."""
    if mask is None:
        return x_BTD.mean(dim=1)
    seen_BT1 = (mask[:, 0, 0] == 0).to(x_BTD.dtype)[..., None]
    return (x_BTD * seen_BT1).sum(dim=1) / seen_BT1.sum(dim=1)


class Readout(Part):
    """Norm, pool, norm, perhaps a hidden layer, then the classifier (or projection to features).

    `pool`: `"first"` (CLS), `"last"`, `"index"` (the state's pool position: EOT), `"mean"` or `"map"` of all tokens
    behind the first `skip`, `"masked_mean"` of all tokens that the state's mask lets through.
    """

    facts = ("pool", "skip", "activation")

    def __init__(
        self,
        pool: str,
        classifier: Projection | None,
        norm: Norm | None = None,
        norm_pooled: Norm | None = None,
        hidden: Projection | None = None,
        activation: str | None = None,
        skip: int = 0,
        latent: LatentPool | None = None,
    ):
        super().__init__()
        self.pool, self.skip, self.activation = pool, skip, activation
        self.norm, self.norm_pooled, self.hidden = norm, norm_pooled, hidden
        self.classifier, self.latent = classifier, latent

    def reads(self, state: State) -> Read:
        """The positions this readout looks at; the last block need not compute any other."""
        if self.pool == "first":
            return slice(0, 1)
        if self.pool == "last":
            return slice(-1, None)
        if self.pool == "index":
            return state.pool
        return slice(self.skip, None) if self.skip else None

    def pooled(self, state: State) -> Tensor:
        """One vector per input `(B, D)`, before the hidden layer and the classifier."""
        x = state.tokens if state.narrowed else take(state.tokens, self.reads(state))
        x = through(self.norm, x)
        if self.latent is not None:
            x = self.latent(x)
        elif self.pool == "masked_mean":
            x = _masked_mean(x, state.mask)
        else:
            x = x.mean(dim=1) if self.pool == "mean" else x[:, 0]
        return through(self.norm_pooled, x)

    def forward(self, state: State) -> Tensor:
        x = self.pooled(state)
        if self.hidden is not None:
            assert self.activation is not None
            x = ACTIVATIONS[self.activation](self.hidden(x))
        return through(self.classifier, x)
