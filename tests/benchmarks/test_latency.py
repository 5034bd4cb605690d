"""The latency benchmark at toy size: every row of a point, its table and its picture."""

import json

import pytest
import torch

import latency
from families import model_of
from hydra_ensembles.report.drawing import styled

COLUMNS = {
    *("model", "mode", "dtype", "batch", "trunk", "last_block", "single_ms", "members_ms", "deep_ensembles_ms"),
    *("hydra_ms", "bare_ms", "arithmetic_ratio"),
}


@pytest.fixture(scope="module")
def found():
    """Four variants as in the real thing, whose trunks are named for other numbers of blocks."""
    variants = {"full": (0, "full"), "read": (0, "read"), "trunk6": (1, "read"), "trunk8": (2, "read")}
    return latency.measure(model_of("timm"), torch.randn(4, 3, 16, 16), 2, variants, "eager", rounds=3)


def as_real(found):
    """The rows of two dtypes, as the real thing has them."""
    trunks = {0: 0, 1: 6, 2: 8}
    return [
        {"model": "toy", "dtype": dtype, **row, "trunk": trunks[row["trunk"]]}
        for dtype in ("bf16", "fp32")
        for row in found["rows"]
    ]


def test_everybody_runs_in_one_interleaved_run_and_a_trunk_costs_less(found):
    for row in as_real(found):
        assert set(row) >= COLUMNS
        assert all(low <= row[f"{who}_ms"] <= high for who, (low, high) in row["quartiles_ms"].items())
        everybody = {"single", "members", "deep_ensembles", "deep_ensembles_ours", "hydra", "bare"}
        assert everybody == set(row["quartiles_ms"]) == {*row["hydra_over"], "hydra"}
    assert len({row["single_ms"] for row in found["rows"]}) == 1
    ratios = [row["arithmetic_ratio"] for row in found["rows"]]
    assert ratios == sorted(ratios, reverse=True)
    assert found["costs"]["deep_ensembles"]["params"] == 3 * found["costs"]["single"]["params"]


def test_the_table_and_the_picture_are_made_of_rows(found, tmp_path, monkeypatch):
    rows = as_real(found)
    (tmp_path / "latency.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(latency, "RESULTS", tmp_path)
    table = latency.as_markdown().splitlines()
    assert [line.count("|") for line in table if line.startswith("|")] == [11] * (2 + len(rows))
    assert "| bf16 | 4 | trunk of 8 |" in latency.as_markdown()
    with styled():
        picture = latency.draw(rows, found["costs"])
        picture.savefig(tmp_path / "latency.png")
    times, params, mult_adds = picture.axes
    assert len(times.patches) == 12
    assert len(params.patches) == len(mult_adds.patches) == 6
