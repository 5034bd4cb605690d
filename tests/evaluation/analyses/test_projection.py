"""Planes of heads: against scikit-learn's PCA, and a planted head whose plane tells known from unknown."""

import json

import pytest
import torch
from sklearn.decomposition import PCA

from evaluation.analyses.planted import planted
from families import BY_NAME, model_of
from hydra_ensembles import HeadSet, taylor_ranking
from hydra_ensembles.evaluation.analyses import AnalysisError, projections
from hydra_ensembles.evaluation.analyses.projection import principal_plane
from hydra_ensembles.evaluation.analyses.readings import outputs_of
from hydra_ensembles.heads import Head, HeadRanking
from hydra_ensembles.uncertainty import auroc


def ranked(model, order):
    heads = list(HeadSet.all(model))
    removed = tuple(heads[place] for place in order)
    return HeadRanking(HeadSet.all(model), removed, tuple(0.0 for _ in removed))


@pytest.mark.parametrize(("rows", "width"), [(50, 8), (5, 8), (2, 2), (300, 64)])
def test_the_plane_is_that_of_scikit_learn(rows, width):
    generator = torch.Generator().manual_seed(rows)
    z = torch.randn(rows, width, generator=generator) @ torch.randn(width, width, generator=generator) + 3
    points, explained = principal_plane(z)
    reference = PCA(2, svd_solver="full").fit(z.double().numpy())
    theirs = torch.from_numpy(reference.transform(z.double().numpy()))
    torch.testing.assert_close(points.abs(), theirs.abs(), rtol=1e-8, atol=1e-8)
    assert explained == pytest.approx(tuple(reference.explained_variance_ratio_))


def test_a_plane_is_the_same_whatever_the_order_of_the_rows():
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(principal_plane(z[order])[0], principal_plane(z)[0][order])
    mirrored = principal_plane(-z)[0]
    # A direction points where its largest coordinate is positive: mirrored rows lie on the other side.
    torch.testing.assert_close(mirrored, -principal_plane(z)[0])


def test_outputs_that_never_vary_lie_in_the_middle():
    points, explained = principal_plane(torch.ones(5, 3))
    assert points.abs().max() == 0
    assert explained == (0, 0)


@pytest.mark.parametrize("head", [0, 3])
def test_the_plane_of_a_head_that_sees_what_is_unknown_tells_it_and_the_others_do_not(head):
    model, known, unknown = planted(head)
    others = [h for h in range(4) if h != head]
    found = projections(model, ranked(model, [*others, head]), known, {"pattern": unknown}, number=1)
    (most,), (least,) = found.most, found.least
    assert most.head == Head("vision", 0, head)
    assert least.head == Head("vision", 0, others[0])
    assert found.never_removed == 0

    def told(plane):
        """By the better of the two directions, on either side."""
        sides = [auroc(plane.points["id_test"][:, d], plane.points["pattern"][:, d]).item() for d in (0, 1)]
        return max(abs(side - 0.5) for side in sides) + 0.5

    assert told(most) > 0.95
    assert told(least) < 0.75


@pytest.mark.parametrize("name", ["timm", "bert", "torchvision", "timm-mean"])
def test_most_are_removed_last_and_least_first(name):
    model, case = model_of(name), BY_NAME[name]
    known, unknown = case.inputs(9, 6, 0), case.inputs(7, 6, 1)
    ranking = ranked(model, [5, 2, 9, 0, 11, 7])
    found = projections(model, ranking, known, {"a": unknown, "b": known}, number=2)
    assert [plane.head for plane in found.most] == [ranking.removed[-1], ranking.removed[-2]]
    assert [plane.head for plane in found.least] == list(ranking.removed[:2])
    assert found.never_removed == 6
    for plane in (*found.most, *found.least):
        together = torch.cat([outputs_of(model, data, [plane.head])[plane.head] for data in (known, unknown, known)])
        points, explained = principal_plane(together)
        torch.testing.assert_close(torch.cat(list(plane.points.values())), points, rtol=1e-4, atol=1e-5)
        assert plane.explained == pytest.approx(explained, rel=1e-4)
    written = json.loads(json.dumps(found.to_json()))
    assert written["most"][0]["head"] == list(ranking.removed[-1])
    assert len(written["least"][1]["points"]["a"]) == 7


def test_rankings_that_cannot_be_halved_are_refused():
    model, known = model_of("timm"), BY_NAME["timm"].inputs(6, 6, 0)
    with pytest.raises(AnalysisError, match="take a ranking of 4 or more, it has 3"):
        projections(model, ranked(model, [0, 1, 2]), known, {"a": known}, number=2)
    per_layer = taylor_ranking(model, (known, torch.arange(6) % 5), 2)
    with pytest.raises(AnalysisError, match="rank with scope='global'"):
        projections(model, per_layer, known, {"a": known}, number=2)
    with pytest.raises(AnalysisError, match="2 rows of 2 numbers at least, found 1 of 8"):
        principal_plane(torch.ones(1, 8))
