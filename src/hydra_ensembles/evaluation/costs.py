"""What models cost: parameters and multiply-adds, counted; latency, measured in one interleaved run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone
from hydra_ensembles.backbones.backbone import dtype_of
from hydra_ensembles.backbones.stems import TokenStem
from hydra_ensembles.evaluation.answers import Model, in_evaluation_mode, member_logits, networks
from hydra_ensembles.evaluation.latency import Timing, interleaved, sample_inputs
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.fusion.grouped import MemberStems
from hydra_ensembles.heads import Cost, Member, hydra_cost, prune, single_cost
from hydra_ensembles.heads.cost import NOTHING, stem_cost, tokens_of


@dataclass(frozen=True)
class Costs:
    """By model what it costs, and how its latency was measured."""

    counted: Mapping[str, Cost]
    """Of several networks that answer together, the sum."""
    latency: Mapping[str, Timing]
    """Milliseconds a batch; nothing where there were no rounds."""
    batch: int
    dtype: str
    threads: int
    rounds: int
    text_tokens: int | None
    """Tokens of every text, at which multiply-adds were counted too; None of images."""

    def to_json(self) -> dict[str, Any]:
        """By model; a model that was not timed has None as latency."""
        names = ("batch", "dtype", "threads", "rounds", "text_tokens")
        return {
            "models": {
                name: {**cost.to_json(), "latency_ms": _in_ms(self.latency.get(name))}
                for name, cost in self.counted.items()
            },
            "settings": {name: getattr(self, name) for name in names},
        }


def costs(
    models: Mapping[str, Model], base: nn.Module, *, batch: int = 4, rounds: int = 20, text_tokens: int | None = None
) -> Costs:
    """Count and time models of one backbone.

    Args:
        models: hydras, members, whole models, or several of them that answer together, by name.
        base: the model that the heads of a hydra were chosen in.
        batch: inputs at once, random ones that fit.
        rounds: in each, every model answers once, in turn; 0 for no latency.
        text_tokens: tokens of a text; 128 unless said, or as many as the model takes.
    """
    texts = [tower for tower in _backbone(base).towers.values() if isinstance(tower.stem, TokenStem)]
    tokens = tokens_of(texts[0], text_tokens) if texts else None
    inputs = sample_inputs(_module(base), batch, tokens)
    runs: dict[str, Callable[[], Tensor]] = {
        name: partial(member_logits, model, inputs) for name, model in models.items()
    }
    asked = [one for model in models.values() for one in networks(model)]
    with in_evaluation_mode(asked), torch.inference_mode():
        timings = list(interleaved(runs, rounds))[-1] if rounds else {}
    return Costs(
        {name: sum((network_cost(one, base, tokens) for one in networks(m)), NOTHING) for name, m in models.items()},
        timings,
        batch,
        str(dtype_of(base)).removeprefix("torch."),
        torch.get_num_threads(),
        rounds,
        tokens,
    )


def network_cost(model: nn.Module, base: nn.Module, text_tokens: int | None = None) -> Cost:
    """The parameters that a network really has, and its multiply-adds per input; of a hydra, as it was fused."""
    params = sum(p.numel() for p in model.parameters())
    if not isinstance(model, Hydra):
        return Cost(params, single_cost(_backbone(model), text_tokens=text_tokens).mult_adds)
    # A trunk that was found, not asked for, keeps in each block the heads that all members keep.
    shape = prune(base, model.heads[0]).backbone
    counted = hydra_cost(shape, model.heads, model.trunk, model.last_block, text_tokens)
    for name, tower in model.towers.items():
        if isinstance(tower.stem, MemberStems):
            counted += Cost(0, (model.num_members - 1) * stem_cost(shape.towers[name]).mult_adds)
    return Cost(params, counted.mult_adds)


def _module(model: nn.Module) -> nn.Module:
    return model.model if isinstance(model, Member) else model


def _backbone(model: nn.Module) -> Backbone:
    return Backbone.of(_module(model))


def _in_ms(timing: Timing | None) -> dict[str, float] | None:
    return None if timing is None else {"median": timing.median_ms, "low": timing.low_ms, "high": timing.high_ms}
