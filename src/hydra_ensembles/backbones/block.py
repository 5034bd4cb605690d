"""One transformer block, in the three steps that head surgery needs: heads, project, finish."""

from collections.abc import Callable, Sequence

from torch import Tensor

from hydra_ensembles.backbones.attention import Attention
from hydra_ensembles.backbones.parts import FeedForward, Norm, Part, Scale, may_overwrite, through
from hydra_ensembles.backbones.state import Read, State, take


class Block(Part):
    """`block(state)` is `finish(state, project(heads(state)))`.

    Pre-norm blocks normalise what attention and MLP read; post-norm blocks (`post_norm`) normalise their sums with
    the residual. Dropout and stochastic depth are left out: this is the network at evaluation.

    `own` is the library's forward of the same block on tokens, `shrink(keep)` its head surgery, in place; a part
    that was rebuilt from a spec has neither.
    """

    facts = ("post_norm",)
    own: Callable[[Tensor], Tensor] | None = None
    shrink: Callable[[Sequence[int]], None] | None = None
    path = ""

    def __init__(
        self,
        attention: Attention,
        mlp: FeedForward,
        norm_attention: Norm | None,
        norm_mlp: Norm | None,
        post_norm: bool = False,
        scale_attention: Scale | None = None,
        scale_mlp: Scale | None = None,
        norm_projected: Norm | None = None,
        own: Callable[[Tensor], Tensor] | None = None,
        shrink: Callable[[Sequence[int]], None] | None = None,
        path: str = "",
    ):
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.norm_attention, self.norm_mlp, self.norm_projected = norm_attention, norm_mlp, norm_projected
        self.scale_attention, self.scale_mlp = scale_attention, scale_mlp
        self.post_norm = post_norm
        if own is not None:
            self.own, self.shrink, self.path = own, shrink, path

    def norm_in(self, tokens: Tensor) -> Tensor:
        """What attention reads."""
        return tokens if self.post_norm else through(self.norm_attention, tokens)

    def heads(self, state: State, read: Read = None) -> Tensor:
        """Each head's output before W_O, for the queries at `read`: `(B, S, H, K)`."""
        return self.attention.heads(self.norm_in(state.tokens), state, read)

    def project(self, z_BSHK: Tensor) -> Tensor:
        """W_O: `(B, S, D)`."""
        return self.attention.project(z_BSHK)

    def finish(self, state: State, attention_BSD: Tensor, read: Read = None) -> State:
        """Residual, norms, LayerScale and MLP, for the tokens at `read`."""
        x = take(state.tokens, read)
        attention_BSD = through(self.norm_projected, attention_BSD)
        x = x + through(self.scale_attention, attention_BSD)
        if self.post_norm:
            x = through(self.norm_attention, x)
            x = through(self.norm_mlp, x + through(self.scale_mlp, self.mlp(x)))
        elif may_overwrite() and self.scale_mlp is None:
            x = self.mlp(through(self.norm_mlp, x), onto=x)
        else:
            mlp_BSD = through(self.scale_mlp, self.mlp(through(self.norm_mlp, x)))
            x = x.add_(mlp_BSD) if may_overwrite() else x + mlp_BSD
        return state._replace(tokens=x, narrowed=state.narrowed or read is not None)

    def forward(self, state: State, read: Read = None) -> State:
        return self.finish(state, self.project(self.heads(state, read)), read)
