"""Centroid distances: a planted head, scipy on outputs caught by hooks, and what no difference looks like."""

import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis

from evaluation.analyses.planted import planted
from families import BY_NAME, CASES, model_of
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.evaluation.analyses import AnalysisError, centroid_distances
from hydra_ensembles.evaluation.analyses.centroids import chance_distance
from hydra_ensembles.evaluation.analyses.readings import outputs_of
from hydra_ensembles.heads import Head

# Where the input of W_O passes through a module of its own, and so can be caught without our code.
OUTPUT_LAYERS = {
    "timm": "blocks.{}.attn.proj",
    "timm-mean": "blocks.{}.attn.proj",
    "timm-registers-mean": "blocks.{}.attn.proj",
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "distilbert": "distilbert.transformer.layer.{}.attention.out_lin",
    "hf-vit": "vit.layers.{}.attention.o_proj",
}


def images(rows, seed, shift=0.0):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) + shift


def caught(name, inputs, layer):
    """What W_O of a layer reads, by a hook on the library's own module: every token, heads side by side."""
    model, seen = model_of(name), []
    module = model.get_submodule(OUTPUT_LAYERS[name].format(layer))
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(inputs) if isinstance(inputs, torch.Tensor) else model(**inputs)
    hook.remove()
    return seen[0].unflatten(-1, (4, 8)).double()


def at_readout(name, z_BTHK):
    if name == "timm-mean":
        return z_BTHK[:, 1:].mean(dim=1)
    return z_BTHK[:, 3:].mean(dim=1) if name == "timm-registers-mean" else z_BTHK[:, 0]


@pytest.mark.parametrize("head", range(4))
def test_a_head_that_alone_sees_what_is_unknown_comes_first(head):
    model, known, unknown = planted(head)
    found = centroid_distances(model, known, {"pattern": unknown, "nothing": known[100:]})
    for distance in ("mahalanobis", "euclidean"):
        assert found.farthest("pattern", distance)[0] == Head("vision", 0, head)
    others = [h for h in range(4) if h != head]
    assert found.mahalanobis["pattern"][head] > 2 * max(found.mahalanobis["pattern"][h] for h in others)
    assert max(found.mahalanobis["nothing"]) < 2 * found.chance["nothing"][0]


@pytest.mark.parametrize("name", OUTPUT_LAYERS)
def test_distances_are_those_of_scipy_on_what_hooks_catch(name):
    case = BY_NAME[name]
    known, unknown = case.inputs(40, 6, 0), case.inputs(25, 6, 1)
    found = centroid_distances(model_of(name), known, {"other": unknown}, batch_size=7)
    assert found.heads == tuple(HeadSet.all(model_of(name)))
    assert found.rows == {"id_test": 40, "other": 25}
    for place, (_, layer, head) in enumerate(found.heads):
        a, b = (at_readout(name, caught(name, data, layer))[:, head].numpy() for data in (known, unknown))
        assert found.euclidean["other"][place] == pytest.approx(np.linalg.norm(a.mean(0) - b.mean(0)), rel=1e-4)
        expected = mahalanobis(a.mean(0), b.mean(0), np.linalg.inv(np.cov(a.T)))
        assert found.mahalanobis["other"][place] == pytest.approx(expected, rel=1e-3)
    assert set(found.rank) == {8}
    last = [d for d, head in zip(found.mahalanobis["other"], found.heads, strict=True) if head.layer == 2]
    assert found.average("mahalanobis") == {"other": pytest.approx(sum(last) / 4)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_family_of_one_tower_is_read_in_any_batches(case):
    known, unknown = case.inputs(24, 6, 0), case.inputs(12, 6, 1)
    if case.modality == "both":
        with pytest.raises(AnalysisError, match="give a model of one tower"):
            centroid_distances(model_of(case.name), known, {"other": unknown})
        return
    whole, cut = (
        centroid_distances(model_of(case.name), known, {"other": unknown}, batch_size=size) for size in (24, 5)
    )
    assert cut.euclidean["other"] == pytest.approx(whole.euclidean["other"], rel=1e-4)
    assert cut.mahalanobis["other"] == pytest.approx(whole.mahalanobis["other"], rel=1e-2)
    assert min(whole.euclidean["other"]) > 0


def test_a_member_keeps_the_numbers_of_its_backbone():
    model = model_of("timm")
    keep = HeadSet.of({"vision": [[0, 1, 2, 3], [], [1, 3]]}, {"vision": [4, 4, 4]})
    found = centroid_distances(prune(model, keep), images(30, 0), {"far": images(20, 1, 1.0)})
    whole = centroid_distances(model, images(30, 0), {"far": images(20, 1, 1.0)})
    assert found.heads == tuple(keep)
    assert found.euclidean["far"][:4] == pytest.approx(whole.euclidean["far"][:4], rel=1e-4)  # nothing lies before them
    only = centroid_distances(prune(model, keep), images(30, 0), {"far": images(20, 1, 1.0)}, layers=[2])
    assert only.heads == (Head("vision", 2, 1), Head("vision", 2, 3))
    assert only.euclidean["far"] == found.euclidean["far"][4:]
    assert json.loads(json.dumps(only.to_json()))["heads"] == [["vision", 2, 1], ["vision", 2, 3]]


def test_chance_is_what_rows_of_one_normal_distribution_give():
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(2000):
        a, b = rng.normal(size=(60, 8)), rng.normal(size=(40, 8))
        squares.append(mahalanobis(a.mean(0), b.mean(0), np.linalg.inv(np.cov(a.T))) ** 2)
    assert chance_distance(8, 60, 40) == pytest.approx(np.sqrt(np.mean(squares)), rel=0.03)


def test_directions_that_known_outputs_do_not_have_are_left_out_and_counted():
    model, known, unknown = planted(2)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight[64 + 3 * 8 :] = 0  # head 3 says its bias, whatever comes
        model.blocks[0].attn.qkv.weight[64 : 64 + 5] = 0  # of head 0, three directions are left
    found = centroid_distances(model, known, {"pattern": unknown})
    assert found.rank == (3, 8, 8, 0)
    assert found.mahalanobis["pattern"][3] == 0
    assert found.euclidean["pattern"][3] < 1e-6
    assert found.mahalanobis["pattern"][0] < 1


class InOrderOfLength:
    """Batches that come in another order than their rows stand in the data, and say so, as batches of texts do."""

    def __init__(self, rows, order):
        self.rows, self.order, self.num_rows = rows, order, len(rows)

    def epoch(self, number):
        return ((self.rows[part], None) for part in self.order.split(4))


def test_outputs_of_a_head_come_in_the_order_of_the_rows():
    from hydra_ensembles.data import Batch

    rows, heads = images(10, 0), [Head("vision", 2, 1), Head("vision", 0, 3)]
    plain = outputs_of(model_of("timm"), rows, heads)

    class Batches(InOrderOfLength):
        def __iter__(self):
            return (Batch(*one) for one in self.epoch(0))

    moved = outputs_of(model_of("timm"), Batches(rows, torch.randperm(10)), heads)
    for head in heads:
        torch.testing.assert_close(moved[head], plain[head], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            plain[head], caught("timm", rows, head.layer)[:, 0, head.index], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id_data": images(10, 0)}, "10 known rows cannot say how outputs of 8 numbers vary; give more than 10"),
        ({"ood_data": {}}, "no unknown set"),
        ({"ood_data": {"id_test": images(4, 0)}}, "cannot be called 'id_test'"),
        ({"layers": [3]}, "layers are 0 to 2"),
        ({"layers": [1]}, "no heads left"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(change, message):
    keep = HeadSet.of({"vision": [[0], [], [1, 3]]}, {"vision": [4, 4, 4]})
    settings = {"id_data": images(30, 0), "ood_data": {"far": images(4, 1)}} | change
    with pytest.raises(AnalysisError, match=message) as caught:
        centroid_distances(prune(model_of("timm"), keep), **settings)
    assert "\n" not in str(caught.value)


def test_a_hydra_and_unknown_names_are_refused():
    model = model_of("timm")
    with pytest.raises(AnalysisError, match="found a hydra of 2; give one of its members"):
        centroid_distances(fuse([model, model]), images(30, 0), {"far": images(4, 1)})
    found = centroid_distances(model, images(30, 0), {"far": images(4, 1)})
    with pytest.raises(AnalysisError, match="there are far"):
        found.farthest("near")
    with pytest.raises(AnalysisError, match="known: mahalanobis, euclidean"):
        found.average("cosine")
    with pytest.raises(AnalysisError, match="no head of layer 5"):
        found.average("euclidean", layer=5)
