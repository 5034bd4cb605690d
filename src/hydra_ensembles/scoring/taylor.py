"""Taylor scores: heads by the size of weight times gradient (the paper, D.1.1).

G is the gradient of the mean loss over the calibration set; a head's score is the mean of |W * G| over its rows of
W_q, W_k and W_v. Shapes: H heads, K head dim, D width.
"""

import math
from collections.abc import Collection, Mapping
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones import Block, family_of
from hydra_ensembles.backbones.attention import PackedQKV
from hydra_ensembles.backbones.backbone import dtype_of
from hydra_ensembles.data import Batches, Data, as_batches
from hydra_ensembles.data.batches import inputs_to, known_labels
from hydra_ensembles.heads import Head, HeadRanking
from hydra_ensembles.optional import made_with
from hydra_ensembles.scoring.candidates import heads_in
from hydra_ensembles.scoring.objectives import ScoringError
from hydra_ensembles.scoring.working import Working
from hydra_ensembles.store import tensors_digest

SCOPES = ("layer", "global")


def taylor_ranking(
    model: nn.Module,
    data: Data,
    remove: int,
    *,
    scope: str = "layer",
    layers: Collection[int] | None = None,
    towers: Collection[str] | str | None = None,
    by_tower: bool = False,
    batch_size: int = 32,
) -> HeadRanking:
    """Rank heads by their Taylor score on a calibration set with labels, least important first.

    Args:
        model: a model of a supported family, or a `Member`.
        data: known inputs with labels.
        remove: heads to remove, in every layer (`scope="layer"`) or in all (`scope="global"`).
        scope: `"layer"` (the paper): layer by layer, from the first to the last, the least important heads are taken
            out and the gradients computed again; such a ranking holds at its own budget only. `"global"`: one
            gradient, all heads compared with each other.
        layers: where heads may be removed; everywhere by default.
        towers: likewise: `"vision"`, `"text"`, several, or `"both"`. The paper takes `"vision"`, because the scores of
            two towers are of different sizes (Figure 7).
        by_tower: with `scope="global"`, divide each tower's scores by their mean, so that heads of two towers can be
            compared (ours); the scores of the ranking are those quotients.
        batch_size: for data given as tensors.
    """
    if scope not in SCOPES:
        raise ScoringError(f"scope '{scope}' is not known; known: {', '.join(SCOPES)}")
    if by_tower and scope != "global":
        raise ScoringError("by_tower=True is for scope='global'; layer by layer no two towers are compared")
    batches, working = as_batches(data, batch_size), Working(model)
    working.require_gradients()
    chosen = heads_in(working.start, layers, towers)
    how = {"method": "taylor", "scope": scope, "data": batches.digest, **({"by_tower": True} if by_tower else {})}
    how |= {
        "model": tensors_digest(working.model.state_dict().items()),
        "made_with": made_with(dtype_of(working.model)),
    }
    removed: list[tuple[Head, float]] = []
    if scope == "global":
        if not 1 <= remove < len(chosen):
            raise ScoringError(f"remove={remove}: between 1 and {len(chosen) - 1} of {len(chosen)} heads can go")
        by_head = taylor_scores(working, batches)
        by_head = over_tower_means(by_head) if by_tower else by_head
        removed = [(head, by_head[head]) for head in _least(chosen, by_head, remove)]
    else:
        for tower, layer in dict.fromkeys((head.tower, head.layer) for head in chosen):
            heads = [head for head in chosen if (head.tower, head.layer) == (tower, layer)]
            if not 1 <= remove <= len(heads):
                raise ScoringError(f"remove={remove}: layer {layer} of tower '{tower}' has {len(heads)} heads")
            by_head = taylor_scores(working, batches, (tower, layer))
            least = _least(heads, by_head, remove)
            removed += [(head, by_head[head]) for head in least]
            working.remove(least)
    return HeadRanking(
        working.start,
        tuple(head for head, _ in removed),
        tuple(score for _, score in removed),
        budget=len(removed) if scope == "layer" else None,
        how=how,
    )


def taylor_scores(working: Working, batches: Batches, only: tuple[str, int] | None = None) -> dict[Head, float]:
    """The score of every head that is left, or of those in one (tower, layer): gradients then go back no further."""
    blocks = [
        (tower, layer, block)
        for tower, layer, block in working.backbone.blocks()
        if block.attention.num_heads and only in (None, (tower, layer))
    ]
    weights = {(tower, layer): _query_key_value(block) for tower, layer, block in blocks}
    gradients = mean_gradients(working.model, [w for part in weights.values() for w in part], batches)
    by_head: dict[Head, float] = {}
    for tower, layer, block in blocks:
        H, K = block.attention.num_heads, block.attention.head_dim
        products = [(w.detach() * gradients[w]).abs() for w in weights[tower, layer]]
        if len(products) == 1:  # queries, keys and values are rows of one matrix
            products = list(products[0].chunk(3))
        scores_H = torch.stack([p.double().unflatten(0, (H, K)).mean(dim=(1, 2)) for p in products]).mean(dim=0)
        heads = [Head(tower, layer, index) for index in working.keep[tower][layer]]
        by_head |= dict(zip(heads, scores_H.tolist(), strict=True))
    if not all(map(math.isfinite, by_head.values())):
        raise ScoringError("the model gives gradients that are not finite; check its weights and the inputs")
    return by_head


def over_tower_means(by_head: Mapping[Head, float]) -> dict[Head, float]:
    """Every score as a multiple of the mean of its tower's."""
    towers = {head.tower for head in by_head}
    means = {tower: fmean(score for head, score in by_head.items() if head.tower == tower) for tower in towers}
    # A tower without any gradient has nothing to compare.
    return {head: score / means[head.tower] if means[head.tower] else 0.0 for head, score in by_head.items()}


def mean_gradients(model: nn.Module, weights: list[Tensor], batches: Batches) -> dict[Tensor, Tensor]:
    """The gradient of the mean cross-entropy over all rows, by weight."""
    forward, device = family_of(model).own_forward, weights[0].device
    total = {w: torch.zeros_like(w) for w in weights}
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for batch in batches:
            if batch.labels is None:
                raise ScoringError("Taylor scores need labels; give (inputs, labels)")
            logits = forward(model, inputs_to(batch.inputs, device))
            labels = known_labels(batch.labels, logits.shape[-1], ScoringError).to(device)
            loss = F.cross_entropy(logits, labels, reduction="sum") / batches.num_rows
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                total[weight] += gradient
    return total


def _query_key_value(block: Block) -> list[Tensor]:
    """W_q, W_k and W_v as the model holds them: three matrices, or one."""
    qkv = block.attention.qkv
    return [qkv.weight] if isinstance(qkv, PackedQKV) else [weight for weight, _ in qkv.matrices()]


def _least(heads: list[Head], by_head: dict[Head, float], number: int) -> list[Head]:
    return sorted(heads, key=lambda head: (by_head[head], head))[:number]
