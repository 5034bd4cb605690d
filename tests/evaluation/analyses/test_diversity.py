"""Diversity before and after fusion: a planted overlap, members that are one, fusions that change nothing."""

import json
import math

import pytest
import torch

from families import BY_NAME, CASES, model_of, perturbed
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.evaluation.analyses import AnalysisError, diversity
from hydra_ensembles.heads import Head


def sets(name="timm"):
    case = BY_NAME[name]
    labels = torch.randint(0, 5, (20,), generator=torch.Generator().manual_seed(0))
    return (case.inputs(20, 6, 0), labels), {"a": case.inputs(12, 6, 1), "b": case.inputs(8, 6, 2)}


def without(model, *places):
    (tower,) = HeadSet.all(model).towers
    return HeadSet.all(model).without(Head(tower, layer, index) for layer, index in places)


def trained_apart(model, keeps):
    return [perturbed(prune(model, keep), seed) for seed, keep in enumerate(keeps)]


def test_a_planted_overlap_is_found():
    """Two of three removed heads shared; by layers (2, 1, 0) / 3 against (2, 0, 1) / 3."""
    model = model_of("timm")
    first = without(model, (0, 0), (0, 1), (1, 2))
    second = without(model, (0, 0), (0, 1), (2, 3))
    third = without(model, (1, 0), (1, 1), (1, 3))
    found = diversity([prune(model, keep) for keep in (first, second, third)], *sets())
    assert found.overlaps == ((1, 2 / 3, 0), (2 / 3, 1, 0), (0, 0, 1))
    assert found.mean_overlap == pytest.approx(2 / 9)
    assert found.divergences[0][1] == pytest.approx(math.log(2) / 3)  # only the thirds that lie apart count
    # (2, 1, 0) against (0, 3, 0): by hand from the definition.
    p, q = (2 / 3, 1 / 3, 0), (0, 1, 0)
    pairs = [(x, y) for a, b in ((p, q), (q, p)) for x, y in zip(a, b, strict=True) if x]
    by_hand = sum(x / 2 * math.log(2 * x / (x + y)) for x, y in pairs)
    assert found.divergences[0][2] == pytest.approx(by_hand)
    assert [found.divergences[m][m] for m in range(3)] == [0, 0, 0]
    written = json.loads(json.dumps(found.to_json()))
    assert written["mean_divergence"] == pytest.approx(
        sum(found.divergences[a][b] for a, b in ((0, 1), (0, 2), (1, 2))) / 3
    )


def test_members_that_are_one_do_not_differ():
    model = model_of("timm")
    found = diversity([prune(model, without(model, (0, 0)))] * 3, *sets())
    for side in (found.before, found.after):
        for name in ("id_test", "a", "b", "average"):
            assert side[name]["mutual_information"] == pytest.approx(0, abs=1e-6)
            assert side[name]["disagreement"] == 0
    assert found.mean_overlap == 1
    assert found.mean_divergence == 0


@pytest.mark.parametrize("name", ["timm", "bert", "torchvision"])
def test_before_fusion_it_is_the_decomposition_of_the_members_own_answers(name):
    model = model_of(name)
    members = trained_apart(model, [HeadSet.sample(model, 8, seed) for seed in range(3)])
    known, unknown = sets(name)
    found = diversity(members, known, unknown)
    for where, inputs in {"id_test": known[0], **unknown}.items():
        with torch.no_grad():
            probs = torch.stack([member(inputs).double().softmax(-1) for member in members])
        mean = probs.mean(dim=0)
        information = (probs * (probs / mean).log()).sum(-1).mean()  # the mean divergence from the mean
        labels = probs.argmax(-1)
        apart = [(labels[a] != labels[b]).double() for a, b in ((0, 1), (0, 2), (1, 2))]
        assert found.before[where]["mutual_information"] == pytest.approx(information.item(), rel=1e-4)
        assert found.before[where]["disagreement"] == pytest.approx(torch.stack(apart).mean().item())
    right = torch.stack([m(known[0]).softmax(-1) for m in members]).mean(0).argmax(-1) == known[1]
    assert found.before["id_test"]["accuracy"] == pytest.approx(right.double().mean().item())
    average = (found.before["a"]["auroc"] + found.before["b"]["auroc"]) / 2
    assert found.before["average"]["auroc"] == pytest.approx(average)


@pytest.mark.parametrize("case", [c for c in CASES if c.modality != "both"], ids=lambda case: case.name)
def test_grouped_fusion_changes_no_figure_and_averaging_says_how_much(case):
    model = model_of(case.name)
    members = trained_apart(model, [HeadSet.sample(model, 8, seed) for seed in range(2)])
    same = diversity(members, *sets(case.name), fuse(members, mlp="grouped"))
    for name, metrics in same.change.items():
        for metric, change in metrics.items():
            tolerance = 1e-4 if metric in ("nll", "brier", "mutual_information", "ece", "aece") else 0.05
            assert change == pytest.approx(0, abs=tolerance), (name, metric)
    assert same.mlp == "grouped"
    averaged = diversity(members, *sets(case.name))
    assert averaged.mlp == "average"
    assert averaged.before == same.before
    assert abs(averaged.change["id_test"]["nll"]) > 1e-6


def test_after_fusion_it_is_the_hydra_that_answers():
    model = model_of("timm")
    members = trained_apart(model, [HeadSet.sample(model, 8, seed) for seed in range(3)])
    hydra, (known, unknown) = fuse(members), sets()
    found = diversity(members, known, unknown, hydra)
    with torch.no_grad():
        prediction = hydra.predict(unknown["a"])
    assert found.after["a"]["mutual_information"] == pytest.approx(prediction.epistemic.mean().item(), rel=1e-4)
    assert found.after["a"]["disagreement"] == pytest.approx(prediction.disagreement.mean().item(), rel=1e-6)


def test_whole_models_have_no_distribution_of_removed_heads():
    model = model_of("timm")
    found = diversity([model, prune(model, without(model, (0, 0)))], *sets())
    assert found.divergences == ((None, None), (None, 0))
    assert found.mean_divergence is None
    assert found.mean_overlap == 0
    alone = diversity([model], *sets())
    assert (alone.mean_overlap, alone.mean_divergence) == (None, None)


def test_what_cannot_be_compared_is_refused():
    model = model_of("timm")
    members = [prune(model, HeadSet.sample(model, 8, seed)) for seed in range(2)]
    known, unknown = sets()
    with pytest.raises(AnalysisError, match="other heads than these members"):
        diversity(members[::-1], known, unknown, fuse(members))
    with pytest.raises(AnalysisError, match="no members"):
        diversity([], known, unknown)
    with pytest.raises(AnalysisError, match="cannot be called 'average'"):
        diversity(members, known, {"average": unknown["a"]})
    with pytest.raises(AnalysisError, match="score 'x' is not known"):
        diversity(members, known, unknown, score="x")
