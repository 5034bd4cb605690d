"""Inputs that are shown are the ones the numbers name."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from constructed_runs import constructed_run
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
