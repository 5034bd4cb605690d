"""Proposition 1: its terms against the whole Hessian by autograd, the expansion against the loss itself."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from families import CASES, in_double, model_of
from hydra_ensembles import Backbone, HeadSet, fuse, prune
from hydra_ensembles.evaluation.analyses import AnalysisError, proposition_1
from hydra_ensembles.evaluation.analyses.alignment import head_weights
from hydra_ensembles.heads import Head, own_logits

SINGLE = [case for case in CASES if case.modality != "both"]


def labelled(case, seed, rows=6):
    labels = torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(seed))
    return in_double(case.inputs(rows, 6, seed)), labels


def tiny():
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=4, patch_size=2, in_chans=1, embed_dim=6, depth=2, num_heads=3, num_classes=3, mlp_ratio=1
    )
    generator = torch.Generator().manual_seed(3)
    clean, labels = torch.randn(8, 1, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    noisy = clean + torch.randn(8, 1, 4, 4, generator=generator)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).double() * 0.3)
    return model, (clean.double(), labels), (noisy.double(), labels)


REMOVED = [Head("vision", 0, 1), Head("vision", 1, 0), Head("vision", 1, 2)]


@pytest.mark.parametrize("case", SINGLE, ids=lambda case: case.name)
def test_the_weights_of_a_head_set_to_zero_are_the_pruned_model(case):
    model = copy.deepcopy(model_of(case.name)).double()
    keep = HeadSet.sample(model, keep=7, seed=2)
    inputs, _ = labelled(case, 0)
    with torch.no_grad():
        expected = own_logits(prune(model, keep), inputs)
        size = 0
        for _, weight, mask in head_weights(Backbone.of(model), ~keep):
            assert any(weight is parameter for parameter in model.parameters())
            weight[mask] = 0
            size += int(mask.sum())
        torch.testing.assert_close(own_logits(model, inputs), expected, rtol=1e-9, atol=1e-9)
    whole, rest = (sum(p.numel() for p in m.parameters()) for m in (model, prune(model, keep)))
    assert size == whole - rest  # all that pruning takes away


def removed_vector(model):
    """The removed weights as one vector of all parameters, by hand from timm's packed layout: width 6, head dim 2."""
    vector = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for _, layer, head in REMOVED:
        block = f"blocks.{layer}.attn"
        for third in range(3):
            rows = slice(6 * third + 2 * head, 6 * third + 2 * head + 2)
            vector[f"{block}.qkv.weight"][rows] = 1
            vector[f"{block}.qkv.bias"][rows] = 1
        vector[f"{block}.proj.weight"][:, 2 * head : 2 * head + 2] = 1
    return torch.cat([vector[name].flatten() for name, _ in model.named_parameters()]).bool()


def _key_biases(model):
    marks = [torch.full_like(p, "qkv.bias" in name) for name, p in model.named_parameters()]
    for mark, (name, _) in zip(marks, model.named_parameters(), strict=True):
        if "qkv.bias" in name:
            mark[:6] = mark[12:] = 0
    return torch.cat([mark.flatten() for mark in marks]).bool()


def by_autograd(model, data):
    """Loss, gradient and Hessian of all parameters as one vector."""
    names, shapes = zip(*((name, p.shape) for name, p in model.named_parameters()), strict=True)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])

    def loss(theta):
        parts = theta.split([shape.numel() for shape in shapes])
        named = {n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.cross_entropy(functional_call(model, named, (data[0],)), data[1])

    return theta, loss, torch.func.grad(loss)(theta), torch.func.hessian(loss)(theta)


def test_every_term_is_that_of_the_whole_gradient_and_the_whole_hessian():
    model, clean, noisy = tiny()
    keep = HeadSet.all(model).without(REMOVED)
    found = proposition_1(model, keep, clean, noisy, probes=300, batch_size=3)
    theta, loss_t, g_t, H_t = by_autograd(model, clean)
    _, loss_n, g_n, H_n = by_autograd(model, noisy)
    chosen = removed_vector(model)
    change = -theta * chosen
    assert found.numbers == int(chosen.sum()) == 162
    assert found.alignment == pytest.approx((g_n @ change).item(), rel=1e-8)
    assert sum(found.alignment_by_part.values()) == pytest.approx(found.alignment)
    assert set(found.alignment_by_part) == {"query", "key", "value", "out"}
    assert found.clean_alignment == pytest.approx((g_t @ change).item(), rel=1e-8)
    assert found.curvature == pytest.approx((change @ (H_n - H_t) @ change).item() / 2, rel=1e-8)
    measured = [loss_n(theta + change) - loss_t(theta + change), loss_n(theta) - loss_t(theta)]
    assert found.gap_change == pytest.approx((measured[0] - measured[1]).item(), rel=1e-8)
    for name, H in (("clean_diagonal", H_t), ("noisy_diagonal", H_n), ("difference", H_n - H_t)):
        expected = H.diagonal()[chosen].mean().item()
        error = getattr(found, f"{name}_error")
        assert abs(getattr(found, name) - expected) < 4 * error
        assert 0 < error < 0.02
    H_key = H_n[_key_biases(model)]
    assert H_key.abs().max() < 1e-12  # so that a share of the diagonal is neither positive nor negative
    positive = ((H_n - H_t).diagonal()[chosen] > 0).double().mean().item()
    assert found.surely_positive - 0.03 <= positive <= 1 - found.surely_negative + 0.03
    whole = proposition_1(model, keep, clean, noisy, probes=150, over="all")
    assert whole.numbers == len(theta)
    assert abs(whole.difference - (H_n - H_t).diagonal().mean().item()) < 4 * whole.difference_error
    assert (whole.alignment, whole.curvature) == pytest.approx((found.alignment, found.curvature))


def test_the_expansion_meets_the_loss_as_the_change_gets_small():
    """Heads scaled down before they are removed: what the second order leaves shrinks with the third power."""
    left = []
    for scale in (0.2, 0.1):
        model, clean, noisy = tiny()
        with torch.no_grad():
            for _, weight, mask in head_weights(Backbone.of(model), REMOVED):
                weight[mask] *= scale
        found = proposition_1(model, HeadSet.all(model).without(REMOVED), clean, noisy, probes=2)
        left.append(abs(found.gap_change - found.expected_gap_change))
    assert left[1] < left[0] / 6


def test_values_and_output_columns_add_the_same_to_the_alignment_and_so_do_queries_and_keys():
    """A head is linear in W_v and in W_O, and sees W_q and W_k only as a product: so by Euler's theorem."""
    model, clean, noisy = tiny()
    parts = proposition_1(model, HeadSet.all(model).without(REMOVED), clean, noisy, probes=2).alignment_by_part
    assert parts["value"] == pytest.approx(parts["out"])
    assert parts["query"] == pytest.approx(parts["key"])


def test_the_same_inputs_as_noise_leave_no_difference():
    model, clean, _ = tiny()
    found = proposition_1(model, HeadSet.sample(model, 4, 0), clean, clean, probes=3)
    assert found.difference == found.difference_error == found.curvature == found.gap_change == 0
    assert found.alignment == pytest.approx(found.clean_alignment)
    assert found.positive == found.surely_positive == found.surely_negative == 0


@pytest.mark.parametrize("case", SINGLE, ids=lambda case: case.name)
def test_every_family_of_one_tower_has_second_derivatives(case):
    model = copy.deepcopy(model_of(case.name)).double()
    keep = HeadSet.sample(model, keep=9, seed=1)
    clean, noisy = labelled(case, 0), labelled(case, 1)
    found = proposition_1(model, keep, clean, noisy, probes=2)
    cut = proposition_1(model, keep, clean, noisy, probes=2, batch_size=4)
    assert found.difference_error > 0
    for term in ("alignment", "clean_alignment", "curvature", "gap_change", "difference", "noisy_diagonal"):
        assert getattr(cut, term) == pytest.approx(getattr(found, term), rel=1e-8, abs=1e-12)
    assert (cut.positive, cut.surely_negative) == (found.positive, found.surely_negative)


def test_frozen_weights_stay_frozen_and_members_are_pruned_further():
    model, clean, noisy = tiny()
    model.requires_grad_(False)
    first = HeadSet.all(model).without(REMOVED[:1])
    member = prune(model, first)
    keep = HeadSet.all(model).without(REMOVED)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = proposition_1(member, keep, clean, noisy, probes=2)
    assert found.numbers == 2 * 54
    assert found.noisy_loss_pruned == proposition_1(model, keep, clean, noisy, probes=2).noisy_loss_pruned
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(p.requires_grad for p in model.parameters())
    assert json.loads(json.dumps(found.to_json()))["keep"] == keep.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probes": 1}, "at least 2 probes, found 1"),
        ({"over": "some"}, "known: removed, all"),
        ({"keep": "all"}, "removes no head"),
        ({"noisy": "unlabelled"}, "needs labels"),
        ({"model": "open_clip"}, "has vision, text; give a model of one tower"),
        ({"model": "hydra"}, "found a hydra of 2"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_one_line(change, message):
    model, clean, noisy = tiny()
    all_, keep = HeadSet.all(model), HeadSet.sample(model, 4, 0)
    models = {"open_clip": lambda: model_of("open_clip"), "hydra": lambda: fuse([model, prune(model, keep)])}
    settings = {"keep": keep, "clean": clean, "noisy": noisy} | change
    settings["keep"] = all_ if settings["keep"] == "all" else settings["keep"]
    settings["noisy"] = clean[0] if settings["noisy"] == "unlabelled" else noisy
    subject = models[settings.pop("model")]() if "model" in settings else model
    with pytest.raises(AnalysisError, match=message) as caught:
        proposition_1(subject, **settings)
    assert "\n" not in str(caught.value)
