"""Theorem 2: ablating a head, zeroing what W_O reads of it, and removing it structurally are one thing."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from families import BY_NAME, CASES, head_sets, model_of, own_output
from hydra_ensembles import Backbone, HeadSet, Member, ablate, prune

names = pytest.mark.parametrize("name", [case.name for case in CASES])
seeds = st.integers(0, 1000)


def masked_before_w_o(name: str, keep: HeadSet, inputs: object) -> dict[str, torch.Tensor]:
    """The oracle: the composed backbone with the outputs of removed heads multiplied by zero."""
    backbone = Backbone.of(model_of(name))
    outputs = {}
    with torch.no_grad():
        for tower_name, tower in backbone.towers.items():
            state = tower.stem(inputs[tower_name] if len(backbone.towers) > 1 else inputs)
            for block, heads in zip(tower.blocks, keep[tower_name], strict=True):
                z = block.heads(state)
                mask = torch.zeros(z.shape[2], 1)
                mask[list(heads)] = 1
                state = block.finish(state, block.project(z * mask))
            outputs[tower_name if len(backbone.towers) > 1 else "logits"] = tower.readout(state)
    return outputs


@names
@given(data=st.data(), batch=st.integers(1, 3), tokens=st.integers(1, 10), seed=seeds)
def test_ablated_is_masked_is_removed(name, data, batch, tokens, seed):
    keep = data.draw(head_sets(name))
    inputs = BY_NAME[name].inputs(batch, tokens, seed)
    model = model_of(name)
    expected = masked_before_w_o(name, keep, inputs)
    with ablate(model, keep):
        torch.testing.assert_close(own_output(model, inputs), expected, rtol=1e-5, atol=1e-5)
    member = prune(model, keep)
    torch.testing.assert_close(own_output(member.model, inputs), expected, rtol=1e-5, atol=1e-5)
    composed = member.backbone
    with torch.no_grad():
        found = composed.features(inputs)
    torch.testing.assert_close(list(found.values()), list(expected.values()), rtol=1e-5, atol=1e-5)
    assert len(HeadSet.all(member.model)) == len(keep)


@names
def test_a_layer_without_heads_adds_only_its_output_bias(name):
    full = HeadSet.all(model_of(name))
    nothing = full - full
    with torch.no_grad():
        for _, _, block in prune(model_of(name), nothing).backbone.blocks():
            from hydra_ensembles.backbones import State

            z = block.heads(State(torch.randn(2, 5, 32)))
            assert z.shape[2] == 0
            expected = block.attention.out.bias.expand(2, 5, -1)
            torch.testing.assert_close(block.project(z), expected, rtol=0, atol=0)


@names
def test_removing_a_head_changes_the_output(name):
    """A head mask that is loaded but never applied is a known trap."""
    inputs = BY_NAME[name].inputs(2, 6, 0)
    model = model_of(name)
    full, before = HeadSet.all(model), own_output(model, inputs)
    for head in full:
        with ablate(model, full.without([head])):
            after = own_output(model, inputs)
        changed = "logits" if "logits" in before else head.tower
        assert (before[changed] - after[changed]).abs().max() > 1e-4, head


@names
def test_the_old_bits_return_even_after_an_exception_and_when_nested(name):
    model = model_of(name)
    before = copy.deepcopy(model.state_dict())
    full = HeadSet.all(model)
    few, fewer = HeadSet.sample(model, len(full) // 2, 0), full - full
    with pytest.raises(KeyboardInterrupt), ablate(model, few), ablate(model, fewer):
        raise KeyboardInterrupt
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)


@names
def test_under_autocast_heads_are_turned_off_and_on_as_outside_of_it(name):
    inputs, model = BY_NAME[name].inputs(2, 6, 0), model_of(name)
    full = HeadSet.all(model)
    some, none = HeadSet.sample(model, len(full) // 2, 0), full - full

    def alone(keep):
        with torch.autocast("cpu", torch.bfloat16), ablate(model, keep):
            return own_output(model, inputs)

    expected = [alone(keep) for keep in (full, some, none, some, full)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [own_output(model, inputs)]
        with ablate(model, some):
            found.append(own_output(model, inputs))
            with ablate(model, none):
                found.append(own_output(model, inputs))
            found.append(own_output(model, inputs))
        found.append(own_output(model, inputs))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for key in expected[0]:
        assert not torch.equal(expected[0][key], expected[1][key])


@names
def test_pruning_leaves_the_model_alone_and_keeping_all_heads_changes_no_bit(name):
    model = model_of(name)
    before = copy.deepcopy(model.state_dict())
    prune(model, HeadSet.sample(model, 3, 0))
    whole = prune(model, HeadSet.all(model)).model.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
        assert torch.equal(value, whole[key])


@names
@given(data=st.data())
def test_pruning_twice_is_pruning_once(name, data):
    outer = data.draw(head_sets(name))
    inner = data.draw(head_sets(name)) & outer
    twice, once = prune(prune(model_of(name), outer), inner), prune(model_of(name), inner)
    first, second = twice.model.state_dict(), once.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)
    with ablate(prune(model_of(name), outer), inner) as ablated:
        inputs = BY_NAME[name].inputs(2, 5, 0)
        torch.testing.assert_close(
            own_output(ablated.model, inputs), own_output(once.model, inputs), rtol=1e-5, atol=1e-5
        )


@names
def test_a_member_trains(name):
    """Every parameter gets a gradient, dropout and head-free layers included, and a step lowers the loss."""
    full = HeadSet.all(model_of(name))
    kept = {tower: [[0, 2], [], [1, 2, 3]] for tower in full.towers}
    keep = HeadSet.of(kept, dict(zip(full.towers, full.num_heads, strict=True)))
    member = prune(model_of(name), keep)
    assert isinstance(member, Member)
    inputs, labels = BY_NAME[name].inputs(4, 7, 0), torch.arange(4)
    member.train()
    torch.nn.functional.cross_entropy(member(inputs), labels).backward()
    has_grad = {key: p.grad is not None for key, p in member.model.named_parameters() if p.numel()}
    assert all(has_grad.values()), [key for key, has in has_grad.items() if not has]
    member.eval()
    optimiser = torch.optim.SGD(member.parameters(), lr=1e-3)
    before = torch.nn.functional.cross_entropy(member(inputs), labels)
    optimiser.zero_grad()
    before.backward()
    optimiser.step()
    assert torch.nn.functional.cross_entropy(member(inputs), labels) < before
