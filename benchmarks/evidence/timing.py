"""Latency of the methods in one interleaved run, as they really run: hydras compute of the last block what is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evidence.methods import SEEDS_OF, Row, members_of, row
from evidence.networks import Networks
from hydra_ensembles import fuse
from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines import DeepEnsemble
from hydra_ensembles.evaluation import interleaved
from hydra_ensembles.evaluation.latency import sample_inputs
from provenance import provenance, write_results

BATCH, ROUNDS, THREADS = 4, 20, 2


def measure(networks: Networks, packages: list[str], more: Sequence[Row] = ()) -> None:
    """Time every method of a setting and more rows, and write `results/SETTING/latency.json`."""
    torch.set_num_threads(THREADS)
    found = timed(networks, BATCH, ROUNDS, more)
    write_results(f"{networks.setting.name}/latency", {**found, "provenance": provenance(packages=packages)})


def timed(networks: Networks, batch: int, rounds: int, more: Sequence[Row] = ()) -> Mapping[str, Any]:
    """Milliseconds a batch by method, and as a ratio to the single network's."""
    setting = networks.setting
    base = networks.load(networks.base(0))
    inputs: Inputs = sample_inputs(base.model, batch, setting.tokens)
    runs: dict[str, Callable[[], Tensor]] = {}
    for method in (*SEEDS_OF, *setting.more_methods):
        runs[method] = _asking(_model(networks, row(networks, method, 0)), inputs)
    runs |= {one.method: _asking(_model(networks, one), inputs) for one in more}
    with torch.inference_mode():
        timings = list(interleaved(runs, rounds))[-1]
    single = timings["single"]
    return {
        "ratios": {method: timing.over(single).median_ms for method, timing in timings.items()},
        "ms": {
            method: {"median_ms": timing.median_ms, "low_ms": timing.low_ms, "high_ms": timing.high_ms}
            for method, timing in timings.items()
        },
        "settings": {"batch": batch, "rounds": rounds, "tokens": setting.tokens, "threads": torch.get_num_threads()},
    }


def _asking(model: nn.Module, inputs: Inputs) -> Callable[[], Tensor]:
    members: Callable[[Inputs], Tensor] = model.members  # type: ignore[assignment]
    return lambda: members(inputs)


def _model(networks: Networks, found: Row) -> nn.Module:
    """A method's network; where weights do not matter for time, those of `single`."""
    method, base, number = found.method, networks.load(networks.base(0)), networks.setting.members
    if method in ("single", "single+"):
        return DeepEnsemble([base]).eval()
    if method in ("DE(D)", "DE(D)+", "LoRA"):
        return DeepEnsemble([networks.load(networks.base(m)) for m in range(number)]).eval()
    if found.model is not None:
        return found.model().eval()  # type: ignore[no-any-return]
    if method == "DE-heads":
        return fuse([networks.load(networks.classifier(m)) for m in range(number)])
    unit = members_of(networks, "taylor" if method == "Taylor" else "circuit", 0)[0]
    return DeepEnsemble([networks.load(unit)]).eval()
