"""Inputs that are shown are the ones the numbers name."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from constructed_runs import constructed_run
from hydra_ensembles.data import open_data
from hydra_ensembles.report.examples import examples_of, thumbnail
from hydra_ensembles.report.runs import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(constructed_run(tmp_path_factory.mktemp("made") / "run", rows=60, resamples=10))


def test_the_most_confidently_wrong_come_surest_first_with_answer_and_label(run):
    rows = run.evaluations["hydra"].judged["id_test"]
    wrong, unsure, *unknown = examples_of(run)
    surest = max((place for place in range(60) if not rows.right[place]), key=lambda place: rows.confidence[place])
    assert wrong.examples[0].text == f"id_test says sentence {surest}"
    said = f"says {run.classes[rows.answer[surest]]}, {100 * rows.confidence[surest]:.0f} % sure"
    assert wrong.examples[0].said == f"{said}; it is {run.classes[rows.label[surest]]}"
    strangest = int(rows.scores["msp"].argmax())
    assert unsure.examples[0].text == f"id_test says sentence {strangest}"
    assert len(unknown) == 2


def test_unknown_inputs_shown_are_those_that_look_most_known(run):
    for found in examples_of(run)[2:]:
        name = found.title.split()[3]
        most_known = int(run.evaluations["hydra"].judged[name].scores["msp"].argmin())
        assert found.examples[0].text == f"{name} says sentence {most_known}"


def test_pictures_are_small_and_described(tmp_path):
    run = read_run(constructed_run(tmp_path / "run", rows=30, resamples=10, kind="image", unknown=1))
    for found in examples_of(run):
        for one in found.examples:
            assert one.picture.startswith("data:image/webp;base64,")
            assert one.alt
            assert "sure" in one.alt


@pytest.mark.parametrize("shape", [(32, 32, 3), (300, 500, 3), (900, 20, 3)])
def test_thumbnails_are_at_most_96_pixels_and_never_enlarged(shape):
    pixels = np.zeros(shape, dtype=np.uint8)
    uri = thumbnail(pixels)
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert max(image.size) == min(96, max(shape))
    assert len(uri) < 5000


def test_encoded_pictures_are_read_too():
    buffer = io.BytesIO()
    Image.new("L", (40, 50)).save(buffer, format="PNG")
    assert thumbnail(buffer.getvalue()).startswith("data:image/webp")


def test_grey_pixels_and_deep_pictures_are_shown_as_the_model_sees_them():
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    assert thumbnail(ramp[..., None]) == thumbnail(ramp)
    buffer = io.BytesIO()
    Image.fromarray(ramp.astype(np.uint16) * 257).save(buffer, format="PNG")
    assert thumbnail(buffer.getvalue()) == thumbnail(ramp)


def test_inputs_are_known_again_whatever_order_the_model_has_its_classes_in(tmp_path):
    run = read_run(constructed_run(tmp_path / "run", rows=20, resamples=10))
    path, order = Path(run.recipe["data"]["id_test"]), sorted(run.classes)
    lines = [json.loads(line) | {"label": order[row % 4]} for row, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation = run.evaluations["hydra"]
    evaluation.digests["id_test"] = open_data(path, classes=order).digest
    assert order != list(run.classes)
    assert examples_of(replace(run, results={**run.results, "classes": order}))
