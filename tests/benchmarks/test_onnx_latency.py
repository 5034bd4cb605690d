"""ONNX Runtime beside torch at toy size: the same answers, times of everybody, a table of them."""

import torch

import onnx_latency
from families import model_of


def test_both_runtimes_answer_alike_and_are_timed_in_turn(tmp_path):
    model = model_of("timm").eval()
    variants = {"trunk8": (2, "read")}
    hydras, files = onnx_latency.exported(model, torch.randn(1, 3, 16, 16), 2, variants, tmp_path)
    assert hydras["trunk8"].trunk == {"vision": 2}
    row = onnx_latency.measure(model, hydras, files, torch.randn(4, 3, 16, 16), rounds=3)
    assert row["batch"] == 4
    assert set(row["largest_gap"]) == {"single", "trunk8"}
    assert max(row["largest_gap"].values()) < 1e-4
    assert all(low <= row[f"{who}_ms"] <= high for who, (low, high) in row["quartiles_ms"].items())
    assert len(row["quartiles_ms"]) == 4
    assert len(onnx_latency.table([row]).splitlines()) == 2 + 2
