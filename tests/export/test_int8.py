"""An exported hydra with int8 weights: smaller, close, and every product with a weight in whole numbers."""

import json

import onnx
import pytest
import torch

from export.hydras import hydra_of
from hydra_ensembles.cli.main import main
from hydra_ensembles.export import ExportError, Graph, export, to_int8
from hydra_ensembles.export.int8 import member_by_member
from hydra_ensembles.export.writing import other_inputs, runner


@pytest.mark.parametrize(("name", "is_ragged"), [("timm", False), ("bert", True)])
def test_answers_stay_close_and_no_product_has_a_weight_in_floats(name, is_ragged, tmp_path):
    hydra = hydra_of(name, is_ragged)
    whole = export(hydra, tmp_path)
    small = to_int8(tmp_path)
    inputs = other_inputs(Graph(hydra), 16, 0, 7)
    expected, found = runner(whole)(inputs), runner(small)(inputs)
    assert list(found) == list(expected)
    assert 0 < (found["probs"] - expected["probs"]).abs().max() < 0.05
    assert small.stat().st_size < whole.stat().st_size
    assert json.loads((tmp_path / "model.json").read_text())["int8"] == small.name
    model = onnx.load(small)
    floats = {one.name for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT}
    assert not any(n.op_type in ("MatMul", "Gemm") and floats & set(n.input) for n in model.graph.node)
    kinds = [n.op_type for n in model.graph.node]
    # Equal members: three products each of queries, keys and values together, and W_O, in three blocks; averaged MLPs.
    assert name != "timm" or kinds.count("MatMulInteger") >= 3 * (2 * 3 + 2) + 3


def test_members_that_share_their_classifier_get_int8_weights_too(tmp_path):
    """Pruned and not trained: the classifier is one matrix, which the graph multiplies the other way round."""
    hydra = hydra_of("timm", is_ragged=False, trained=False)
    export(hydra, tmp_path)
    inputs = other_inputs(Graph(hydra), 16, 0, 7)
    expected, found = (runner(path)(inputs)["probs"] for path in (tmp_path / "model.onnx", to_int8(tmp_path)))
    assert 0 < (found - expected).abs().max() < 0.05


def test_nothing_is_left_where_it_fails_and_nothing_of_another_hydra(tmp_path, monkeypatch):
    export(hydra_of("timm", is_ragged=False), tmp_path)
    monkeypatch.setattr("hydra_ensembles.export.int8.member_by_member", lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        to_int8(tmp_path)
    assert not (tmp_path / "model.int8.onnx").exists()
    monkeypatch.undo()
    to_int8(tmp_path)
    export(hydra_of("timm", is_ragged=True), tmp_path)
    assert not (tmp_path / "model.int8.onnx").exists()


def test_a_product_a_member_is_the_product_of_all_members():
    x, weight = torch.randn(3, 4, 5), torch.randn(3, 5, 2)
    values = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", (3, 4, 2)))
    }
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    tensors = [onnx.numpy_helper.from_array(weight.numpy(), "w")]
    graph = onnx.helper.make_graph([node], "g", [values["x"]], [values["y"]], tensors)
    model = member_by_member(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]))
    onnx.checker.check_model(model)
    assert {tuple(one.dims) for one in model.graph.initializer} == {(5, 2)}
    (y,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), x @ weight)


def test_wrong_ways_say_what_to_do(tmp_path, capsys):
    with pytest.raises(ExportError, match="export with format 'onnx' first"):
        to_int8(tmp_path)
    hydra_of("timm", is_ragged=False).save(tmp_path / "hydra")
    with pytest.raises(SystemExit) as left:
        main(["export", str(tmp_path / "hydra"), str(tmp_path / "out"), "--format", "torch-export", "--int8"])
    assert left.value.code == 1
    assert "--int8 makes an ONNX file smaller" in capsys.readouterr().err
