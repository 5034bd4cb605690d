"""Head sets: immutable, validated, an algebra of sets, JSON and back."""

import dataclasses
import json
import math

import pytest
from hypothesis import given

from families import head_sets, model_of
from hydra_ensembles import Head, HeadSet
from hydra_ensembles.heads import HeadSetError, layer_divergence, overlap

SIZES = {"vision": [3, 3], "text": [2]}


def keep(*layers, sizes=SIZES):
    return HeadSet.of({"vision": layers[:2], "text": layers[2:]}, sizes)


@given(a=head_sets("open_clip"), b=head_sets("open_clip"))
def test_the_algebra_is_that_of_sets(a, b):
    first, second, everything = set(a), set(b), set(HeadSet.all(model_of("open_clip")))
    assert set(a & b) == first & second
    assert set(a | b) == first | second
    assert set(a - b) == first - second
    assert set(a ^ b) == first ^ second
    assert set(~a) == everything - first
    assert (a <= b) == (first <= second)
    assert set(a.without(b)) == first - second
    assert len(a) == len(first)
    assert all((head in a) == (head in first) for head in everything)
    assert ~~a == a
    assert a.full() == a | ~a


@given(a=head_sets("open_clip"))
def test_json_and_back(a):
    assert HeadSet.from_json(json.loads(json.dumps(a.to_json()))) == a
    assert hash(HeadSet.from_json(a.to_json())) == hash(a)


def test_heads_come_in_the_order_tower_layer_index():
    assert list(keep([2, 0], [1], [0])) == [
        Head("text", 0, 0),
        Head("vision", 0, 0),
        Head("vision", 0, 2),
        Head("vision", 1, 1),
    ]
    assert keep([0], [1], [0]) == HeadSet.from_json(dict(reversed(keep([0], [1], [0]).to_json().items())))


def test_a_head_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        keep([0], [], []).towers = ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: keep([0], [3], []), "layer 1 of tower 'vision' has 3 heads, but the set keeps head 3; heads are num"),
        (lambda: keep([-1], [], []), "layer 0 of tower 'vision' has 3 heads, but the set keeps head -1"),
        (lambda: keep([1, 1], [], []), r"layer 0 of tower 'vision' names a head twice: \[1, 1\]"),
        (lambda: keep(["1"], [], []), "heads, and numbers of heads, are whole numbers"),
        (lambda: keep([0], [1]), "tower 'text' has 1 layers, but the set names 0"),
        (lambda: HeadSet.of({"vision": [[0]]}, {"text": [2]}), r"names towers \['vision'\], but num_heads names"),
        (lambda: HeadSet.from_json({"vision": [[0]]}), "a head set is written"),
        (lambda: keep([], [], [])["audio"], "has no tower 'audio'; it has text, vision"),
        (lambda: keep([], [], []).without([Head("vision", 7, 0)]), r"Head\(tower='vision', layer=7, index=0\) is not"),
        (lambda: keep([0], [], []) & HeadSet.of({"text": [[]]}, {"text": [2]}), "over different models"),
        (lambda: keep([0], [], []).within(keep([1], [], [])), "the member has lost it already"),
        (lambda: keep([0], [], []).check_fits(model_of("timm")), "over towers text, vision, the model has vision"),
        (lambda: HeadSet.first(model_of("timm"), 5), "cannot keep 5 heads in every layer: the layer with the fewest"),
        (lambda: HeadSet.sample(model_of("timm"), 13, 0), "cannot keep 13 of 12 heads"),
    ],
)
def test_what_is_wrong_is_said(wrong, message):
    with pytest.raises(HeadSetError, match=message):
        wrong()


def test_samples_have_the_size_asked_for_and_follow_their_seed():
    model = model_of("timm")
    samples = [HeadSet.sample(model, 7, seed) for seed in range(5)]
    assert {len(sample) for sample in samples} == {7}
    assert len(set(samples)) > 1
    assert HeadSet.sample(model, 7, 3) == samples[3]


def test_overlap_is_shared_over_number_of_removed_heads():
    one, other = keep([0], [0, 1, 2], [0, 1]), keep([0, 1], [0, 1], [0, 1])
    # removed: {v0.1, v0.2} and {v0.2, v1.2}
    assert overlap(one, other) == 0.5
    assert overlap(one, one) == 1.0
    assert overlap(one.full(), one) == 0.0
    assert overlap(one.full(), one.full()) == 1.0
    # of unequal numbers the smaller counts: {v0.2} is one of two
    assert overlap(one, keep([0, 1], [0, 1, 2], [0, 1])) == 1.0


def test_layer_divergence_by_hand():
    # removed by layer: (2, 0, 0) and (1, 1, 0): halves of KL to the middle (3/4, 1/4, 0)
    one, other = keep([0], [0, 1, 2], [0, 1]), keep([0, 1], [0, 1], [0, 1])
    by_hand = 0.5 * math.log(1 / 0.75) + 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert layer_divergence(one, other) == pytest.approx(by_hand)
    assert layer_divergence(one, one) == 0
    apart = keep([0, 1, 2], [0, 1, 2], [0])
    assert layer_divergence(one, apart) == pytest.approx(math.log(2))
    assert layer_divergence(one, one.full()) is None
