"""Latency of the methods in one interleaved run, as they really run: hydras compute of the last block what is read.

A network takes as long before its training as after it, so the pre-trained model is all that is needed. It keeps the
heads that the method's results file names, with seed 0; where none does, as many, drawn as those of `hydra (random
heads)` are. Blocks that training changes are changed a little, as equal ones would be fused into a trunk.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evidence.methods import PASSES, REBUILT, SEEDS_OF, file_name, hydra_of, trunk_of
from evidence.networks import Networks, drawn_heads
from hydra_ensembles import Backbone, fuse
from hydra_ensembles.backbones import Inputs
from hydra_ensembles.baselines import DeepEnsemble, McDropout
from hydra_ensembles.baselines.classifiers import draw_classifier
from hydra_ensembles.evaluation import interleaved
from hydra_ensembles.evaluation.latency import moved, sample_inputs
from hydra_ensembles.heads import HeadSet, Member, prune
from provenance import machine, provenance, write_results

BATCH, ROUNDS, THREADS = 4, 20, 2
ALONE = ("Taylor", "CircAvg")
"""First members of hydras."""
NOTHING_SHARED = ("from pre-trained", "own bases")
"""In the names of variants whose members come from trainings of their own, so that nothing is the same in all."""


def measure(networks: Networks, packages: list[str], more: Sequence[str] = ()) -> None:
    """Time every method of a setting, and more of them. Writes `results/SETTING/latency.json`."""
    methods = [*SEEDS_OF, *networks.setting.more_methods, *more]
    torch.set_num_threads(THREADS)
    found = timed(networks, methods, BATCH, ROUNDS)
    about = provenance(packages=packages, machine=machine())
    write_results(f"{networks.setting.name}/latency", {**found, "provenance": about})


def timed(networks: Networks, methods: Sequence[str], batch: int, rounds: int) -> Mapping[str, Any]:
    """Milliseconds a batch by method, and as a ratio to the single network's."""
    setting = networks.setting
    inputs: Inputs = sample_inputs(setting.load(0), batch, setting.tokens)
    runs = {method: _asking(_model(networks, method), inputs) for method in methods}
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


def _model(networks: Networks, method: str) -> nn.Module:
    """A method's network, before any training."""
    setting, number = networks.setting, networks.setting.members

    def base() -> Member:
        return networks.unpruned(0)

    if method in ("single", "single+", "unstructured"):
        # Zeros in dense matrices are multiplied like other numbers.
        return DeepEnsemble([base()]).eval()
    if method in ("DE(D)", "DE(D)+", "LoRA"):
        return DeepEnsemble([base() for _ in range(number)]).eval()
    if method == "MC Dropout":
        return McDropout(base(), PASSES, setting.dropout).eval()
    if method == "DE-heads":
        networks_with_classifiers = [base() for _ in range(number)]
        for m, one in enumerate(networks_with_classifiers):
            draw_classifier(one, m)
        return fuse(networks_with_classifiers)
    if method in REBUILT:
        return REBUILT[method](setting.load(0), number).eval()
    members = [prune(setting.load(0), heads) for heads in _kept_heads(networks, method)]
    if method in ALONE:
        return DeepEnsemble(members).eval()
    assert setting.post is not None
    whole = any(words in method for words in NOTHING_SHARED)
    trained = setting.layers if whole else setting.post.train_last_blocks or setting.layers
    for m, one in enumerate(members):
        moved(one.model, m, max(trunk_of(method) or 0, setting.layers - trained))
        for tower in Backbone.of(one.model).towers.values() if whole else ():
            for p in tower.stem.parameters():
                p.data.add_(1e-3 * m)
    return fuse(members, mlp="grouped" if method.endswith("grouped") else "average")


def _kept_heads(networks: Networks, method: str) -> list[HeadSet]:
    """Of each member."""
    setting, name = networks.setting, file_name(method, 0)
    for path in (networks.results(name), networks.results(f"claims/{name}")):
        said = json.loads(path.read_text()).get("kept") if path.is_file() else None
        if said:
            return [HeadSet.from_json(one) for one in said]
    every, trunk = HeadSet.all(setting.load(0)), trunk_of(method) or 0
    if trunk:
        keep = setting.trunks[trunk]
    else:
        keep = setting.keep if method in ALONE else hydra_of(networks, method)[1]
    return [drawn_heads(every, keep, m, trunk) for m in range(1 if method in ALONE else setting.members)]
