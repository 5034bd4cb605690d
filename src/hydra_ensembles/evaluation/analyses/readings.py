"""Readings: what every head says at the positions that the readout reads.

Shapes: B batch, R rows, T tokens, S tokens read, H heads, K head dim.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Block, Inputs, State
from hydra_ensembles.backbones.state import take
from hydra_ensembles.data import Data, as_batches
from hydra_ensembles.data.batches import inputs_to
from hydra_ensembles.evaluation.analyses.subject import AnalysisError, Subject, one_tower
from hydra_ensembles.heads import Head


def readings(
    model: nn.Module, data: Data, layers: Collection[int] | None = None, batch_size: int = 64
) -> Iterator[dict[int, Tensor]]:
    """By layer, the outputs of its heads before W_O at the readout's position `(B, H, K)`, a batch at a time.

    That position is the CLS or end-of-text token; where the readout looks at several tokens, their mean. Heads are in
    the order of their numbers.
    """
    subject = one_tower(model)
    depth = len(subject.tower.blocks)
    for layer in layers or ():
        if not 0 <= layer < depth:
            raise AnalysisError(f"layer {layer} is not there; the model's layers are 0 to {depth - 1}")
    wanted = range(depth) if layers is None else layers
    for batch in as_batches(data, batch_size):
        yield _of_batch(subject, inputs_to(batch.inputs, subject.device), wanted)


def outputs_of(model: nn.Module, data: Data, heads: Sequence[Head], batch_size: int = 64) -> dict[Head, Tensor]:
    """The outputs `(R, K)` of some heads, rows in the order of the data itself, in float64."""
    have = one_tower(model).heads
    for head in heads:
        if head not in have:
            raise AnalysisError(f"{head} is not there: the model lacks or has lost it")
    batches = as_batches(data, batch_size)
    found: dict[Head, list[Tensor]] = {head: [] for head in heads}
    for by_layer in readings(model, batches, {head.layer for head in heads}):
        for head in found:
            place = have[head.tower][head.layer].index(head.index)
            found[head].append(by_layer[head.layer][:, place].double().cpu())
    whole = {head: torch.cat(parts) for head, parts in found.items()}
    order: Any = getattr(batches, "order", None)  # texts come in batches of like length
    return {head: z[order.argsort()] for head, z in whole.items()} if isinstance(order, Tensor) else whole


@torch.no_grad()
def _of_batch(subject: Subject, inputs: Inputs, layers: Collection[int]) -> dict[int, Tensor]:
    tower, found = subject.tower, {}
    state: State = tower.stem(inputs)
    for layer in range(max(layers, default=-1) + 1):
        block = tower.blocks[layer]
        assert isinstance(block, Block)
        read, is_last = tower.readout.reads(state), layer == len(tower.blocks) - 1
        z_BTHK = block.heads(state, read if is_last else None)
        if layer in layers:
            z_BSHK = z_BTHK if is_last else take(z_BTHK, read)
            found[layer] = z_BSHK.mean(dim=1)
        if not is_last:
            state = block.finish(state, block.project(z_BTHK))
    return found
