"""A packed ensemble is M narrow networks, slices of one, that have nothing to do with each other."""

import copy
from dataclasses import replace

import pytest
import torch

from baselines.resuming import resumed_and_undisturbed
from families import CLASSES, IMAGE, model_of
from hydra_ensembles.backbones import Backbone
from hydra_ensembles.baselines import BaselineError, Method, PackedEnsemble
from hydra_ensembles.heads import single_cost
from hydra_ensembles.members import finetune
from members.training import QUICK, labelled, member_of, same


def untrained():
    """As timm draws it: every slice of a norm is like every other."""
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(**IMAGE).eval()


def narrow(model, m):
    """Member m of three, alpha 2, sliced by hand: 24 of 32 channels, 3 of 4 heads of 8, 96 of 128 hidden units."""
    from timm.models import VisionTransformer

    channels = torch.arange(m * 32 // 3, m * 32 // 3 + 24) % 32
    heads = [[0, 1, 2], [1, 2, 3], [2, 3, 0]][m]
    rows = torch.cat([torch.arange(8 * head, 8 * head + 8) for head in heads])
    units = torch.arange(m * 128 // 3, m * 128 // 3 + 96) % 128
    small = VisionTransformer(**{**IMAGE, "embed_dim": 24, "num_heads": 3}).eval()
    whole = model.state_dict()
    for name, tensor in small.state_dict().items():
        old = whole[name]
        if "qkv" in name:
            old = torch.cat([part[rows] for part in old.chunk(3)])
        elif "fc1" in name:
            old = old[units]
        elif name.endswith(("cls_token", "pos_embed")):
            old = old[..., channels]
        elif not name.startswith("head."):
            old = old[channels]
        if name.endswith(("qkv.weight", "fc1.weight", "head.weight")):
            old = old[:, channels]
        elif name.endswith("attn.proj.weight"):
            old = old[:, rows]
        elif name.endswith("fc2.weight"):
            old = old[:, units]
        tensor.copy_(old)
    return small


def test_a_member_is_the_narrow_network_of_its_slices():
    model, (images, _) = model_of("timm"), labelled("timm")
    with torch.no_grad():
        members = PackedEnsemble(model, 3, alpha=2).members(images)
        for m in range(3):
            assert torch.allclose(members[:, m], narrow(model, m)(images), atol=1e-5)


@pytest.mark.parametrize("build", [lambda: model_of("timm"), untrained], ids=["trained", "untrained"])
def test_a_member_is_trained_as_if_it_were_alone(build):
    data = labelled("timm")
    recipe = replace(QUICK, optimiser="sgd", learning_rate=0.03, steps=6)
    method, alone = PackedEnsemble(build(), 3, alpha=2), narrow(build(), 1)
    method.fit(data, None, recipe)
    finetune(alone, data, None, replace(recipe, learning_rate=0.01))  # the loss of a pack is the mean over members
    with torch.no_grad():
        assert torch.allclose(method.members(data[0])[:, 1], alone(data[0]), atol=1e-4)
        assert not torch.allclose(narrow(build(), 1)(data[0]), alone(data[0]), atol=1e-2)


@pytest.mark.parametrize("build", [lambda: model_of("timm-qk-norm"), lambda: model_of("timm-dinov2"), untrained])
def test_no_member_sees_the_weights_of_another(build):
    method, (images, _) = PackedEnsemble(build(), 3), labelled("timm")
    before = method.members(images)
    before[:, 0].sum().backward()
    with torch.no_grad():
        for parameter in method.parameters():
            if parameter.grad is not None:  # the stems of the others have none
                parameter -= 0.1 * parameter.grad.sign()
        after = method.members(images)
    assert torch.allclose(before[:, 1:], after[:, 1:], atol=1e-5)
    assert (before[:, 0] - after[:, 0]).abs().max() > 1e-2


def test_its_layers_are_those_of_torch_uncertainty():
    from torch_uncertainty.layers import PackedLinear

    block = PackedEnsemble(model_of("timm"), 3).network.towers["vision"].blocks[0]
    ours, theirs = block.mlp.fc_in, PackedLinear(24, 96, alpha=3, num_estimators=3)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.transpose(1, 2))
        theirs.bias.copy_(ours.bias.flatten())
        x = torch.randn(5, 3, 24, generator=torch.Generator().manual_seed(0))
        expected = theirs(x.flatten(1)).unflatten(1, (3, 96))
        assert torch.allclose(ours(x.transpose(0, 1).reshape(15, 24)).reshape(3, 5, 96).transpose(0, 1), expected)


@pytest.mark.parametrize("family", ["timm-swiglu-packed", "timm-mean", "torchvision-hidden", "bert", "hf-vit"])
def test_every_family_is_sliced_trained_and_asked(family):
    data, before = labelled(family), copy.deepcopy(model_of(family))
    method = PackedEnsemble(model_of(family), 2, alpha=1.5)
    method.fit(data, None, QUICK)
    assert isinstance(method, Method)
    assert same(model_of(family), before)
    with torch.no_grad():
        assert method.members(data[0]).shape == (24, 2, CLASSES)


def test_it_costs_as_much_as_its_narrow_networks():
    model = model_of("timm")
    one, cost = single_cost(Backbone.of(narrow(model, 0))), PackedEnsemble(model, 3).cost()
    assert (cost.params, cost.mult_adds) == (3 * one.params, 3 * one.mult_adds)


def test_an_interrupted_pack_goes_on_to_the_same_bits(tmp_path):
    recipe = replace(QUICK, steps=8, evaluate_every=2, keep="best", zero_head=True)
    resumed_and_undisturbed(lambda: PackedEnsemble(model_of("timm"), 3), labelled("timm"), recipe, tmp_path)


@pytest.mark.parametrize(
    ("build", "alpha", "members", "why"),
    [
        (lambda: model_of("timm"), 3, 3, "alpha=3 leaves each of 3 members all 4 heads"),
        (lambda: model_of("timm"), 1, 1, "at least 2 members, asked for 1"),
        (lambda: member_of("timm"), 2, 3, r"layers have \[.*\] heads"),
        (lambda: model_of("timm-map"), 2, 3, "pooling by a learned query"),
        (lambda: model_of("open_clip"), 2, 3, "compares images with texts"),
    ],
)
def test_what_cannot_be_sliced_is_refused(build, alpha, members, why):
    with pytest.raises(BaselineError, match=why):
        PackedEnsemble(build(), members, alpha)
