"""Grouped layers: one map a member, applied to that member's rows.

The tokens of all members stand behind each other in the batch, member-major: `x_N...` with N = M * B. A part here takes
the place of a plain part inside the same blocks and readouts.

Shapes: M members, B batch, N = M * B, R rows of a member, D in, E out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.parts import Norm, Part, may_overwrite
from hydra_ensembles.backbones.state import State, repeated


def grouped_linear(x_MRD: Tensor, weight_MDE: Tensor, bias_ME: Tensor | None = None) -> Tensor:
    """Apply member m's linear map to member m's rows.

    Equals a block-diagonal linear layer on the concatenated members, without the zeros.
    """
    if prefers_single_calls(x_MRD):
        out_MRE = x_MRD.new_empty(*x_MRD.shape[:2], weight_MDE.shape[-1])
        for m, (x, weight, out) in enumerate(zip(x_MRD, weight_MDE, out_MRE, strict=True)):
            if bias_ME is None:
                torch.mm(x, weight, out=out)
            else:
                torch.addmm(bias_ME[m], x, weight, out=out)
        return out_MRE
    if bias_ME is None:
        return torch.bmm(x_MRD, weight_MDE)
    return torch.baddbmm(bias_ME[:, None], x_MRD, weight_MDE)


def prefers_single_calls(x: Tensor) -> bool:
    """Is one call a member into shared memory faster than one batched call? At inference on a CPU it is.

    Measured with torch 2.13 (ViT-B, 3 members, batch 4 and 16, fp32 and bf16): 15 to 25 % for a matrix product, and
    half the time of a norm.
    """
    return x.device.type == "cpu" and may_overwrite() and not torch.is_autocast_enabled("cpu")


def grouped_affine(x_N: Tensor, weight_MD: Tensor, bias_MD: Tensor | None = None) -> Tensor:
    """Scale, and shift, the channels of member m's rows by member m's numbers."""
    x_M = x_N.unflatten(0, (len(weight_MD), -1))
    weight, bias = (
        None if p is None else p.reshape(len(p), *[1] * (x_M.ndim - 2), p.shape[-1]) for p in (weight_MD, bias_MD)
    )
    assert weight is not None
    scaled = x_M * weight if bias is None else torch.addcmul(bias, x_M, weight)
    return scaled.flatten(0, 1)


class MemberLinear(Part):
    """One linear layer a member: weight `(M, D, E)`, bias `(M, E)`."""

    def __init__(self, weight_MDE: Tensor, bias_ME: Tensor | None):
        super().__init__()
        self.weight = nn.Parameter(weight_MDE)
        self.bias = None if bias_ME is None else nn.Parameter(bias_ME)

    @property
    def out_features(self) -> int:
        return self.weight.shape[-1]

    def forward(self, x_ND: Tensor) -> Tensor:
        M, D, E = self.weight.shape
        return grouped_linear(x_ND.reshape(M, -1, D), self.weight, self.bias).reshape(*x_ND.shape[:-1], E)


class MemberNorm(Part):
    """One norm a member: weight and bias `(M, D)`."""

    facts = ("kind", "eps", "size")

    def __init__(self, norms: list[Norm]):
        super().__init__()
        first = norms[0]
        self.kind, self.eps, self.size = first.kind, first.eps, first.size
        assert first.weight is not None
        self.weight = stacked([norm.weight for norm in norms])
        self.bias = None if first.bias is None else stacked([norm.bias for norm in norms])

    def forward(self, x_ND: Tensor) -> Tensor:
        if prefers_single_calls(x_ND):
            return torch.cat([self.of_member(m, x) for m, x in enumerate(x_ND.chunk(len(self.weight)))])
        return grouped_affine(self.plain(x_ND), self.weight, self.bias)

    def of_member(self, m: int, x: Tensor) -> Tensor:
        """Member m's norm, on its rows alone."""
        if self.kind == "layer":
            return F.layer_norm(x, (self.size,), self.weight[m], None if self.bias is None else self.bias[m], self.eps)
        return F.rms_norm(x, (self.size,), self.weight[m], self.eps)

    def plain(self, x: Tensor) -> Tensor:
        """The norm before its affine map, which has no parameters and so is the same for all."""
        if self.kind == "layer":
            return F.layer_norm(x, (self.size,), eps=self.eps)
        return F.rms_norm(x, (self.size,), eps=self.eps)


class MemberScale(Part):
    """One LayerScale a member: weight `(M, D)`."""

    def __init__(self, weight_MD: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight_MD)

    def forward(self, x_ND: Tensor) -> Tensor:
        return grouped_affine(x_ND, self.weight)


class MemberStems(Part):
    """One stem a member; their states behind each other."""

    def __init__(self, stems: list[Part]):
        super().__init__()
        self.stems = nn.ModuleList(stems)

    def forward(self, inputs: object) -> State:
        states: list[State] = [stem(inputs) for stem in self.stems]
        tokens = torch.cat([state.tokens for state in states])
        return repeated(states[0], len(states))._replace(tokens=tokens)


class MemberPools(Part):
    """One part a member, each on its own member's rows; for the few that have no grouped form."""

    def __init__(self, pools: list[Part]):
        super().__init__()
        self.pools = nn.ModuleList(pools)

    def forward(self, x_ND: Tensor) -> Tensor:
        members = x_ND.unflatten(0, (len(self.pools), -1)).unbind()
        return torch.cat([pool(x) for pool, x in zip(self.pools, members, strict=True)])


def stacked(tensors: list[Tensor | None]) -> nn.Parameter:
    """One parameter with an entry a member."""
    return nn.Parameter(torch.stack([t.detach() for t in tensors if t is not None]))
