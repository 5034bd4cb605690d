"""Taylor scores: by hand, by finite differences, against Torch-Pruning; per layer and global."""

import copy

import pytest
import torch
import torch.nn.functional as F

from families import CASES, in_double, model_of
from hydra_ensembles import Backbone, HeadSet, prune
from hydra_ensembles.data import as_batches
from hydra_ensembles.evaluation.analyses import taylor_map
from hydra_ensembles.heads import RankingError
from hydra_ensembles.scoring import ScoringError, taylor_ranking
from hydra_ensembles.scoring.taylor import taylor_scores
from hydra_ensembles.scoring.working import Working
from zero_shots import classifier_of, images


def labelled(case, rows=6, seed=0):
    return case.inputs(rows, 6, seed), torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(seed))


def test_by_hand_on_a_model_small_enough_for_paper():
    """One image of one patch: a single token attends to itself, so only values carry a gradient, and by hand
    dL/dW_v = W_o^T g x^T with g the gradient behind attention.
    """
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=2, patch_size=2, in_chans=1, embed_dim=4, depth=1, num_heads=2, num_classes=3,
        class_token=False, global_pool="avg", mlp_ratio=1,
    ).double().eval()  # fmt: skip
    image, label = torch.randn(1, 1, 2, 2, dtype=torch.float64), torch.tensor([1])
    scores = taylor_scores(Working(model), as_batches((image, label)))

    block = model.blocks[0]
    with torch.no_grad():
        tokens = model.patch_embed(image) + model.pos_embed
        x = block.norm1(tokens)[0, 0]
    W = block.attn.qkv.weight.detach()
    v = (W[8:] @ x + block.attn.qkv.bias[8:]).detach()

    def loss_of(v):
        attention = block.attn.proj(v)[None, None]
        y = tokens + attention
        y = y + block.mlp(block.norm2(y))
        return F.cross_entropy(model.head(model.fc_norm(model.norm(y).mean(1))), label)

    # g by central differences, coordinate by coordinate: no autograd in the oracle.
    step = 1e-6
    with torch.no_grad():
        g = torch.stack([(loss_of(v + step * e) - loss_of(v - step * e)) / (2 * step) for e in torch.eye(4).double()])
    gradient_v = torch.outer(g, x)
    for head in (0, 1):
        rows = slice(2 * head, 2 * head + 2)
        expected = (W[8:][rows] * gradient_v[rows]).abs().mean() / 3  # queries and keys of one token have no gradient
        assert next(s for h, s in scores.items() if h.index == head) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_family_scores_by_the_definition(case):
    """An independent reading: gradients through the composed backbone, one sample's mean loss at once."""
    model = copy.deepcopy(model_of(case.name)).double().eval()
    inputs, labels = labelled(case)
    inputs = in_double(inputs)
    found = taylor_scores(Working(model), as_batches((inputs, labels), batch_size=6))
    backbone = Backbone.of(model)
    F.cross_entropy(backbone(inputs), labels).backward()
    for tower, layer, block in backbone.blocks():
        K = block.attention.head_dim
        qkv = block.attention.qkv
        weights = [qkv.weight] if hasattr(qkv, "weight") else [qkv.q.weight, qkv.k.weight, qkv.v.weight]
        products = torch.cat([(w * w.grad).abs() for w in weights]).chunk(3)
        for head in range(block.attention.num_heads):
            expected = sum(p[head * K : (head + 1) * K].mean() for p in products) / 3
            assert found[tower, layer, head] == pytest.approx(expected.item(), rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("name", ["timm", "open_clip"])
def test_one_layer_alone_has_the_scores_it_has_among_all(name):
    model = classifier_of(name) if name == "open_clip" else model_of(name)
    data = as_batches((images(6), torch.tensor([0, 1, 2] * 2)), batch_size=3)
    scores = taylor_scores(Working(model), data)
    places = dict.fromkeys((head.tower, head.layer) for head in scores)
    assert len(places) == 3 * (2 if name == "open_clip" else 1)
    for place in places:
        alone = taylor_scores(Working(model), data, place)
        assert alone == {head: score for head, score in scores.items() if (head.tower, head.layer) == place}


def test_batches_do_not_change_the_mean_gradient():
    case = CASES[0]
    model = copy.deepcopy(model_of(case.name)).double()
    inputs, labels = labelled(case, 7)
    whole = taylor_scores(Working(model), as_batches((inputs.double(), labels), batch_size=7))
    parts = taylor_scores(Working(model), as_batches((inputs.double(), labels), batch_size=3))
    assert list(whole.values()) == pytest.approx(list(parts.values()), rel=1e-9)


def test_per_layer_prunes_and_recomputes():
    case = CASES[0]
    model, data = model_of(case.name), labelled(case)
    ranking = taylor_ranking(model, data, 2)
    keep = HeadSet.all(model)
    for layer in range(3):
        scores = taylor_scores(Working(prune(model, keep)), as_batches(data))
        least = sorted((s, h) for h, s in scores.items() if h.layer == layer)[:2]
        mine = [(s, h) for s, h in zip(ranking.scores, ranking.removed, strict=True) if h.layer == layer]
        assert [h for _, h in mine] == [h for _, h in least]
        assert [s for s, _ in mine] == pytest.approx([s for s, _ in least], rel=1e-4)
        keep = keep.without(h for _, h in least)
    assert ranking.keep(6) == keep
    assert [h.layer for h in ranking.removed] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(RankingError, match="holds at 6 removals only"):
        ranking.keep(7)


def test_global_compares_all_heads_with_each_other():
    case = CASES[0]
    model, data = model_of(case.name), labelled(case)
    ranking = taylor_ranking(model, data, 11, scope="global")
    scores = taylor_scores(Working(model), as_batches(data))
    assert list(ranking.removed) == sorted(scores, key=scores.__getitem__)[:11]
    assert ranking.scores == tuple(sorted(ranking.scores))
    assert len(ranking.keep(4)) == 4


def test_where_definitions_agree_torch_pruning_gives_the_same_scores():
    """Torch-Pruning's group Taylor importance sums (W * G) in groups of channels, before or after the absolute value;
    with one channel a group and a sum of absolute values of the rows of W_v alone, it is our score of the values.
    """
    tp = pytest.importorskip("torch_pruning")
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = (
        VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=5).double().eval()
    )
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(0, 5, (6,))
    F.cross_entropy(model(x), y).backward()
    layer = model.blocks[0].attn.qkv
    importance = tp.importance.GroupTaylorImportance(group_reduction=None, normalizer=None, multivariable=False)
    group = tp.pruner.function.prune_linear_out_channels
    linear = torch.nn.Linear(8, 24).double()
    linear.weight, linear.bias = torch.nn.Parameter(layer.weight.detach()), None
    linear.weight.grad = layer.weight.grad
    graph = tp.DependencyGraph().build_dependency(torch.nn.Sequential(linear), torch.randn(1, 8, dtype=torch.float64))
    rows = importance(graph.get_pruning_group(linear, group, list(range(24))))
    theirs = rows.flatten()[:24].reshape(3, 2, 4).mean(dim=(0, 2)) / 8  # the sum over columns to a mean
    ours = taylor_scores(Working(model), as_batches((x, y), batch_size=6))
    assert list(ours.values()) == pytest.approx(theirs.tolist(), rel=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"remove": 5}, "layer 0 of tower 'vision' has 4 heads"),
        ({"remove": 12, "scope": "global"}, "between 1 and 11 of 12"),
        ({"remove": 1, "scope": "everywhere"}, "known: layer, global"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ScoringError, match=message):
        taylor_ranking(model_of("timm"), labelled(CASES[0]), **settings)


def test_labels_are_needed_and_frozen_weights_stay_frozen():
    model = copy.deepcopy(model_of("timm")).requires_grad_(False)
    with pytest.raises(ScoringError, match="labels"):
        taylor_ranking(model, labelled(CASES[0])[0], 1)
    inputs, labels = labelled(CASES[0])
    found = taylor_ranking(model, (inputs, labels), 1)
    assert taylor_ranking(model, (inputs, labels.short()), 1).removed == found.removed
    with pytest.raises(ScoringError, match="label 5 was found, but the model has 5 classes"):
        taylor_ranking(model, (inputs, labels + (5 - labels.max())), 1)
    with pytest.raises(ScoringError, match="label -100 was found"):
        taylor_ranking(model, (inputs, torch.full_like(labels, -100)), 1)
    assert not any(p.requires_grad for p in model.parameters())


def test_scores_of_two_towers_are_compared_by_the_mean_of_each():
    model = classifier_of("open_clip").double()
    data = images(8).double(), torch.tensor([0, 1, 2, 3] * 2)
    scores = taylor_scores(Working(model), as_batches(data))
    means = {tower: sum(s for h, s in scores.items() if h.tower == tower) / 12 for tower in ("vision", "text")}
    plain = taylor_ranking(model, data, 8, scope="global")
    scaled = taylor_ranking(model, data, 8, scope="global", by_tower=True)
    assert list(plain.removed) == sorted(scores, key=scores.__getitem__)[:8]
    assert list(scaled.removed) == sorted(scores, key=lambda head: scores[head] / means[head.tower])[:8]
    assert scaled.scores == pytest.approx([scores[head] / means[head.tower] for head in scaled.removed])
    vision = taylor_ranking(model, data, 8, scope="global", towers="vision")
    assert list(vision.removed) == sorted((h for h in scores if h.tower == "vision"), key=scores.__getitem__)[:8]
    means_by_layer = taylor_map(model, data).means()["text"]
    assert sum(means_by_layer) / 3 == pytest.approx(means["text"])
    with pytest.raises(ScoringError, match="by_tower=True is for scope='global'"):
        taylor_ranking(model, data, 1, by_tower=True)
