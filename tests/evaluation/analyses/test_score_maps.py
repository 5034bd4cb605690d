"""Maps of heads: every number in its place, towers beside each other."""

import json

import pytest
import torch

from families import BY_NAME, CASES, model_of
from hydra_ensembles import HeadSet, prune, taylor_ranking
from hydra_ensembles.evaluation.analyses import AnalysisError, random_ranking, removal_map, score_map, taylor_map
from hydra_ensembles.heads import Head, HeadRanking


def labelled(case, rows=6):
    return case.inputs(rows, 6, 0), torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_taylor_map_has_the_scores_of_a_global_ranking_in_their_places(case):
    model, data = model_of(case.name), labelled(case)
    found = taylor_map(model, data)
    total = len(HeadSet.all(model))
    ranking = taylor_ranking(model, data, total - 1, scope="global")
    for (tower, layer, index), score in zip(ranking.removed, ranking.scores, strict=True):
        assert found.layers[tower][layer][index] == pytest.approx(score, rel=1e-6)
    assert sum(len(row) for rows in found.layers.values() for row in rows) == total
    assert set(found.layers) == (
        {"vision", "text"} if case.modality == "both" else {case.modality.replace("image", "vision")}
    )


def test_lost_heads_have_no_score_and_frozen_weights_stay_frozen():
    case = BY_NAME["timm"]
    keep = HeadSet.of({"vision": [[0, 2], [], [1]]}, {"vision": [4, 4, 4]})
    member = prune(model_of("timm"), keep).requires_grad_(False)
    found = taylor_map(member, labelled(case))
    there = [[score is not None for score in row] for row in found.layers["vision"]]
    assert there == [[True, False, True, False], [False] * 4, [False, True, False, False]]
    assert found.means()["vision"][1] is None
    assert found.means()["vision"][2] == found.layers["vision"][2][1]
    assert not any(p.requires_grad for p in member.parameters())
    assert json.loads(json.dumps(found.to_json()))["layers"]["vision"][1] == [None] * 4


def test_a_removal_map_counts_from_one_and_leaves_the_others_out():
    start = HeadSet.of({"text": [[0, 1], [0, 1, 2]], "vision": [[0]]}, {"text": [2, 3], "vision": [1]})
    ranking = HeadRanking(start, (Head("text", 1, 2), Head("vision", 0, 0), Head("text", 0, 1)), (0.5, 0.4, 0.1))
    assert removal_map(ranking).to_json() == {
        "what": "removal, counted from 1",
        "layers": {"text": [[None, 3], [None, None, 1]], "vision": [[2]]},
    }
    assert score_map(ranking).layers == {"text": ((None, 0.1), (None, None, 0.5)), "vision": ((0.4,),)}
    assert score_map(ranking).means() == {"text": [0.1, 0.5], "vision": [0.4]}
    with pytest.raises(AnalysisError, match="a random order has no scores"):
        score_map(random_ranking(start, 0))
