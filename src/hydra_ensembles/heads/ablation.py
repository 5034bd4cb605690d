"""Reversible ablation: heads turned off for as long as a block of code runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone
from hydra_ensembles.backbones.surgery import channels_of
from hydra_ensembles.heads.head_set import HeadSet
from hydra_ensembles.heads.member import Member


@contextmanager
def ablate(model: nn.Module, keep: HeadSet) -> Iterator[nn.Module]:
    """Turn off every head that `keep` does not keep; on leaving, also by an exception, the old bits return.

    The paper's operator (D.1.2): the column blocks of W_O that read the removed heads are set to zero, in place, so
    the model's own forward is what runs. Contexts nest. Inside, the model is changed for every thread that uses it,
    and an optimiser's update of the zeroed columns is lost on leaving.
    """
    if isinstance(model, Member):
        backbone, keep = model.backbone, keep.within(model.heads)
    else:
        backbone = model if isinstance(model, Backbone) else Backbone.of(model)
    keep.check_fits(backbone)
    saved: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for tower, layer, block in backbone.blocks():
                attention = block.attention
                removed = sorted(set(range(attention.num_heads)) - set(keep[tower][layer]))
                weight = attention.out.weight
                columns = channels_of(removed, attention.head_dim).to(weight.device)
                saved.append((weight, columns, weight[:, columns].clone()))
                weight[:, columns] = 0
        # Autocast keeps its copies of weights until its outermost context ends, whatever becomes of the weights.
        torch.clear_autocast_cache()
        yield model
    finally:
        with torch.no_grad():
            for weight, columns, values in saved:
                weight[:, columns] = values
        torch.clear_autocast_cache()
