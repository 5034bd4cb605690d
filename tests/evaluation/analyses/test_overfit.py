"""Selection overfit: noise labels give a gap, many rows a small one; halves cover every row once."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from families import BY_NAME, model_of
from hydra_ensembles import HeadSet, circuit_ranking, prune
from hydra_ensembles.data import as_batches
from hydra_ensembles.evaluation.analyses import AnalysisError, selection_overfit
from hydra_ensembles.evaluation.analyses.overfit import Half
from hydra_ensembles.uncertainty import auroc


def images(rows, seed):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def noise(rows, seed=0):
    return images(rows, seed), torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(seed + 50))


def test_labels_of_pure_noise_give_a_gap_and_more_rows_a_smaller_one():
    model = model_of("timm")
    few = selection_overfit(model, noise(48), objective="acc", remove=6, splits=3)
    many = selection_overfit(model, noise(600), objective="acc", remove=6)
    assert few.gaps[0] == pytest.approx(0)  # nothing chosen yet
    assert few.rows == 24
    assert min(few.gaps[2:]) > 0.04
    assert max(abs(gap) for gap in many.gaps) < 0.5 * max(few.gaps)
    assert len(few.spreads) == 7


def test_with_noise_as_unknown_inputs_the_gap_is_in_the_separation_too():
    found = selection_overfit(model_of("timm"), noise(40), images(40, 7), "ood", 5, splits=2)
    assert found.gaps[0] == pytest.approx(0)
    assert min(found.gaps[2:]) > 0.02
    assert found.rows == 40


def test_a_loader_that_shuffles_cannot_be_cut_in_halves():
    shuffling = DataLoader(TensorDataset(*noise(20)), batch_size=5, shuffle=True)
    with pytest.raises(AnalysisError, match="the known data are a loader that shuffles"):
        selection_overfit(model_of("timm"), shuffling, objective="acc", remove=1)


def test_scores_are_those_of_the_search_and_of_models_pruned_by_hand():
    model, known, unknown = model_of("timm"), noise(30), images(26, 7)
    found = selection_overfit(model, known, unknown, "avg", 3, seed=5)
    assert [search.split for search in found.searches] == [0, 0]
    halves = [[list(Half(as_batches(data, 32), 5, half)) for data in (known, unknown)] for half in (0, 1)]
    for place, search in enumerate(found.searches):
        (ours,), (others,) = halves[place]
        ranking = circuit_ranking(model, tuple(ours), others.inputs, "avg", 3)
        assert search.removed == ranking.removed
        assert search.searched == pytest.approx([ranking.start_score, *ranking.scores])
        (ours,), (others,) = halves[1 - place]
        for step in range(4):
            member = prune(model, HeadSet.all(model).without(ranking.removed[:step]))
            with torch.no_grad():
                logits, other = member(ours.inputs), member(others.inputs)
            right = (logits.argmax(-1) == ours.labels).double().mean()
            separation = auroc(*(x.log_softmax(-1).amax(-1) for x in (logits, other)))
            assert search.unseen[step] == pytest.approx(((right + separation) / 2).item(), abs=1 / 15)
        assert search.gaps == pytest.approx([a - b for a, b in zip(search.searched, search.unseen, strict=True)])
    first, second = found.searches
    assert found.gaps == pytest.approx([(a + b) / 2 for a, b in zip(first.gaps, second.gaps, strict=True)])
    assert found.spreads is None
    assert json.loads(json.dumps(found.to_json()))["searches"][1]["removed"][0] == list(second.removed[0])


@pytest.mark.parametrize("rows", [2, 7, 33])
def test_the_halves_cover_every_row_once(rows):
    data = torch.arange(rows).float()[:, None], torch.arange(rows)
    parts = [torch.cat([batch.labels for batch in Half(as_batches(data, 4), 3, half)]) for half in (0, 1)]
    assert sorted(torch.cat(parts).tolist()) == list(range(rows))
    assert 0 <= len(parts[0]) - len(parts[1]) <= 1
    for batch in Half(as_batches(data, 4), 3, 0):
        assert batch.inputs[:, 0].tolist() == batch.labels.tolist()


@pytest.mark.parametrize("name", ["bert", "torchvision"])
def test_texts_and_images_members_and_lazy_searches(name):
    case, model = BY_NAME[name], model_of(name)
    member = prune(model, HeadSet.sample(model, 9, 0))
    known = case.inputs(16, 6, 0), torch.arange(16) % 5
    found = selection_overfit(member, known, case.inputs(12, 6, 1), "avg", 3, search="lazy")
    assert set(found.searches[0].removed) <= set(member.heads)
    assert found.gaps[0] == pytest.approx(0)


def test_a_killed_analysis_goes_on_from_its_journals(tmp_path):
    model, path = model_of("timm"), tmp_path / "overfit.jsonl"
    once = selection_overfit(model, noise(20), objective="acc", remove=2, splits=2, journal=path)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"overfit.{split}.{half}.jsonl" for split in (0, 1) for half in (0, 1)]
    (tmp_path / names[-1]).unlink()
    assert selection_overfit(model, noise(20), objective="acc", remove=2, splits=2, journal=path) == once


def test_what_cannot_be_halved_is_refused():
    model = model_of("timm")
    with pytest.raises(AnalysisError, match="1 known rows cannot be cut in halves"):
        selection_overfit(model, noise(1), objective="acc")
    with pytest.raises(AnalysisError, match="1 unknown rows cannot be cut in halves"):
        selection_overfit(model, noise(8), images(1, 0))
    with pytest.raises(AnalysisError, match="splits=0"):
        selection_overfit(model, noise(8), objective="acc", splits=0)
