"""Unstructured pruning sets a share of weights to 0, by a score that is what its name says, and they stay 0."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from baselines.resuming import resumed_and_undisturbed
from families import model_of, own_output
from hydra_ensembles.backbones import Backbone
from hydra_ensembles.baselines import BaselineError, Method, UnstructuredPruning
from hydra_ensembles.baselines.unstructured import hessian_products
from hydra_ensembles.data import as_batches
from hydra_ensembles.heads import single_cost
from members.training import QUICK, labelled, same

FAMILIES = ["timm", "torchvision", "bert", "hf-vit"]
INSIDE = ("qkv.weight", "proj.weight", "fc1.weight", "fc2.weight")


def matrices(model):
    """Of timm: the matrices of attention and MLP."""
    return {name: p for name, p in model.named_parameters() if name.startswith("blocks.") and name.endswith(INSIDE)}


def pruned_places(method):
    return {name: p == 0 for name, p in matrices(method.network.model).items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_as_many_weights_as_asked_for_are_zero_and_stay_zero(family, optimiser):
    data, before = labelled(family), copy.deepcopy(model_of(family))
    method = UnstructuredPruning(model_of(family), share=0.4)
    assert isinstance(method, Method)
    kept = method.network.kept
    parameters = dict(method.network.model.named_parameters())
    start = {name: p.detach().clone() for name, p in parameters.items()}
    method.fit(data, None, replace(QUICK, optimiser=optimiser, weight_decay=0.1, clip_norm=1.0))
    total = sum(mask.numel() for mask in kept.values())
    assert sum(int((parameters[name] == 0).sum()) for name in kept) == round(0.4 * total)
    for name, parameter in parameters.items():
        moved = parameter != start[name]
        # Softmax does not see a key's bias, so that it has no gradient.
        assert bool(moved.any()) or name.endswith(("key.bias", "k_proj.bias")), name
        if name in kept:
            assert not parameter[~kept[name]].any()
            assert float(moved[kept[name]].float().mean()) > 0.9
    assert same(model_of(family), before)
    assert all(p.requires_grad and not p._backward_hooks for p in parameters.values())


@pytest.mark.parametrize("by", ["taylor", "hessian"])
def test_what_is_frozen_is_scored_as_well_and_stays_frozen(by):
    data, frozen = labelled("timm"), copy.deepcopy(model_of("timm")).requires_grad_(False)
    expected = UnstructuredPruning(model_of("timm"), by=by, data=data)
    found = UnstructuredPruning(frozen, by=by, data=data)
    assert all(torch.equal(found.network.kept[name], mask) for name, mask in expected.network.kept.items())
    assert not any(p.requires_grad for p in found.network.model.parameters())


def test_without_a_share_it_is_the_plain_network():
    inputs, _ = labelled("timm")
    with torch.no_grad():
        said = UnstructuredPruning(model_of("timm"), share=0).members(inputs)
    assert torch.equal(said[:, 0], own_output(model_of("timm"), inputs)["logits"])


def test_by_magnitude_the_smallest_of_all_matrices_go_and_nothing_else():
    model, method = model_of("timm"), UnstructuredPruning(model_of("timm"), share=0.3)
    sizes = torch.cat([p.detach().abs().flatten() for p in matrices(model).values()])
    border = sizes.sort().values[round(0.3 * len(sizes)) - 1]
    inside = pruned_places(method)
    for name, parameter in model.named_parameters():
        expected = parameter.abs() <= border if name in inside else torch.zeros_like(parameter, dtype=torch.bool)
        assert torch.equal(method.network.model.state_dict()[name], parameter.masked_fill(expected, 0)), name


def gradients(model, data):
    weights = list(matrices(model).values())
    loss = F.cross_entropy(model(data[0]), data[1])
    return torch.autograd.grad(loss, weights)


def test_by_taylor_weights_go_whose_product_with_the_gradient_is_least():
    data, model = labelled("timm", rows=20), copy.deepcopy(model_of("timm"))
    products = [(w * g).abs() for w, g in zip(matrices(model).values(), gradients(model, data), strict=True)]
    sizes = torch.cat([p.flatten() for p in products]).sort().values
    border = sizes[round(0.5 * len(sizes)) - 1 : round(0.5 * len(sizes)) + 1].mean()
    places = pruned_places(UnstructuredPruning(model, 0.5, by="taylor", data=data, batch_size=8))
    wrong = sum(int(((p <= border) != found).sum()) for p, found in zip(products, places.values(), strict=True))
    assert wrong <= 4, "batches add up in another order"


def test_hessian_products_are_the_change_of_the_gradient_along_the_weights():
    model = copy.deepcopy(model_of("timm")).double()
    images, labels = labelled("timm", rows=10)
    data, step = (images.double(), labels), 1e-5
    weights = list(matrices(model).values())
    found = hessian_products(model, weights, as_batches(data, 4))
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for weight in matrices(moved).values():
                weight *= 1 + sign * step
        ends.append(gradients(moved, data))
    for weight, ahead, behind in zip(weights, *ends, strict=True):
        expected = (ahead - behind) / (2 * step)
        assert torch.allclose(found[weight], expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_by_hessian_weights_go_whose_part_in_the_second_order_term_is_least():
    data, model = labelled("timm", rows=10), model_of("timm")
    weights = list(matrices(model).values())
    products = hessian_products(model, weights, as_batches(data, 32))
    scores = [(w * products[w]).abs() for w in weights]
    places = pruned_places(UnstructuredPruning(model, 0.5, by="hessian", data=data))
    gone = torch.cat([score[place] for score, place in zip(scores, places.values(), strict=True)])
    left = torch.cat([score[~place] for score, place in zip(scores, places.values(), strict=True)])
    assert len(gone) == len(left)
    assert gone.max() <= left.min()


def test_zeros_are_not_stored_and_are_multiplied_all_the_same():
    one = single_cost(Backbone.of(model_of("timm")))
    cost = UnstructuredPruning(model_of("timm"), share=0.25).cost()
    assert one.params - cost.params == sum(p.numel() for p in matrices(model_of("timm")).values()) // 4
    assert cost.mult_adds == one.mult_adds


def test_an_interrupted_network_goes_on_to_the_same_bits(tmp_path):
    recipe = replace(QUICK, steps=8, evaluate_every=2, keep="best", weight_decay=0.1)
    again, alone = resumed_and_undisturbed(
        lambda: UnstructuredPruning(model_of("timm"), 0.5), labelled("timm"), recipe, tmp_path / "scratch"
    )
    zeros = [sum(int(place.sum()) for place in pruned_places(method).values()) for method in (again, alone)]
    assert zeros[0] == zeros[1] == sum(p.numel() for p in matrices(model_of("timm")).values()) // 2


@pytest.mark.parametrize(
    ("family", "settings", "why"),
    [
        ("timm", {"share": 1.0}, r"share=1: a share of the weights in \[0, 1\) can go"),
        ("timm", {"by": "luck"}, "by='luck' is not known; known: magnitude, taylor, hessian"),
        ("timm", {"by": "hessian"}, r"by='hessian' looks at the loss; give data=\(inputs, labels\)"),
        ("open_clip", {}, "compares images with texts"),
    ],
)
def test_what_cannot_be_done_is_refused(family, settings, why):
    with pytest.raises(BaselineError, match=why):
        UnstructuredPruning(model_of(family), **settings)
