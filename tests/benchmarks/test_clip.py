"""The evidence on zero-shot classification at toy size: a model in a directory, every row made and judged."""

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from clip import claims, judging, paper, table
from clip.methods import METHODS, Method, Networks
from clip.task import Column, Model, Sizes, Task, classes_of
from clip.training import _endless, contrastive
from evidence.journals import JOURNAL
from evidence.summary import results_of
from evidence.units import Units
from hydra_ensembles import HeadSet
from hydra_ensembles.data import batches_for, open_data
from tiny_sets import IMAGE


def folder(place, classes, rows=12, seed=0):
    chance = np.random.default_rng(seed)
    for name in classes:
        (place / name).mkdir(parents=True)
        for row in range(rows):
            pixels = chance.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{row}.png")
    return str(place)


def weights(place):
    import open_clip

    torch.manual_seed(0)
    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 16, "head_width": 8, "layers": 3},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3},
    }
    place.mkdir()
    (place / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file(open_clip.CLIP(**config).state_dict(), place / "open_clip_model.safetensors")
    return str(place)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All methods on two columns, one of which has no unknown sets."""
    place = tmp_path_factory.mktemp("clip")
    known = folder(place / "known", ["ant", "bee"])
    unknown = {"noise": folder(place / "noise", ["x"], 20, 1)}
    val = folder(place / "val", ["ant", "bee"], 15, 2)
    other = folder(place / "other", ["crane, bird", "crane, machine", "old_dog"], 8, 3)
    task = Task(
        columns={"first": Column("known", known, val, unknown), "second": Column("other", other, None)},
        asked={"all": ("first", "second")},
        first="first",
        train=val,
        known_val=val,
        unknown_val=folder(place / "ood", ["x"], 20, 4),
        sizes=Sizes(16, 16, 30, 100),
        more=1,
    )
    networks = Networks(Units(place / "kept"), task, place / "journals", weights(place / "weights"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "WRITTEN", place / "results")
        methods = [*METHODS, Method(paper.FEWER, "circuit-more")]
        networks.units.run([judging.results_unit(networks, method, 0, "toy") for method in methods])
    return networks, results_of(str(place / "results" / "toy"))


def test_every_method_has_a_results_file_with_its_columns(made):
    _, results = made
    assert {method for method, _ in results} == {method.name for method in METHODS} | {paper.FEWER}
    for (method, _), result in results.items():
        both = {"first"} if method == table.ERRORS else {"first", "second"}
        assert set(result["columns"]) == both
        assert set(result["columns"]["first"]["ood"]["msp"]) == {"noise", "near", "average"}
    assert results["hydra (circuit)", 0]["heads"] == "11x3"
    assert results[paper.FEWER, 0]["heads"] == "10x3"
    assert results["CircAvg", 0]["heads"] == "11"
    assert results["hydra (random heads)", 0]["heads"] == "11x3"
    assert sum(results["Taylor (vision only)", 0]["removed"][0].values()) == 1
    assert results["Taylor (vision only)", 0]["removed"][0]["text"] == 0
    kept = [HeadSet.from_json(one) for one in results["hydra (circuit)", 0]["kept"]]
    assert [len(heads) for heads in kept] == [11, 11, 11]
    assert results["single", 0]["kept"] == []


def test_a_column_has_the_answers_of_a_classifier_with_its_classes_alone(made):
    networks, _ = made
    found = judging.of_column(networks, networks.asked("single", 0)["second"], "second", "single")
    alone = networks.classifier(0, "second")
    images = networks.task.sets_of(alone, ("second",))["other"]
    with torch.no_grad():
        expected = torch.cat([alone(batch.inputs) for batch in images])
    torch.testing.assert_close(found["other"].logits[:, 0], expected, atol=1e-4, rtol=1e-4)
    assert found["other"].labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8


def test_accuracy_is_the_same_where_only_confidence_changes(made):
    _, results = made
    accuracies = {
        results[method, 0]["columns"]["first"]["answers"]["accuracy"]
        for method in ("single", "temperature scaling", table.ERRORS)
    }
    assert len(accuracies) == 1


def test_the_paper_s_tables_are_made_of_results(made):
    networks, results = made
    found = paper.summaries(results, networks.task.columns)
    assert next(iter(found["first"]["methods"])) == "single"
    made_of = paper.tables({**found, "third": found["first"]}, "first", "third")
    assert sorted(made_of) == [3, 24, 25, 26, 27, 28]
    assert "hydra (circuit, vision only)" in made_of[27]
    assert "nll" not in found["first"]["methods"][table.ERRORS]


def test_a_class_is_called_by_its_first_name_unless_two_share_it(tmp_path):
    reference = folder(tmp_path / "named", ["crane, bird", "crane, machine", "old_dog", "tench, Tinca"], 1)
    assert classes_of(reference) == ("crane, bird", "crane, machine", "old dog", "tench")


def test_a_model_is_a_directory_of_either_library_or_a_name_of_open_clip(tmp_path):
    assert Model.at(weights(tmp_path / "own")).reference.startswith("open_clip:")
    assert Model.at(tmp_path).reference.startswith("hf:")
    assert Model.at("ViT-B-32:laion2b_s34b_b79k") == Model("open_clip:ViT-B-32", "laion2b_s34b_b79k")
    with pytest.raises(SystemExit, match="neither a directory nor"):
        Model.at("nowhere")


def test_directories_of_one_name_are_told_apart_by_their_files(tmp_path):
    (tmp_path / "other").mkdir()
    same = Path(shutil.copytree(weights(tmp_path / "model"), tmp_path / "other" / "model"))
    name = Model.at(tmp_path / "model").name
    assert name.startswith("model-")
    assert Model.at(same).name == name
    (same / "open_clip_model.safetensors").write_bytes(b"others")
    assert Model.at(same).name != name
    assert Model.at("ViT-B-32:laion2b_s34b_b79k").name == "ViT-B-32-laion2b_s34b_b79k"


def test_journals_are_left_and_spare_another_checkout_the_search(made, tmp_path):
    networks, _ = made
    left = networks.journals / "avg-both-0" / JOURNAL
    lines = left.read_text()
    assert len(lines.splitlines()) == 1 + len(networks.ranking("rankings/avg-both-0").removed)
    other = replace(networks, units=Units(tmp_path))
    other.units.run([other.circuit(0, "avg", "both")])
    assert left.read_text() == lines  # with the seconds of the first search
    assert other.ranking("rankings/avg-both-0") == networks.ranking("rankings/avg-both-0")


def test_a_seed_that_lacks_a_row_waits(monkeypatch):
    whole = {(one.name, 0): {} for one in table.METHODS}
    begun = {("single", 1): {}, ("CircAvg", 1): {}}
    monkeypatch.setattr(table, "results_of", lambda folder: whole | begun)
    assert table.results_in("clip") == whole
    monkeypatch.setattr(table, "results_of", lambda folder: begun)
    assert table.results_in("clip") == begun


def test_rows_of_one_seed_come_from_one_model():
    row = {"networks": {"models/0": {"weights": "a"}}}
    other = {"networks": {"models/1": {"weights": "b"}}}
    table.check_one_model_a_seed({("single", 0): row, ("CircAvg", 0): row, ("single", 1): other})
    with pytest.raises(SystemExit, match="'single, seed 0' and 'CircAvg, seed 0' come from different models/0"):
        table.check_one_model_a_seed({("single", 0): row, ("CircAvg", 0): {"networks": {"models/0": {"weights": "c"}}}})


def test_contrastive_is_clip_s_loss_for_pairs_and_shares_prompts_of_a_class():
    torch.manual_seed(0)
    logits = torch.randn(6, 6)
    expected = (F.cross_entropy(logits, torch.arange(6)) + F.cross_entropy(logits.T, torch.arange(6))) / 2
    torch.testing.assert_close(contrastive(logits, torch.eye(6).bool()), expected)
    logits, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 3, 3, 3])  # class 2 has no image
    to_images = torch.stack([-logits.log_softmax(dim=0)[labels == c, c].mean() for c in (0, 1, 3)]).mean()
    expected = (F.cross_entropy(logits, labels) + to_images) / 2
    torch.testing.assert_close(contrastive(logits, labels[:, None] == torch.arange(4)), expected)


def test_training_goes_on_with_the_batches_that_were_not_seen(tmp_path):
    rows = open_data(folder(tmp_path / "rows", ["a", "b"], 10))
    found = batches_for(IMAGE, rows, batch_size=8, shuffle=True, augment="flip", workers=0)
    whole = list(islice(_endless(found, 0), 8))
    later = list(islice(_endless(found, 5), 3))
    for (epoch, places, batch), (other_epoch, other_places, other) in zip(whole[5:], later, strict=True):
        assert epoch == other_epoch
        assert np.array_equal(places, other_places)
        assert torch.equal(batch.inputs, other.inputs)


def test_a_claim_holds_if_every_seed_says_so():
    higher, lower = (claims.Claim("", "a", "b", metric, "") for metric in ("auroc", "nll"))
    near = claims.Claim("", "a", "b", "nll", "", margin=0.01)
    assert claims.verdict(higher, [1.0, 2.0, 0.5]) == claims.verdict(lower, [-1.0, -2.0, -0.5]) == "holds"
    assert claims.verdict(higher, [-1.0, -2.0, -0.5]) == claims.verdict(lower, [1.0, 1.0, 1.0]) == "does not hold here"
    assert claims.verdict(higher, [1.0, -2.0, 0.5]) == "undecided"
    assert claims.verdict(near, [0.01, -0.01, 0.0]) == "holds"
    assert claims.verdict(near, [0.1, -0.01, 0.0]) == "undecided"
    assert claims.verdict(higher, [1.0, 2.0]) == "2 of 2 so far"


def test_claims_stand_beside_the_paper_s_for_every_column(made):
    _, results = made
    found = claims.claims_table(results, {"first": "First: as it is", "second": "Second: other"})
    assert [row.name for row in found.rows] == [claim.says for claim in claims.CLAIMS]
    for row, claim in zip(found.rows, claims.CLAIMS, strict=True):
        if claim.other == table.ERRORS:
            continue
        values = [claims.value(results[name, 0], "first", claim.metric) for name in (claim.method, claim.other)]
        assert row.cells["first"].startswith(f"{values[0] - values[1]:+.{3 if claim.metric == 'nll' else 2}f}, ")
