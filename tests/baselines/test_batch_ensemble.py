"""A batch ensemble is M networks whose matrices differ by rank-1 factors."""

import copy
from dataclasses import replace

import pytest
import torch

from baselines.resuming import resumed_and_undisturbed
from families import BY_NAME, CLASSES, model_of, own_output
from hydra_ensembles.backbones import Backbone
from hydra_ensembles.baselines import BaselineError, BatchEnsemble, Method
from hydra_ensembles.baselines.batch_ensemble import ScaledLinear
from hydra_ensembles.heads import single_cost
from members.training import QUICK, labelled, member_of, same

FAMILIES = ["timm", "timm-gated", "bert", "distilbert", "hf-vit"]


def layers_of(method):
    return {path: part for path, part in method.network.model.named_modules() if isinstance(part, ScaledLinear)}


@pytest.mark.parametrize("family", FAMILIES)
def test_without_spread_every_member_is_the_plain_network(family):
    method, inputs = BatchEnsemble(model_of(family), 3, spread=0), BY_NAME[family].inputs(4, 7, 0)
    plain = own_output(model_of(family), inputs)["logits"]
    with torch.no_grad():
        members = method.members(inputs)
    assert members.shape == (4, 3, CLASSES)
    assert torch.allclose(members, plain[:, None].expand_as(members), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_is_the_network_whose_rows_and_columns_are_scaled(family):
    method, data = BatchEnsemble(model_of(family), 2, spread=0.3), labelled(family)
    method.fit(data, None, QUICK)
    layers = layers_of(method)
    inside = tuple(f"{path}." for path in layers)
    kept = {name: p for name, p in method.network.model.state_dict().items() if not name.startswith(inside)}
    for m in range(2):
        plain = copy.deepcopy(model_of(family))
        plain.load_state_dict(kept, strict=False)
        with torch.no_grad():
            for path, part in layers.items():
                layer, factors = plain.get_submodule(path), torch.outer(part.layer.s_group[m], part.layer.r_group[m])
                layer.weight.copy_(part.matrix * factors)
                if layer.bias is not None:
                    layer.bias.copy_(part.layer.bias[m])
            said = method.members(data[0])[:, m]
        assert torch.allclose(said, own_output(plain, data[0])["logits"], atol=1e-4)


def test_attention_mlps_and_classifier_are_replaced_and_the_caller_keeps_the_model():
    model = member_of("timm")
    before = copy.deepcopy(model)
    layers = layers_of(BatchEnsemble(model, 2))
    inside = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert list(layers) == [*(f"blocks.{i}.{name}" for i in range(3) for name in inside), "head"]
    assert same(model, before)


def test_members_are_drawn_from_the_seed_alone():
    state = torch.get_rng_state()
    first, again, other = (BatchEnsemble(model_of("timm"), 2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert same(first, again)
    assert not same(first, other)
    r = layers_of(first)["head"].layer.r_group
    assert (r[0] - r[1]).abs().max() > 0.01
    assert (r - 1).abs().max() < 0.5


def test_a_recipe_that_trains_the_last_block_moves_no_factor_in_front_of_it():
    method, data = BatchEnsemble(model_of("timm"), 2), labelled("timm")
    before = copy.deepcopy(method.network.model.state_dict())
    method.fit(data, None, replace(QUICK, train_last_blocks=1, zero_head=True))
    for name, tensor in method.network.model.state_dict().items():
        is_last = name.startswith(("blocks.2.", "norm.", "head."))
        assert torch.equal(tensor, before[name]) != is_last, name


def test_a_zero_head_answers_zero_and_factors_are_not_decayed():
    method = BatchEnsemble(model_of("timm"), 2)
    recipe = replace(QUICK, weight_decay=0.5, head_learning_rate=6e-3)
    method.network.zero_head()
    with torch.no_grad():
        assert not method.members(labelled("timm")[0]).any()
    groups = method.network.groups(method.network.trained(recipe), recipe)
    found = {id(p): (group["weight_decay"], group["share"]) for group in groups for p in group["params"]}
    assert len(found) == len(list(method.network.parameters()))
    for path, part in layers_of(method).items():
        share = 2.0 if path == "head" else 1.0
        assert found[id(part.matrix)] == (0.5, share)
        assert {found[id(p)] for p in part.own()} == {(0.0, share)}


def test_it_stores_one_network_and_a_row_a_column_and_a_bias_a_member_and_runs_them_all():
    model, method = model_of("timm"), BatchEnsemble(model_of("timm"), 3)
    one, cost = single_cost(Backbone.of(model)), method.cost()
    layers = [model.get_submodule(path) for path in layers_of(method)]
    own = sum(layer.in_features + 2 * layer.out_features for layer in layers)
    assert cost.params == one.params - sum(layer.out_features for layer in layers) + 3 * own
    assert cost.mult_adds == 3 * one.mult_adds
    text, method = model_of("bert"), BatchEnsemble(model_of("bert"), 2)
    assert method.cost(16).mult_adds == 2 * single_cost(Backbone.of(text), text_tokens=16).mult_adds


@pytest.mark.parametrize("family", ["timm", "bert"])
def test_an_interrupted_batch_ensemble_goes_on_to_the_same_bits(family, tmp_path):
    recipe = replace(QUICK, steps=8, evaluate_every=2, keep="best", weight_decay=0.01)
    method, _ = resumed_and_undisturbed(lambda: BatchEnsemble(model_of(family), 2), labelled(family), recipe, tmp_path)
    assert isinstance(method, Method)


@pytest.mark.parametrize(
    ("family", "why"), [("torchvision", "in_proj_weight' is a matrix"), ("open_clip", "compares images with texts")]
)
def test_a_network_whose_layers_cannot_be_replaced_is_refused(family, why):
    with pytest.raises(BaselineError, match=why):
        BatchEnsemble(model_of(family), 2)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_what_torch_uncertainty_computes(bias):
    layer = ScaledLinear(torch.nn.Linear(6, 5, bias=bias), 3, 0.3, torch.Generator().manual_seed(0))
    for x in (torch.randn(6, 4, 6), torch.randn(6, 6)):
        expected = layer.layer(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        torch.testing.assert_close(layer(x), expected)
