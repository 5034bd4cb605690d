"""An exported hydra answers as the hydra does, in its own runtime, whatever the family, batch and length."""

import copy
import json

import pytest
import torch

from export.hydras import hydra_of
from families import BY_NAME, CASES, model_of, perturbed
from hydra_ensembles import HeadSet, ZeroShotClassifier, fuse, prune
from hydra_ensembles.cli.main import main
from hydra_ensembles.export import ExportError, Graph, export, writing
from hydra_ensembles.export.writing import check_file, other_inputs, runner
from hydra_ensembles.uncertainty import ConformalQuantile, Fitted, OODThreshold, Temperature


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_runtime_answers_as_the_hydra(case, tmp_path):
    place = CASES.index(case)
    hydra = hydra_of(case.name, is_ragged=place % 2 == 1, trained=place % 4 > 1)
    path = export(hydra, tmp_path)  # which checks two other sizes itself
    graph = Graph(hydra)
    inputs = other_inputs(graph, 2, 6, min(5, graph.max_tokens or 5))
    found = runner(path)(inputs)
    named = {"vision": inputs["pixel_values"], "text": inputs["input_ids"]} if len(hydra.towers) > 1 else inputs
    expected = hydra.predict(named)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, getattr(expected, name), atol=1e-4, rtol=0, check_dtype=False)


@pytest.mark.parametrize(
    ("name", "trained", "form"),
    [
        ("timm", False, "onnx"),
        ("timm", True, "onnx"),
        ("timm-gated", True, "onnx"),
        ("bert", True, "onnx"),
        ("timm-eva02-tiny", True, "onnx"),
        ("timm", True, "torch-export"),
    ],
)
def test_layers_without_heads_are_exported(name, trained, form, tmp_path):
    """A layer in which one member has no head, and one in which none has any."""
    full = HeadSet.all(model_of(name))
    (tower,), (totals,) = full.towers, full.num_heads
    members = [
        prune(model_of(name), HeadSet.of({tower: [first, [], [0, 1]]}, {tower: totals}))
        for first in ([], [0, 2], [1, 2, 3])
    ]
    for seed, member in enumerate(members if trained else ()):
        perturbed(member.model, seed)
    hydra = fuse(members)
    inputs = other_inputs(Graph(hydra), 3, 0, 5)
    expected = hydra.predict(inputs)
    for field, tensor in runner(export(hydra, tmp_path, form))(inputs).items():
        torch.testing.assert_close(tensor, getattr(expected, field), atol=1e-4, rtol=0, check_dtype=False)


def test_a_zero_shot_hydra_takes_images_alone(tmp_path):
    prompts = torch.tensor([[[5, 6, 49]], [[7, 49, 0]], [[8, 9, 49]]])
    model = ZeroShotClassifier(copy.deepcopy(model_of("open_clip")), list("abc"), prompts)
    hydra = fuse([prune(model, HeadSet.sample(model, keep=16, seed=seed)) for seed in range(2)])
    images = BY_NAME["open_clip"].inputs(3, 9, 0)["vision"]
    found = runner(export(hydra, tmp_path))({"pixel_values": images})
    torch.testing.assert_close(found["probs"], hydra.predict(images).probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("is_ragged", [False, True], ids=["equal", "ragged"])
def test_torch_export_answers_to_the_bit_of_the_plain_path(is_ragged, tmp_path):
    hydra = hydra_of("bert", is_ragged, mlp="grouped")
    path = export(hydra, tmp_path, "torch-export")
    graph = Graph(hydra)
    inputs = other_inputs(graph, 4, 0, 6)
    # With gradients on, a hydra writes over nothing, as in a graph.
    expected = dict(zip(graph.outputs, graph(*inputs.values()), strict=True))
    for name, tensor in runner(path)(inputs).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("form", ["onnx", "torch-export"])
def test_what_was_fitted_travels(form, tmp_path):
    hydra = hydra_of("timm", is_ragged=False)
    hydra.fitted = Fitted(Temperature(1.7), OODThreshold("energy", -2.0, 0.95), ConformalQuantile("aps", 0.8, 0.9))
    hydra.classes = list("abcde")
    hydra.preprocess = {"size": 16}
    path = export(hydra, tmp_path, form)
    images = BY_NAME["timm"].inputs(9, 0, 3)
    found, expected = runner(path)({"pixel_values": images}), hydra.predict(images)
    torch.testing.assert_close(found["probs"], expected.probs, atol=1e-5, rtol=0)
    assert torch.equal(found["prediction_set"], expected.prediction_set)
    said = json.loads((tmp_path / "model.json").read_text())
    assert [said["decisions"][place] for place in found["decision"]] == expected.decision
    assert len(set(expected.decision)) > 1
    assert said["classes"] == hydra.classes
    assert said["fitted"]["temperature"]["value"] == 1.7
    assert said["inputs"] == {"pixel_values": {"dtype": "float32", "shape": ["batch", 3, 16, 16]}}
    assert json.loads((tmp_path / "preprocess.json").read_text()) == {"size": 16}


def test_a_file_that_answers_otherwise_is_refused(tmp_path, monkeypatch):
    hydra, other = hydra_of("timm", is_ragged=False), hydra_of("timm", is_ragged=True)
    path = export(hydra, tmp_path, "torch-export")
    with pytest.raises(ExportError, match="is off by"):
        check_file(path, Graph(other))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(writing, "TOLERANCES", {torch.float32: -1.0})
    with pytest.raises(ExportError, match="its file was not kept"):
        export(other, tmp_path, "torch-export")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_wrong_inputs_say_what_to_do(tmp_path):
    with pytest.raises(ExportError, match="known: onnx, torch-export"):
        export(hydra_of("timm", is_ragged=False), tmp_path, "tflite")
    with pytest.raises(ExportError, match="fuse members into a hydra first"):
        export(model_of("timm"), tmp_path)


def test_the_command_writes_a_checked_file(tmp_path, capsys):
    hydra_of("timm", is_ragged=False).save(tmp_path / "hydra")
    with pytest.raises(SystemExit) as left:
        main(["export", str(tmp_path / "hydra"), str(tmp_path / "out"), "--format", "torch-export"])
    assert left.value.code == 0
    assert "its answers are the hydra's" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.pt2").is_file()
    with pytest.raises(SystemExit) as left:
        main(["export", str(tmp_path / "nothing"), str(tmp_path / "out")])
    assert left.value.code == 1


def test_a_hydra_in_bf16_is_exported_for_torch_alone(tmp_path):
    hydra = fuse([model_of("timm"), perturbed(copy.deepcopy(model_of("timm")), 1)]).bfloat16()
    assert export(hydra, tmp_path, "torch-export").name == "model.pt2"
    with pytest.raises(ExportError, match=r"does not compute all of a hydra in torch\.bfloat16"):
        export(hydra, tmp_path, "onnx")
