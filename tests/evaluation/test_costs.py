"""Costs: parameters and multiply-adds against torch's own counter, on the networks that answer."""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from families import BY_NAME, CASES, model_of, perturbed
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.evaluation import costs, sample_inputs
from hydra_ensembles.evaluation.costs import network_cost

names = pytest.mark.parametrize("name", [case.name for case in CASES])
one_tower = pytest.mark.parametrize("name", [case.name for case in CASES if case.modality != "both"])


def counted(hydra, inputs):
    """Multiply-adds of one forward of every tower by torch's counter, which knows attention in its unfused form."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        for name, tower in hydra.towers.items():
            tower(inputs if len(hydra.towers) == 1 else inputs[name], hydra.last_block)
    return counter.get_total_flops() // 2


def members_of(name, keeps, trained=True):
    members = [prune(model_of(name), keep) for keep in keeps]
    for m, member in enumerate(members if trained else ()):
        perturbed(member.model, m)
    return [member.eval() for member in members]


@names
@pytest.mark.parametrize("mlp", ["average", "grouped"])
@pytest.mark.parametrize("last_block", ["read", "full"])
def test_a_hydra_with_stems_and_heads_of_its_own_is_counted_as_it_runs(name, mlp, last_block):
    model = model_of(name)
    hydra = fuse(members_of(name, [HeadSet.sample(model, 5, m) for m in range(3)]), mlp, last_block)
    cost = network_cost(hydra, model, 11)
    assert cost.params == sum(p.numel() for p in hydra.parameters())
    assert cost.mult_adds == counted(hydra, BY_NAME[name].inputs(1, 11, 0))


# A pool whose query is the same in all members projects it once a run; it is counted once an input, as in a member.
@pytest.mark.parametrize("name", [c.name for c in CASES if c.name not in ("timm-map", "timm-perception", "hf-siglip")])
def test_a_trunk_that_was_found_is_counted_once_with_the_heads_it_kept(name):
    """Members as pruned that lose the same heads in the first block, and others behind it."""
    full = HeadSet.all(model_of(name))
    kept = [{tower: [[0, 2], [m], [1, 2, 3]] for tower in full.towers} for m in range(3)]
    keeps = [HeadSet.of(one, dict(zip(full.towers, full.num_heads, strict=True))) for one in kept]
    hydra = fuse(members_of(name, keeps, trained=False))
    assert set(hydra.trunk.values()) == {1}
    assert network_cost(hydra, model_of(name), 11).mult_adds == counted(hydra, BY_NAME[name].inputs(1, 11, 0))


@one_tower
def test_models_are_counted_and_timed_by_name(name):
    model = copy.deepcopy(model_of(name)).eval()
    members = members_of(name, [HeadSet.sample(model, 6, m) for m in range(2)])
    hydra = fuse(members)
    found = costs({"base": model, "members": members, "hydra": hydra}, model, batch=2, rounds=3, text_tokens=7)
    told = found.to_json()
    assert list(told["models"]) == ["base", "members", "hydra"]
    alone = [network_cost(member, model, 7) for member in members]
    assert found.counted["members"] == alone[0] + alone[1]
    assert found.counted["members"].params == sum(p.numel() for member in members for p in member.parameters())
    for one in told["models"].values():
        assert 0 < one["latency_ms"]["low"] <= one["latency_ms"]["median"] <= one["latency_ms"]["high"]
    tokens = 7 if BY_NAME[name].modality == "text" else None
    threads = torch.get_num_threads()
    assert told["settings"] == {"batch": 2, "dtype": "float32", "threads": threads, "rounds": 3, "text_tokens": tokens}


def test_without_rounds_nothing_is_timed():
    model = model_of("timm")
    told = costs({"base": model}, model, rounds=0).to_json()
    assert told["models"]["base"]["latency_ms"] is None
    assert told["models"]["base"]["mult_adds"] > 0


@pytest.mark.parametrize(("asked", "tokens"), [(3, 3), (8, 8), (11, 11), (500, 32)])
def test_sampled_texts_have_the_length_asked_for_as_far_as_the_model_takes_it(asked, tokens):
    inputs = sample_inputs(model_of("bert"), 4, asked)
    assert inputs.shape == (4, tokens)
    assert costs({}, model_of("bert"), rounds=0, text_tokens=asked).text_tokens == tokens
    assert costs({}, model_of("bert"), rounds=0).text_tokens == 32  # 128, but the model takes fewer
