"""Latency of one network, of an ensemble of copies, of pruned members and of the hydra, in one interleaved run.

On a shared machine two runs cannot be compared, so every contestant runs once in every round, forwards in one and
backwards in the next, and medians of one run, or of its rounds' ratios, are set against each other.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import Backbone, Inputs, Tower, family_of
from hydra_ensembles.backbones.stems import TokenStem
from hydra_ensembles.evaluation.bare import Bare, BareError
from hydra_ensembles.fusion import Hydra, fuse
from hydra_ensembles.heads import HeadSet, HeadSetError, hydra_cost, prune, single_cost
from hydra_ensembles.heads.cost import tokens_of

WARM_UP = 2
"""Rounds that do not count."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a contestant: median, the quartiles around it, and every round's."""

    median_ms: float
    low_ms: float
    high_ms: float
    times_ms: tuple[float, ...] = ()

    def over(self, other: "Timing") -> "Timing":
        """Ratios to another contestant of the same run, round by round, with their median and quartiles.

        >>> _timing([2.0, 2.0, 6.0]).over(_timing([1.0, 2.0, 3.0])).median_ms
        2.0
        """
        return _timing([mine / its for mine, its in zip(self.times_ms, other.times_ms, strict=True)])


def interleaved(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = WARM_UP, rest_s: float = 0.0
) -> Iterator[dict[str, Timing]]:
    """Run every contestant once a round, in turn and back; yields the timings after each round that counts.

    `rest_s` is a pause before each, in which the threads of another library fall asleep.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, run in list(contestants.items())[:: -1 if turn % 2 else 1]:
            time.sleep(rest_s)
            _finish_on_gpu()
            started = time.perf_counter()
            run()
            _finish_on_gpu()
            if turn >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - started))
        if turn >= warm_up:
            yield {name: _timing(measured) for name, measured in times.items()}


def _finish_on_gpu() -> None:
    """A GPU is given its work and goes on behind the program: wait until it is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _timing(milliseconds: Sequence[float]) -> Timing:
    if len(milliseconds) < 2:
        return Timing(milliseconds[0], milliseconds[0], milliseconds[0], tuple(milliseconds))
    low, _, high = quantiles(milliseconds, n=4, method="inclusive")
    return Timing(median(milliseconds), low, high, tuple(milliseconds))


@dataclass(frozen=True)
class Contest:
    """Who runs against whom, on which inputs."""

    contestants: dict[str, Callable[[], object]]
    hydra: Hydra
    arithmetic_ratio: float
    """Multiply-adds of the hydra over those of the single network."""


def contest(
    model: nn.Module,
    inputs: Inputs,
    keep: int,
    members: int = 3,
    trunk: int = 0,
    last_block: str = "read",
    compiled: bool = False,
    text_tokens: int | None = None,
) -> Contest:
    """`single`, `deep_ensembles` (M whole models, one after another), `members` (M pruned ones), `hydra` and `bare`.

    `bare` is the hydra's arithmetic without a module around it, for models where that is written down.
    Members keep `keep` heads a layer and differ in every number behind the stem, as after fine-tuning; the first
    `trunk` blocks keep all heads and are alike. `compiled` puts all but `bare` through torch.compile, when first run.
    `text_tokens` is the length of texts in `inputs`, of which the arithmetic ratio is; 128 unless said.
    """
    heads, own_forward = branch_heads(model, keep, trunk), family_of(model).own_forward
    whole = [moved(copy.deepcopy(model), seed, 0) for seed in range(members)]
    pruned = [prune(model, heads) for _ in range(members)]
    for seed, member in enumerate(pruned):
        moved(member.model, seed, trunk)
    hydra = fuse(pruned, last_block=last_block)
    backbone = Backbone.of(model)
    cost = hydra_cost(backbone, [heads] * members, trunk, last_block, text_tokens)
    ratio = cost.mult_adds / single_cost(backbone, text_tokens=text_tokens).mult_adds
    single = copy.deepcopy(model) if compiled else model
    for network in (single, *whole, *pruned, *hydra.towers.values()) if compiled else ():
        network.compile()
    runs: dict[str, Callable[[], object]] = {
        "single": lambda: own_forward(single, inputs),
        "deep_ensembles": lambda: torch.stack([own_forward(other, inputs) for other in whole]),
        "members": lambda: torch.stack([member(inputs) for member in pruned]),
        "hydra": lambda: hydra.members(inputs),
    }
    with suppress(BareError):
        runs["bare"] = Bare(hydra, inputs)
    return Contest(runs, hydra, ratio)


def sample_inputs(model: nn.Module, batch: int, text_tokens: int | None = None) -> Inputs:
    """Random inputs that fit the model, `batch` of each tower's.

    Texts have 8 tokens, `text_tokens` where that is said and the model takes so many, or the one length it takes.
    """
    backbone = Backbone.of(model)
    towers = {name: tower for name, tower in backbone.towers.items() if name not in backbone.fixed}
    samples = {name: _sample(tower, text_tokens) for name, tower in towers.items()}
    inputs = {name: x.expand(batch, *x.shape[1:]).contiguous() for name, x in samples.items()}
    return inputs if len(inputs) > 1 else next(iter(inputs.values()))


def _sample(tower: Tower, text_tokens: int | None) -> Tensor:
    sample: Tensor = tower.stem.sample()
    if text_tokens is None or not isinstance(tower.stem, TokenStem) or tower.stem.pool is not None:
        return sample
    return sample.repeat(1, -(-text_tokens // sample.shape[1]))[:, : tokens_of(tower, text_tokens)]


def branch_heads(model: nn.Module, keep: int, trunk: int) -> HeadSet:
    """`keep` heads in every layer behind the trunk, all in the trunk."""
    few = HeadSet.first(model, keep)
    if not 0 <= trunk <= min(len(layers) for layers in few.kept):
        raise HeadSetError(f"a trunk of {trunk} blocks does not fit the model")
    full = few.full()
    kept = {tower: [*full[tower][:trunk], *few[tower][trunk:]] for tower in few.towers}
    return HeadSet.of(kept, dict(zip(few.towers, few.num_heads, strict=True)))


def moved(model: nn.Module, seed: int, trunk: int) -> nn.Module:
    """Every number behind the stem and the trunk changed a little, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tower in Backbone.of(model).towers.values():
            for part in (*tower.blocks[trunk:], tower.readout):
                for p in part.parameters():
                    p.add_(1e-3 * torch.randn(p.shape, generator=generator).to(p))
    return model
