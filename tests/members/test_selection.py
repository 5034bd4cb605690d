"""From rankings to members."""

import copy
import warnings

import pytest
import torch

from families import model_of, perturbed
from hydra_ensembles import Head, HeadSet, fuse, prune
from hydra_ensembles.errors import HydraError, HydraWarning
from hydra_ensembles.heads import HeadRanking, RankingError
from hydra_ensembles.members import SelectionError, select_members
from hydra_ensembles.scoring import circuit_ranking, taylor_ranking

START = HeadSet.of({"vision": [range(4)] * 3}, {"vision": [4] * 3})


def ranking_of(order, budget=None):
    heads = [list(START)[i] for i in order]
    return HeadRanking(START, tuple(heads), tuple(0.0 for _ in heads), budget=budget)


def data(rows=24):
    generator = torch.Generator().manual_seed(0)
    known, unknown = (torch.randn(rows, 3, 16, 16, generator=generator) for _ in range(2))
    return (known, torch.randint(0, 5, (rows,), generator=generator)), unknown


def test_objectives_take_each_circuit_at_the_same_size():
    rankings = [ranking_of([0, 1, 2, 3]), ranking_of([4, 5, 6, 7]), ranking_of([0, 4, 8, 9])]
    chosen = select_members(rankings, keep=9)
    assert [sorted(~heads) for heads in chosen] == [sorted(ranking.removed[:3]) for ranking in rankings]
    assert chosen.overlaps()[0] == [1.0, 0.0, pytest.approx(1 / 3)]
    assert chosen.divergences()[0][1] == pytest.approx(0.6931, abs=1e-4)
    assert chosen.to_json()["overlap"] == chosen.overlaps()


def test_a_member_that_keeps_all_heads_has_no_distribution_of_removed_ones():
    (one,) = (chosen := select_members([ranking_of([0])], keep=12, members=1))
    assert one == START
    assert chosen.to_json()["divergence"] == [[None]]


def test_samples_come_from_the_first_of_the_ranking_and_differ_by_seed():
    ranking = ranking_of(range(11))
    chosen = select_members([ranking], keep=8, members=3, how="sample")
    pool = set(ranking.removed[:8])  # 100 of 144, of 12
    assert all(set(~heads) <= pool and len(heads) == 8 for heads in chosen)
    assert len(set(chosen)) > 1
    assert list(chosen) == list(select_members([ranking], keep=8, members=3, how="sample"))
    assert list(chosen)[1:] == list(select_members([ranking], keep=8, members=2, how="sample", seed=1))
    narrow = select_members([ranking], keep=8, members=3, how="sample", pool=4)
    assert all(set(~heads) == set(ranking.removed[:4]) for heads in narrow)


def test_calibration_draws_where_two_rankings_give_one_set():
    same = [ranking_of(range(11)), ranking_of(range(11)), ranking_of([11, *range(10)])]
    chosen = select_members(same, keep=8, how="calibration")
    assert len(set(chosen)) == 3
    assert chosen[0] == same[0].keep(8)
    assert chosen[2] == same[2].keep(8)
    assert chosen.drawn == (1,)
    assert chosen.to_json()["drawn"] == [1]


def test_calibration_takes_further_rankings_before_it_draws():
    first, other, third = ranking_of(range(11)), ranking_of([11, *range(10)]), ranking_of([11, 10, *range(9)])
    chosen = select_members([first, first, other, first, other, third], keep=8, how="calibration")
    assert list(chosen) == [first.keep(8), third.keep(8), other.keep(8)]
    assert chosen.rankings == (first, third, other)
    assert chosen.drawn == ()


def test_a_trunk_keeps_all_its_heads_and_the_budget_counts_behind_it():
    ranking = ranking_of(range(4, 12))
    chosen = select_members([ranking], keep=5, members=3, how="sample", trunk=1, pool=6)
    assert all(heads["vision"][0] == (0, 1, 2, 3) and len(heads) == 4 + 5 for heads in chosen)
    with pytest.raises(RankingError, match="lies in the trunk of 1 blocks; rank with layers=range"):
        select_members([ranking_of([0, 5])], keep=5, members=3, how="sample", trunk=1)
    assert fuse([prune(model_of("timm"), heads) for heads in chosen]).trunk == {"vision": 1}


def test_joint_members_are_chosen_by_the_score_of_the_ensemble(tmp_path):
    model = model_of("timm")
    id_data, ood_data = data()
    journal = tmp_path / "joint.jsonl"
    first = circuit_ranking(model, id_data, ood_data, "avg", 4)
    chosen = select_members(
        [first], keep=8, how="joint", members=3, model=model, id_data=id_data, ood_data=ood_data, journal=journal
    )
    assert chosen[0] == first.keep(8)
    second = circuit_ranking(model, id_data, ood_data, "avg", 4, companions=[prune(model, chosen[0])])
    assert chosen[1] == second.keep(8)
    assert chosen.rankings[2].scores[-1] >= 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joint.1.jsonl", "joint.2.jsonl"]
    alone = select_members([], keep=8, how="joint", members=2, model=model, id_data=id_data, ood_data=ood_data, trunk=0)
    assert list(alone) == list(chosen)[:2]
    stored = prune(model, HeadSet.all(model))  # a base that was fine-tuned and saved is a member with all its heads
    again = select_members([], keep=8, how="joint", members=2, model=stored, id_data=id_data, ood_data=ood_data)
    assert list(again) == list(alone)


def test_taylor_per_layer_gives_members_at_its_own_budget():
    model = model_of("timm")
    (images, labels), _ = data()
    rankings = [taylor_ranking(model, (images[part], labels[part]), 1) for part in (slice(0, 12), slice(12, 24))]
    chosen = select_members(rankings, keep=9, members=2, how="objectives")
    assert [len(heads) for heads in chosen] == [9, 9]
    with pytest.raises(RankingError, match="holds at 3 removals only"):
        select_members(rankings, keep=10, members=2, how="objectives")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "vote"}, "known: objectives, sample, calibration, joint"),
        ({"how": "objectives", "members": 3}, "takes 3 rankings, found 1"),
        ({"how": "sample", "members": 0}, "at least one member"),
        ({"how": "sample", "pool": 2}, "cannot draw 4 heads out of the first 2"),
        ({"how": "sample", "pool": 12}, "the pool has 12 heads, the ranking only 11; rank with remove=12"),
        ({"how": "joint"}, "give model="),
    ],
)
def test_what_cannot_be_selected_is_refused(settings, message):
    with pytest.raises(SelectionError, match=message):
        select_members([ranking_of(range(11))], keep=8, **settings)


def test_a_ranking_is_json_and_says_what_is_wrong_with_it(tmp_path, monkeypatch):
    ranking = ranking_of([3, 1, 2])
    assert HeadRanking.load(ranking.save(tmp_path / "r.json")) == ranking
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ranking.save("~/mine.json") == tmp_path / "mine.json"
    assert HeadRanking.load("~/mine.json") == ranking
    for content, message in [("[]", "not a ranking"), ("{", "not JSON"), ('{"kind": "hydra"}', "not a ranking")]:
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(RankingError, match=message):
            HeadRanking.load(tmp_path / "bad.json")
    with pytest.raises(RankingError, match="No such file"):
        HeadRanking.load(tmp_path / "absent.json")
    with pytest.raises(RankingError, match="removed twice"):
        HeadRanking(START, (Head("vision", 0, 0),) * 2, (0.0, 0.0))
    with pytest.raises(RankingError, match="was not there"):
        HeadRanking(START, (Head("vision", 5, 0),), (0.0,))
    with pytest.raises(RankingError, match="rank more"):
        ranking.keep(2)


def test_rankings_of_another_model_are_refused_or_told():
    model, smaller = model_of("timm"), model_of("bert")
    other = perturbed(copy.deepcopy(model))
    known, _ = data()
    ranked = taylor_ranking(model, known, remove=2, scope="global")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (heads,) = select_members([ranked], keep=len(ranked.start) - 2, members=1, model=model)
        member = prune(model, ranked.keep(len(ranked.start) - 1))
        again = taylor_ranking(member, known, remove=1, scope="global")
        select_members([again], keep=len(again.start) - 1, members=1, model=member)
    with pytest.warns(HydraWarning, match="a model with other weights"):
        assert select_members([ranked], keep=len(heads), members=1, model=other)[0] == heads
    with pytest.raises(SelectionError, match=r"is of a model with \d+ heads, this one has"):
        select_members([ranked], keep=2, members=1, model=smaller)


@pytest.mark.parametrize("how", ["objectives", "sample"])
def test_what_a_model_does_not_have_is_said_as_such(how):
    ranking = ranking_of(range(11))
    with pytest.raises(HydraError, match="cannot keep 13 of 12 heads"):
        select_members([ranking], keep=13, members=1, how=how)
    with pytest.raises(HydraError, match="the model has 3 blocks, a trunk of 9"):
        select_members([ranking], keep=3, members=1, how=how, trunk=9)
