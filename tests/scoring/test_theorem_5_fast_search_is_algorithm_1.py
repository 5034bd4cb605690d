"""Theorem 5: the fast circuit search is the paper's Algorithm 1, on every family, ties included.

Exactly in float64; in float32 as long as the two best scores differ by 2/N or more.
"""

import copy

import pytest
import torch

from families import CASES, in_double, model_of
from hydra_ensembles import HeadSet, ablate, prune
from hydra_ensembles.data.batches import rows_at
from hydra_ensembles.heads import HeadRanking
from hydra_ensembles.scoring import circuit_ranking
from hydra_ensembles.scoring.objectives import scores
from hydra_ensembles.scoring.working import SearchData, Working

ROWS, BATCH = 14, 7


def subject(case, dtype=torch.float64):
    return copy.deepcopy(model_of(case.name)).to(dtype).eval()


def data_of(case, seed=0, rows=ROWS, dtype=torch.float64):
    known, unknown = case.inputs(rows, 6, seed), case.inputs(rows, 6, seed + 1)
    if dtype == torch.float64:
        known, unknown = in_double(known), in_double(unknown)
    labels = torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(seed))
    cut = [slice(start, start + BATCH) for start in range(0, rows, BATCH)]
    id_data = [(rows_at(known, part), labels[part]) for part in cut]
    return id_data, [(rows_at(unknown, part), None) for part in cut]


def algorithm_1_by_hand(model, id_data, ood_data, objective, budget) -> HeadRanking:
    """Another reading of the algorithm: members are pruned physically, every pair of rows is compared."""
    keep, removed, found = HeadSet.all(model), [], []
    for _ in range(budget):
        best, chosen = -1.0, None
        for head in keep:
            member = prune(model, keep.without([head]))
            with torch.no_grad():
                known = [member(inputs).softmax(-1) for inputs, _ in id_data]
                unknown = torch.cat([member(inputs).softmax(-1).max(-1).values for inputs, _ in ood_data])
            right = torch.cat([p.argmax(-1) == y for p, (_, y) in zip(known, id_data, strict=True)]).double().mean()
            msp = torch.cat([p.max(-1).values for p in known])
            wins = (msp[:, None] > unknown).double() + 0.5 * (msp[:, None] == unknown).double()
            score = {"acc": right, "ood": wins.mean(), "avg": (right + wins.mean()) / 2}[objective].item()
            if score > best + 1e-12:
                best, chosen = score, head
        keep, removed, found = keep.without([chosen]), [*removed, chosen], [*found, best]
    return HeadRanking(HeadSet.all(model), tuple(removed), tuple(found))


@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_the_plain_search_is_algorithm_1(objective):
    case = CASES[0]
    model = subject(case)
    id_data, ood_data = data_of(case)
    expected = algorithm_1_by_hand(model, id_data, ood_data, objective, 11)
    plain = circuit_ranking(model, id_data, ood_data, objective, 11, search="plain")
    assert plain.removed == expected.removed
    assert plain.scores == pytest.approx(expected.scores, abs=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fast_search_is_the_plain_search_in_float64_up_to_all_heads_but_one(case):
    model = subject(case)
    number = len(HeadSet.all(model))
    id_data, ood_data = data_of(case)
    objective = ("acc", "ood", "avg")[CASES.index(case) % 3]
    budget = number - 1 if case.modality != "both" else number // 2
    plain = circuit_ranking(model, id_data, ood_data, objective, budget, search="plain")
    fast = circuit_ranking(model, id_data, ood_data, objective, budget)
    assert fast.removed == plain.removed
    assert fast.scores == plain.scores
    assert fast.start_score == plain.start_score


def test_ties_go_to_the_lowest_tower_layer_and_head():
    case = CASES[0]
    model, heads, tied = subject(case), list(HeadSet.all(subject(case))), 0
    for seed in range(6):
        id_data, ood_data = data_of(case, seed)
        found, _ = Working(model).outcomes(heads, enumerate(SearchData(id_data, ood_data, BATCH)))
        points = scores("acc", found)
        best = [head for head, score in zip(heads, points, strict=True) if score == points.max()]
        tied += len(best) > 1
        for search in ("plain", "fast"):
            assert circuit_ranking(model, id_data, ood_data, "acc", 1, search=search).removed == (min(best),)
    assert tied > 1


@pytest.mark.parametrize("name", ["timm", "bert", "open_clip"])
def test_in_float32_scores_differ_by_less_than_two_rows(name):
    case = next(case for case in CASES if case.name == name)
    model = subject(case, torch.float32)
    id_data, ood_data = data_of(case, seed=3, rows=56, dtype=torch.float32)
    data, working = SearchData(id_data, ood_data, BATCH), Working(model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        candidates = list(working.keep)
        found, _ = working.outcomes(candidates, enumerate(data))
        for objective in ("acc", "ood", "avg"):
            plain = scores(objective, plain_outcome(model, working.keep, candidates, data))
            assert (scores(objective, found) - plain).abs().max() < 2 / 56
        working.remove([candidates[int(torch.randint(len(candidates), (), generator=generator))]])


def plain_outcome(model, keep, candidates, data):
    from hydra_ensembles.heads import own_logits
    from hydra_ensembles.scoring.objectives import Outcome, outcome

    rows = []
    for head in candidates:
        with ablate(model, keep.without([head])), torch.no_grad():
            parts = [outcome(own_logits(model, batch.inputs)[None], batch.labels) for batch in data]
        rows.append(Outcome.join(parts))
    return Outcome(*(torch.cat([getattr(r, f) for r in rows]) for f in ("right_AN", "known_AN", "unknown_AU")))


def test_a_member_is_searched_in_the_numbers_of_its_backbone():
    case = CASES[0]
    model = subject(case)
    member = prune(model, HeadSet.of({"vision": [[1, 3], [0, 2, 3], [2]]}, {"vision": [4, 4, 4]}))
    id_data, ood_data = data_of(case)
    plain = circuit_ranking(member, id_data, ood_data, "avg", 5, search="plain")
    fast = circuit_ranking(member, id_data, ood_data, "avg", 5)
    assert fast.removed == plain.removed
    assert set(fast.removed) <= set(member.heads)
    assert fast.start == member.heads


def test_layers_and_towers_restrict_the_candidates():
    case = next(case for case in CASES if case.name == "open_clip")
    model = subject(case)
    id_data, ood_data = data_of(case)
    plain, fast = (
        circuit_ranking(model, id_data, ood_data, "avg", 3, search=search, layers=[1], towers=["vision"])
        for search in ("plain", "fast")
    )
    assert plain.removed == fast.removed
    assert {(head.tower, head.layer) for head in fast.removed} == {("vision", 1)}


def test_companions_make_it_the_score_of_the_ensemble():
    case = CASES[0]
    model = subject(case)
    id_data, ood_data = data_of(case)
    others = [prune(model, HeadSet.sample(model, 6, seed)) for seed in (1, 2)]
    plain, fast = (
        circuit_ranking(model, id_data, ood_data, "avg", 4, search=search, companions=others)
        for search in ("plain", "fast")
    )
    assert plain.removed == fast.removed
    member = prune(model, fast.without_first(4))
    with torch.no_grad():
        probs = [
            torch.cat([torch.stack([m(x).softmax(-1) for m in (member, *others)]).mean(0) for x, _ in part])
            for part in (id_data, ood_data)
        ]
    labels = torch.cat([y for _, y in id_data])
    right = (probs[0].argmax(-1) == labels).double().mean()
    known, unknown = (p.max(-1).values for p in probs)
    wins = (known[:, None] > unknown).double() + 0.5 * (known[:, None] == unknown).double()
    assert fast.scores[-1] == pytest.approx(((right + wins.mean()) / 2).item(), abs=1e-12)
