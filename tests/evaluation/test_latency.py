"""Latency: what is compared is what it says it is."""

import time

import pytest
import torch

from families import CASES, model_of
from hydra_ensembles import Backbone
from hydra_ensembles.evaluation import contest, interleaved, sample_inputs
from hydra_ensembles.evaluation.latency import Timing, branch_heads
from hydra_ensembles.heads import hydra_cost


def test_rounds_are_interleaved_and_warm_up_does_not_count():
    order = []
    runs = {"fast": lambda: order.append("fast"), "slow": lambda: (order.append("slow"), time.sleep(0.01))}
    *_, timings = interleaved(runs, rounds=3, warm_up=1)
    assert order == ["fast", "slow", "slow", "fast"] * 2
    assert timings["slow"].median_ms >= 10 > timings["fast"].median_ms
    assert timings["slow"].low_ms <= timings["slow"].median_ms <= timings["slow"].high_ms
    assert timings["slow"].over(timings["slow"]) == Timing(1.0, 1.0, 1.0, (1.0, 1.0, 1.0))


@pytest.mark.parametrize("name", [case.name for case in CASES])
@pytest.mark.parametrize("trunk", [0, 2])
def test_the_hydra_in_a_contest_has_the_members_of_the_contest(name, trunk):
    """Stem and trunk are shared, everything behind differs: the hydra has just the parameters predicted for that."""
    model = model_of(name)
    inputs = sample_inputs(model, 2)
    match = contest(model, inputs, keep=2, members=3, trunk=trunk)
    assert set(match.hydra.trunk.values()) == {trunk}
    with torch.no_grad():
        members = match.contestants["members"]().transpose(0, 1)
        hydra = match.contestants["hydra"]()
        whole = match.contestants["deep_ensembles"]().transpose(0, 1)
    assert members.shape == hydra.shape == whole.shape
    assert len({tuple(m.flatten().tolist()) for m in members.unbind(1)}) == 3
    predicted = hydra_cost(Backbone.of(model), [branch_heads(model, 2, trunk)] * 3, trunk)
    assert sum(p.numel() for p in match.hydra.parameters()) == predicted.params


@pytest.mark.slow
def test_a_compiled_contest_gives_the_same_numbers():
    model = model_of("timm")
    plain, compiled = (
        contest(model, sample_inputs(model, 2), keep=2, trunk=1, compiled=compiled).contestants
        for compiled in (False, True)
    )
    with torch.no_grad():
        for who in ("single", "deep_ensembles", "members", "hydra"):
            torch.testing.assert_close(compiled[who](), plain[who](), atol=1e-5, rtol=1e-4)
