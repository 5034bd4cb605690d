"""Proposition 1 (the paper, 3.2 and A.2) put to the test as in B.1: does pruning hurt more under noise?

With L_t the mean loss on clean inputs, L_n on noisy ones and dθ the change that pruning makes (the weights of the
removed heads become 0), A.2 expands the loss gap L_n - L_t up to second order:

    gap(θ + dθ) - gap(θ) = (∇L_n - ∇L_t)·dθ + 1/2 dθ·(H_n - H_t)dθ + ...

The proposition asks that ∇L_t = 0 and ∇L_n·dθ >= 0 (Assumption 1), and that H_n - H_t is positive definite. B.1 looks
at ∇L_n·dθ, the alignment, and at the diagonals of the Hessians. Here stand also the terms that it takes for granted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydra_ensembles.backbones import Backbone, family_of
from hydra_ensembles.backbones.attention import PackedQKV
from hydra_ensembles.backbones.surgery import channels_of
from hydra_ensembles.data import Batches, Data, as_batches
from hydra_ensembles.data.batches import inputs_to, known_labels
from hydra_ensembles.evaluation.analyses.hessian import Diagonal, Losses, Moments, diagonal_samples, hessian_products
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, one_tower
from hydra_ensembles.heads import Head, HeadSet, ablate
from hydra_ensembles.scoring.working import Working

OVER = ("removed", "all")
SURE = 2.0
"""Standard errors from 0 at which the sign of one number of the diagonal counts as known."""


@dataclass(frozen=True)
class Proposition1:
    """The terms of A.2, and what is known of the Hessians' diagonals."""

    alignment: float
    """∇L_n·dθ; Assumption 1 asks that it is at least 0 (B.1: 1.19 and 0.37)."""
    alignment_by_part: Mapping[str, float]
    """What the removed rows of W_q, W_k, W_v and columns of W_O, biases among them, add to it."""
    clean_alignment: float
    """∇L_t·dθ; Assumption 1 has it 0, as ∇L_t is."""
    curvature: float
    """1/2 dθ·(H_n - H_t)dθ, exact: Hessian-vector products, no estimate."""
    clean_loss: float
    noisy_loss: float
    clean_loss_pruned: float
    noisy_loss_pruned: float
    clean_diagonal: float
    """Average of the diagonal of H_t, estimated; `clean_diagonal_error` is its standard error. Likewise of H_n."""
    clean_diagonal_error: float
    noisy_diagonal: float
    noisy_diagonal_error: float
    difference: float
    """Average of the diagonal of H_n - H_t, on the same probes (B.1: 0.45 and 0.17, "strictly positive")."""
    difference_error: float
    positive: float
    """Share of the numbers of that diagonal whose estimate is above 0."""
    surely_positive: float
    """More than 2 standard errors above 0; `surely_negative`: below it. By chance alone some are."""
    surely_negative: float
    keep: HeadSet
    over: str
    numbers: int
    """How many weights the diagonal has."""
    probes: int
    seed: int

    @property
    def gap_change(self) -> float:
        """gap(θ + dθ) - gap(θ), measured; the proposition says that it is at least 0."""
        return (self.noisy_loss_pruned - self.clean_loss_pruned) - (self.noisy_loss - self.clean_loss)

    @property
    def expected_gap_change(self) -> float:
        """The same by A.2's expansion up to second order; far from the measured one, dθ is not small."""
        return self.alignment - self.clean_alignment + self.curvature

    def to_json(self) -> dict[str, Any]:
        """Everything, with both gap changes."""
        numbers = {name: value for name, value in asdict(self).items() if name != "keep"}
        gaps = {"gap_change": self.gap_change, "expected_gap_change": self.expected_gap_change}
        return numbers | gaps | {"keep": self.keep.to_json()}


def proposition_1(
    model: nn.Module,
    keep: HeadSet,
    clean: Data,
    noisy: Data,
    *,
    over: str = "removed",
    probes: int = 32,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool | None = None,
) -> Proposition1:
    """The conditions of Proposition 1 for a model of which only some heads are kept.

    Args:
        model: a model of one tower, or a `Member`; looked at in fp32 or better, without dropout.
        keep: the heads that stay, as the backbone numbers them.
        clean: known inputs with labels.
        noisy: the same, corrupted.
        over: whose diagonal: of the weights that `"removed"` heads have, which are all that dθ sees, or of `"all"`.
        probes: vectors of random signs, at least 2.
        seed: of the probes.
        batch_size: for data given as tensors.
        progress: show a bar; by default on a terminal.
    """
    if over not in OVER:
        raise AnalysisError(f"over='{over}' is not known; known: {', '.join(OVER)}")
    if probes < 2:
        raise AnalysisError(f"a standard error needs at least 2 probes, found {probes}")
    one_tower(model)
    working = Working(model)
    removed = list(working.start - keep)
    if not removed:
        raise AnalysisError("keep removes no head of the model, so there is no change to look at; keep fewer")
    places = head_weights(working.backbone, [working.local(head) for head in removed])
    weights, chosen = _union(places)
    _follow(working.model, weights)
    sets = {"clean": as_batches(clean, batch_size), "noisy": as_batches(noisy, batch_size)}
    losses = {name: _losses(working.model, batches) for name, batches in sets.items()}
    change_N = -torch.cat([weight.detach()[mask] for weight, mask in zip(weights, chosen, strict=True)])
    # Fused attention kernels have no second derivative.
    with torch.enable_grad(), torch.autocast(working.device.type, enabled=False), sdpa_kernel(SDPBackend.MATH):
        gradients, loss = {}, {}
        for name in sets:
            loss[name], gradients[name] = _gradient(losses[name], weights)
        bent = {name: hessian_products(losses[name], weights, chosen, change_N[None])[0] for name in sets}
        with torch.no_grad(), ablate(working.model, keep.within(working.start)):
            pruned = {name: float(sum(part.double() for part in losses[name]())) for name in sets}
        if over == "all":
            weights = list(working.model.parameters())
            chosen = [torch.ones_like(weight, dtype=torch.bool) for weight in weights]
            _follow(working.model, weights)
        diagonals = _diagonals(losses, weights, chosen, probes, seed, progress)
    by_part: dict[str, float] = {}
    for part, weight, mask in places:
        by_part[part] = by_part.get(part, 0.0) + _along(weight, gradients["noisy"][weight], mask)
    clean_alignment = sum(_along(weight, gradients["clean"][weight], mask) for _, weight, mask in places)
    gap = diagonals["difference"]
    # No loss depends on a key bias, which shifts all scores of a query alike: rounding must not give it a sign.
    sizes_N = diagonals["clean"].mean_N.abs() + diagonals["noisy"].mean_N.abs()
    dust = 16 * torch.finfo(change_N.dtype).eps * float(sizes_N.max())
    return Proposition1(
        alignment=sum(by_part.values()),
        alignment_by_part=by_part,
        clean_alignment=clean_alignment,
        curvature=float(change_N.double() @ (bent["noisy"] - bent["clean"])) / 2,
        clean_loss=loss["clean"],
        noisy_loss=loss["noisy"],
        clean_loss_pruned=pruned["clean"],
        noisy_loss_pruned=pruned["noisy"],
        clean_diagonal=diagonals["clean"].average,
        clean_diagonal_error=diagonals["clean"].average_error,
        noisy_diagonal=diagonals["noisy"].average,
        noisy_diagonal_error=diagonals["noisy"].average_error,
        difference=gap.average,
        difference_error=gap.average_error,
        positive=_share(gap.mean_N > dust),
        surely_positive=_share(gap.mean_N > (SURE * gap.error_N).clamp_min(dust)),
        surely_negative=_share(gap.mean_N < -(SURE * gap.error_N).clamp_min(dust)),
        keep=keep,
        over=over,
        numbers=len(gap.mean_N),
        probes=probes,
        seed=seed,
    )


class Place(NamedTuple):
    """Which numbers of a weight belong to some heads, and what they are: a boolean of the weight's shape."""

    part: str
    weight: Tensor
    mask: Tensor


def head_weights(backbone: Backbone, heads: Iterable[Head]) -> list[Place]:
    """All that pruning takes away with some heads (D.1.1): rows of W_q, W_k, W_v, their biases, columns of W_O.

    Also rows of an output gate and the head's own scale, where a model has them. `heads` as the backbone numbers them.
    """
    gone = list(heads)
    places: list[Place] = []
    for tower, layer, block in backbone.blocks():
        here = [head.index for head in gone if (head.tower, head.layer) == (tower, layer)]
        if not here:
            continue
        attention = block.attention
        channels = channels_of(here, attention.head_dim)
        size = attention.num_heads * attention.head_dim
        for third, part in enumerate(("query", "key", "value")):
            if isinstance(attention.qkv, PackedQKV):
                rows, holder = channels + third * size, attention.qkv
                places += [Place(part, w, _mask(w, rows)) for w in (holder.weight, holder.bias) if w is not None]
                own = getattr(holder, f"{part[0]}_bias", None)
                places += [] if own is None else [Place(part, own, _mask(own, channels))]
            else:
                linear = getattr(attention.qkv, part[0])
                places += [Place(part, w, _mask(w, channels)) for w in (linear.weight, linear.bias) if w is not None]
        places.append(Place("out", attention.out.weight, _mask(attention.out.weight, channels, dim=1)))
        if attention.gate is not None:
            places += [Place("gate", w, _mask(w, channels)) for w in attention.gate.parameters()]
        if attention.head_scale is not None:
            places.append(Place("scale", attention.head_scale, _mask(attention.head_scale, torch.tensor(here))))
    return places


def _mask(weight: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    mask = torch.zeros_like(weight, dtype=torch.bool)
    return mask.index_fill_(dim, index.to(weight.device), True)


def _union(places: Sequence[Place]) -> tuple[list[Tensor], list[Tensor]]:
    """Every weight once, with all of its numbers that some place names."""
    masks: dict[Tensor, Tensor] = {}
    for _, weight, mask in places:
        masks[weight] = masks[weight] | mask if weight in masks else mask
    return list(masks), list(masks.values())


def _follow(model: nn.Module, weights: Sequence[Tensor]) -> None:
    """Have gradients of these weights alone, whatever was frozen before."""
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)


def _losses(model: nn.Module, batches: Batches) -> Losses:
    """The mean cross-entropy over all rows, a part a batch."""
    forward, device = family_of(model).own_forward, next(model.parameters()).device

    def parts() -> Iterator[Tensor]:
        for batch in batches:
            if batch.labels is None:
                raise AnalysisError("a loss needs labels, of clean and of noisy inputs; give (inputs, labels)")
            logits = forward(model, inputs_to(batch.inputs, device))
            labels = known_labels(batch.labels, logits.shape[-1], AnalysisError).to(device)
            yield F.cross_entropy(logits, labels, reduction="sum") / batches.num_rows

    return parts


def _gradient(losses: Losses, weights: list[Tensor]) -> tuple[float, dict[Tensor, Tensor]]:
    total, value = {weight: torch.zeros_like(weight, dtype=torch.float64) for weight in weights}, 0.0
    for loss in losses():
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            total[weight] += gradient
        value += loss.item()
    return value, total


def _along(weight: Tensor, gradient: Tensor, mask: Tensor) -> float:
    """∇L·dθ of one place, where dθ = -θ."""
    return -float((gradient[mask] * weight.detach()[mask].double()).sum())


def _diagonals(
    losses: Mapping[str, Losses],
    weights: Sequence[Tensor],
    chosen: Sequence[Tensor],
    probes: int,
    seed: int,
    progress: bool | None,
) -> dict[str, Diagonal]:
    found = {name: Moments() for name in ("clean", "noisy", "difference")}
    console = Console(stderr=True)
    disable = not (console.is_terminal if progress is None else progress)
    samples = zip(*(diagonal_samples(losses[name], weights, chosen, probes, seed) for name in losses), strict=True)
    for clean_N, noisy_N in track(
        samples, "probing the Hessians", total=probes, console=console, transient=True, disable=disable
    ):
        for name, sample_N in (("clean", clean_N), ("noisy", noisy_N), ("difference", noisy_N - clean_N)):
            found[name].add(sample_N)
    return {name: moments.diagonal() for name, moments in found.items()}


def _share(claims_N: Tensor) -> float:
    return float(claims_N.double().mean())
