"""The int8 benchmark at toy size: figures of both, sizes, times, a table."""

from types import SimpleNamespace

import torch

import int8
from families import BY_NAME, CLASSES, model_of
from hydra_ensembles import fuse, prune
from hydra_ensembles.data.batches import TensorBatches
from hydra_ensembles.evaluation.latency import branch_heads, moved


def test_both_answer_the_same_sets_and_run_in_turn(tmp_path):
    model = model_of("bert")
    members = [prune(model, branch_heads(model, 2, 1)) for _ in range(3)]
    for seed, member in enumerate(members):
        moved(member.model, seed, 1)

    def batches(seed, labels):
        inputs = BY_NAME["bert"].inputs(24, 7, seed)
        return TensorBatches(inputs, inputs["input_ids"][:, 1] % CLASSES if labels else None, batch_size=8)

    sets = {"known": batches(0, True), "near": batches(1, False), "far": batches(2, False)}
    setting = SimpleNamespace(
        tests=lambda model: sets,
        known_tests={"first": ("known",)},
        groups={"near": ("near",), "far": ("far",)},
        tokens=7,
    )
    found = int8.compared(fuse(members), model, setting, tmp_path, rounds=2)
    for kind in ("fp32", "int8"):
        assert set(found[kind]) == {"accuracy", "ece", "auroc"}
    assert abs(found["int8"]["auroc"] - found["fp32"]["auroc"]) < 0.1
    assert 0 <= found["labels_changed"] < found["rows"] == 24
    assert found["size_mb"]["onnx int8"] < found["size_mb"]["onnx fp32"]
    assert 0.8 < found["int8_share"] < 1
    assert [one["batch"] for one in found["latency"]] == [4, 16]
    assert all(set(one["ms"]) == set(int8.KINDS) for one in found["latency"])
    assert len(int8.table({"toy": found}).splitlines()) == 4


def test_images_and_texts_get_the_names_of_the_graph():
    images = torch.randn(2, 3, 4, 4)
    assert set(int8.fed(images, ["pixel_values"])) == {"pixel_values"}
    given = int8.fed({"input_ids": torch.tensor([[5, 6]])}, ["input_ids", "attention_mask", "token_type_ids"])
    assert {name: array.tolist() for name, array in given.items()} == {
        "input_ids": [[5, 6]],
        "attention_mask": [[1, 1]],
        "token_type_ids": [[0, 0]],
    }
