"""All candidates of one batch, without ever computing a prefix twice.

One pass keeps each block's input. A candidate (a head to be turned off) starts at its own layer, from the attention
output with its head's contribution subtracted after W_O, and only what follows is computed again. Candidates of one
layer run together.

Shapes: A candidates, B batch, T tokens, S tokens computed, D width, H heads, K head dim, C classes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hydra_ensembles.backbones import Backbone, Block, Inputs, Tower
from hydra_ensembles.backbones.state import Read, State, repeated
from hydra_ensembles.heads import Head, HeadSet
from hydra_ensembles.heads.cost import block_cost, mlp_cost
from hydra_ensembles.scoring.objectives import ScoringError
from hydra_ensembles.scoring.work import Work

BOTH = "both"
TOKENS_AT_ONCE = 2**13
"""Candidates run together up to so many tokens: more gain nothing and take memory."""


def heads_in(start: HeadSet, layers: Collection[int] | None, towers: Collection[str] | str | None) -> list[Head]:
    """The heads of some layers and towers, in (tower, layer, head) order; of all, by default."""
    if isinstance(towers, str):
        towers = None if towers == BOTH else (towers,)
    for tower in towers or ():
        if tower not in start.towers:
            raise ScoringError(f"the model has no tower '{tower}'; it has {', '.join(start.towers)}")
    deepest = max(len(kept) for kept in start.kept)
    for layer in layers or ():
        if not 0 <= layer < deepest:
            raise ScoringError(f"layer {layer} is not there; the model's layers are 0 to {deepest - 1}")
    return [
        head for head in start if (towers is None or head.tower in towers) and (layers is None or head.layer in layers)
    ]


def candidate_logits(
    backbone: Backbone,
    inputs: Inputs,
    candidates: Sequence[Head],
    work: Work,
    known: Mapping[str, Sequence[tuple[list[int], Tensor]]] | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """The logits `(A, B, C)` of groups of candidates, with the places of each group in `candidates`.

    `candidates` are heads as this backbone numbers them. Its own logits `(1, B, C)` come last, with no place.
    `known` are features of towers that do not look at the inputs, so that they need not be computed for every batch.
    """
    parts = backbone.parts(inputs)
    waiting: list[tuple[str, list[int], Tensor]] = []
    features: dict[str, Tensor] = {}
    for name, tower in backbone.towers.items():
        groups = known[name] if known and name in known else tower_features(name, tower, parts[name], candidates, work)
        for found, features_ABC in groups:
            if not found:
                features[name] = features_ABC[0]
            elif backbone.contrast is None:
                yield found, features_ABC
            else:
                waiting.append((name, found, features_ABC))
    for name, found, features_ABC in waiting:  # towers can meet only when each has been through
        yield found, torch.stack([backbone.join({**features, name: one}) for one in features_ABC])
    yield [], backbone.join(features)[None]


def tower_features(
    name: str, tower: Tower, inputs: Inputs, candidates: Sequence[Head], work: Work
) -> Iterator[tuple[list[int], Tensor]]:
    """Features `(A, B, E)` of groups of a tower's candidates, with their places; at last the tower's own, with none."""
    places: list[list[int]] = [[] for _ in tower.blocks]
    for place, head in enumerate(candidates):
        if head.tower == name:
            places[head.layer].append(place)
    heads = [[candidates[place].index for place in layer] for layer in places]
    for layer, group, features in _tower_features(name, tower, inputs, heads, work):
        yield [] if layer is None else [places[layer][i] for i in group], features


def _tower_features(
    name: str, tower: Tower, inputs: Inputs, heads: list[list[int]], work: Work
) -> Iterator[tuple[int | None, range, Tensor]]:
    """Features of each group of candidates `(A, B, C)` as (layer, places in that layer); at last the tower's own."""
    state: State = tower.stem(inputs)
    B, T = state.tokens.shape[:2]
    blocks: list[Block] = list(tower.blocks)  # type: ignore[arg-type]
    at_once = max(1, TOKENS_AT_ONCE // (B * T))
    for layer, block in enumerate(blocks):
        read = _read(tower, layer, state)
        z_BSHK = block.heads(state, read)
        attention_BSD = block.project(z_BSHK)
        S, K, D = attention_BSD.shape[1], block.attention.head_dim, attention_BSD.shape[2]
        for start in range(0, len(heads[layer]), at_once):
            group = range(len(heads[layer]))[start : start + at_once]
            A = len(group)
            ablated_ABSD = attention_BSD - contributions(block, z_BSHK, [heads[layer][i] for i in group])
            apart = repeated(state, A)
            apart = block.finish(apart, ablated_ABSD.flatten(0, 1), _read(tower, layer, apart))
            work.add(name, layer, block, T, A * B * (S * K * D + mlp_cost(block.mlp, S).mult_adds))
            for later in range(layer + 1, len(blocks)):
                apart = blocks[later](apart, _read(tower, later, apart))
                spent = block_cost(blocks[later], T, apart.tokens.shape[1]).mult_adds
                work.add(name, later, blocks[later], T, A * B * spent)
            yield layer, group, tower.readout(apart).unflatten(0, (A, B))
        state = block.finish(state, attention_BSD, read)
        work.add(name, layer, block, T, B * block_cost(block, T, S).mult_adds)
    yield None, range(0), tower.readout(state)[None]


def contributions(block: Block, z_BSHK: Tensor, heads: Sequence[int]) -> Tensor:
    """What each head adds to the attention output, after W_O: `(A, B, S, D)`."""
    attention = block.attention
    weight_DHK = attention.out.weight.unflatten(1, (attention.num_heads, attention.head_dim))
    chosen = torch.tensor(list(heads), device=z_BSHK.device)
    B, S = z_BSHK.shape[:2]
    z_ANK = z_BSHK.index_select(2, chosen).permute(2, 0, 1, 3).flatten(1, 2)
    weight_AKD = weight_DHK.index_select(1, chosen).permute(1, 2, 0)
    return torch.bmm(z_ANK, weight_AKD).reshape(len(heads), B, S, -1)


def _read(tower: Tower, layer: int, state: State) -> Read:
    return tower.readout.reads(state) if layer == len(tower.blocks) - 1 else None
