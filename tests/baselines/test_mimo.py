"""A MIMO network takes M images and answers each of them."""

import copy
from dataclasses import replace

import pytest
import torch

from baselines.resuming import Interrupted, interrupt, resumed_and_undisturbed
from families import CLASSES, model_of
from hydra_ensembles.backbones import Backbone
from hydra_ensembles.baselines import BaselineError, Method, Mimo
from hydra_ensembles.heads import single_cost
from hydra_ensembles.members.recipes import FineTuningError
from members.training import QUICK, labelled, same

FAMILIES = ["timm", "timm-dinov2", "torchvision", "hf-vit"]


def apart(**settings):
    """A network of three whose subnetworks cannot mix: the answer m is read off a stem that sees the image m alone."""
    methods = [Mimo(model_of("timm"), 3, **settings).eval() for _ in range(3)]
    for m, method in enumerate(methods):
        with torch.no_grad():
            for other in {0, 1, 2} - {m}:
                method.network.model.patch_embed.proj.weight[:, 3 * other : 3 * other + 3] = 0
    return methods


def test_the_same_image_everywhere_becomes_the_tokens_of_the_pretrained_network():
    model, (images, _) = model_of("timm"), labelled("timm")
    method = Mimo(model, 3)
    with torch.no_grad():
        tokens = method.network.model.patch_embed(images.repeat(1, 3, 1, 1))
        assert torch.allclose(tokens, model.patch_embed(images), atol=1e-5)
        features = method.network.model.forward_features(images.repeat(1, 3, 1, 1))
        assert torch.allclose(features, model.forward_features(images), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_images_is_trained_and_answers(family):
    data, before = labelled(family), copy.deepcopy(model_of(family))
    method = Mimo(model_of(family), 3)
    assert isinstance(method, Method)
    with torch.no_grad():
        start = method.members(data[0])
    method.fit(data, data, QUICK)
    with torch.no_grad():
        members = method.members(data[0])
    assert start.shape == members.shape == (24, 3, CLASSES)
    assert bool(start.isfinite().all())
    assert bool(members.isfinite().all())
    assert (members[:, 0] - members[:, 1]).abs().max() > 1e-3
    assert same(model_of(family), before)


@pytest.mark.parametrize(("share", "times"), [(0.0, 1), (0.5, 1), (0.25, 2)])
def test_in_training_each_answer_stands_at_its_own_image(share, times):
    images, _ = labelled("timm")
    for m, method in enumerate(apart(input_repetition=share, batch_repetition=times)):
        with torch.no_grad():
            expected = method.members(images)[:, m]
            torch.manual_seed(0)
            found = method.network.train()(images).unflatten(1, (3, times))[:, m]
        assert torch.allclose(found, expected[:, None].expand_as(found), atol=1e-5)


def test_images_are_mixed_in_training_unless_all_inputs_are_repeated():
    images, _ = labelled("timm")
    for share, is_alike in ((0.0, False), (1.0, True)):
        method = Mimo(model_of("timm"), 3, input_repetition=share)
        with torch.no_grad():
            found = method.network.train()(images)
        assert torch.allclose(found, method.members(images), atol=1e-4) == is_alike


def test_the_stem_is_trained_though_the_recipe_freezes_it():
    method, data = Mimo(model_of("timm"), 2), labelled("timm")
    before = copy.deepcopy(method.network.model.state_dict())
    method.fit(data, None, replace(QUICK, train_last_blocks=1, freeze_stem=True))
    for name, tensor in method.network.model.state_dict().items():
        moves = name.startswith(("patch_embed.proj.", "blocks.2.", "norm.", "head."))
        assert torch.equal(tensor, before[name]) != moves, name


def test_it_costs_one_network_with_a_larger_stem_and_classifier():
    model = model_of("timm")
    one, cost = single_cost(Backbone.of(model)), Mimo(model, 3).cost()
    stem, head = model.patch_embed.proj.weight.numel(), model.head.weight.numel()
    assert cost.params == one.params + 2 * (stem + head + CLASSES)
    assert cost.mult_adds == one.mult_adds + 2 * (16 * stem + head)


def test_an_interrupted_network_goes_on_to_the_same_bits(tmp_path):
    recipe = replace(QUICK, steps=8, evaluate_every=2, keep="best")
    resumed_and_undisturbed(
        lambda: Mimo(model_of("timm"), 2, batch_repetition=2), labelled("timm"), recipe, tmp_path / "scratch"
    )


def test_a_checkpoint_of_another_repetition_is_refused(tmp_path):
    data = labelled("timm")
    with pytest.raises(Interrupted):
        Mimo(model_of("timm"), 2).fit(data, None, QUICK, checkpoint=tmp_path, checkpoint_every_s=0, progress=interrupt)
    with pytest.raises(FineTuningError, match="another starting model"):
        Mimo(model_of("timm"), 2, input_repetition=0.5).fit(data, None, QUICK, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("family", "settings", "why"),
    [
        ("bert", {}, "takes tokens; MIMO joins the channels of images"),
        ("open_clip", {}, "compares images with texts"),
        ("timm", {"input_repetition": 1.5}, "rho must be between 0 and 1"),
    ],
)
def test_what_cannot_be_joined_is_refused(family, settings, why):
    with pytest.raises(BaselineError, match=why):
        Mimo(model_of(family), 3, **settings)
