"""Cost: counted on real modules, by torch's own counter, and predicted before anything is built."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from families import BY_NAME, CASES, head_sets, model_of, own_output
from hydra_ensembles import Backbone, HeadSet, describe, prune
from hydra_ensembles.heads import Cost, hydra_cost, predict_costs, single_cost

names = pytest.mark.parametrize("name", [case.name for case in CASES])


def counted(model, inputs):
    """Multiply-adds of one forward by torch's counter, which knows attention in its unfused form."""
    model, counter = copy.deepcopy(model).requires_grad_(False), FlopCounterMode(display=False)
    for module in model.modules():
        # nn.MultiheadAttention's fast path is not counted either; it stays off while a module trains.
        module.training = isinstance(module, torch.nn.MultiheadAttention)
    with sdpa_kernel(SDPBackend.MATH), counter:
        own_output(model, inputs)
    return counter.get_total_flops() // 2


@names
@given(data=st.data())
def test_multiply_adds_and_parameters_are_those_of_the_real_module(name, data):
    case = BY_NAME[name]
    inputs = case.inputs(1, 11, 0)
    keep = data.draw(head_sets(name))
    member = prune(model_of(name), keep)
    for model, predicted in (
        (model_of(name), single_cost(Backbone.of(model_of(name)), text_tokens=11)),
        (member.model, single_cost(Backbone.of(model_of(name)), keep, text_tokens=11)),
        (member.model, describe(member, text_tokens=11).total),
    ):
        assert predicted.params == sum(p.numel() for p in model.parameters())
        assert predicted.mult_adds == counted(model, inputs)


@pytest.fixture(scope="module")
def vit_b16():
    import timm

    torch.manual_seed(0)
    return timm.create_model("vit_base_patch16_224").eval()


def test_table_7_on_real_modules(vit_b16):
    """86.57 M and 17.58 G, with 8 heads a layer 77.13 M and 15.48 G: within 0.2 %, counted on real modules."""
    image = torch.zeros(1, 3, 224, 224)
    member = prune(vit_b16, HeadSet.first(vit_b16, 8)).model
    for model, params, mult_adds in ((vit_b16, 86.57e6, 17.58e9), (member, 77.13e6, 15.48e9)):
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(params, rel=0.002)
        assert counted(model, image) == pytest.approx(mult_adds, rel=0.002)


def test_table_7_predicted(vit_b16):
    costs = predict_costs(Backbone.of(vit_b16), keep=8, members=3)
    assert costs["single"] == Cost(86_567_656, 17_563_828_224)
    assert costs["member"] == Cost(77_121_256, 15_466_260_480)
    assert costs["hydra"] == Cost(116_540_088, 46_167_570_432)
    assert costs["hydra"].params == pytest.approx(116.31e6, rel=0.005)
    assert costs["hydra"].mult_adds == pytest.approx(46.19e9, rel=0.005)
    # As it really runs: the last block computes only CLS. DESIGN's arithmetic: 2.44 of the single network.
    assert costs["hydra_default"].mult_adds / costs["single"].mult_adds == pytest.approx(2.44, abs=0.005)
    assert costs["hydra_default"].params == costs["hydra"].params


@pytest.mark.parametrize(("trunk", "ratio"), [(6, 1.62), (8, 1.35)])
def test_a_trunk_brings_the_cost_near_that_of_one_network(vit_b16, trunk, ratio):
    costs = predict_costs(Backbone.of(vit_b16), keep=8, members=3, trunk=trunk)
    assert costs["hydra_default"].mult_adds / costs["single"].mult_adds == pytest.approx(ratio, abs=0.005)


@names
def test_a_hydra_of_one_member_is_that_member_and_a_whole_trunk_leaves_only_readouts(name):
    backbone = Backbone.of(model_of(name))
    keep = HeadSet.first(backbone, 2)
    assert hydra_cost(backbone, [keep]) == single_cost(backbone, keep)
    readouts = sum(p.numel() for tower in backbone.towers.values() for p in tower.readout.parameters())
    readouts += sum(p.numel() for p in backbone.contrast.parameters()) if backbone.contrast else 0
    assert hydra_cost(backbone, [keep] * 3, trunk=3).params == single_cost(backbone).params + 2 * readouts


@names
def test_reading_less_in_the_last_block_is_what_the_composed_backbone_does(name):
    """The prediction for `last_block="read"` against torch's counter on the composed backbone."""
    backbone, inputs = Backbone.of(model_of(name)), BY_NAME[name].inputs(1, 11, 0)
    keep = HeadSet.all(backbone)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        backbone.features(inputs)
    assert counter.get_total_flops() // 2 == hydra_cost(backbone, [keep], 0, "read", text_tokens=11).mult_adds


def test_a_description_is_a_table_a_person_can_read(vit_b16):
    text = str(describe(vit_b16))
    for words in ("144 heads", "86.57 M parameters", "17.564 G", "0–11", "197 vision tokens"):
        assert words in text
    ragged = HeadSet.all(vit_b16).without([("vision", 3, 0)])
    assert len(describe(prune(vit_b16, ragged)).sites) == 12
    assert describe(prune(vit_b16, ragged)).num_heads == 143
    assert "4–11" in str(describe(prune(vit_b16, ragged)))


def test_a_giant_is_described_without_its_memory():
    from hydra_ensembles import load_model

    model = load_model("timm:vit_giant_patch14_dinov2", weights=False)
    assert all(p.is_meta for p in model.parameters())
    assert describe(model).total.params > 1.1e9
