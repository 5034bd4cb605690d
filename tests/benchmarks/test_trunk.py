"""The curve of the shared trunk from invented results: what is there, what is recommended, what is not."""

import json

import pytest

import trunk
from evidence import judging, summary


def result(method, seed, auroc, accuracy, column):
    found = {"answers": {"accuracy": accuracy}, "ood": {"msp": {"average": {"auroc": auroc}}}}
    return {"method": method, "seed": seed, "columns": {column: found}}


@pytest.fixture
def invented(tmp_path, monkeypatch):
    """Results files by setting: AUROC of each method, the same but for half a point between seeds."""
    for module in (trunk, summary):
        monkeypatch.setattr(module, "RESULTS", tmp_path)

    def write(setting, aurocs, seeds=(0, 1, 2)):
        column = {"text": "validation", "vision": "test"}[setting]
        for method, auroc in aurocs.items():
            folder = tmp_path / setting / ("claims" if "trunk" in method else "")
            folder.mkdir(parents=True, exist_ok=True)
            for seed in (0,) if "no training" in method else seeds:
                found = result(method, seed, auroc + 0.005 * seed, 0.9, column)
                (folder / f"{judging.file_name(method, seed)}.json").write_text(json.dumps(found))

    def time(ratios):
        rows = [
            {"mode": "eager", "dtype": dtype, "batch": batch, "trunk": blocks, "last_block": "read"}
            | {"hydra_over": {"single": ratio}, "arithmetic_ratio": ratio}
            for blocks, ratio in ratios.items()
            for dtype, batch in trunk.TIMED
        ]
        (tmp_path / "latency.json").write_text(json.dumps({"rows": rows}))

    return write, time


PLAIN, SHARED = "hydra (circuit)", "hydra (circuit), trunk of {}"
TEXT = {PLAIN: 0.80, SHARED.format(3): 0.81, SHARED.format(4): 0.797}
VISION = {PLAIN: 0.90, SHARED.format(6): 0.899, SHARED.format(8): 0.896}


def test_the_file_has_the_layout_that_was_asked_for(invented):
    write, time = invented
    write("text", {**TEXT, "hydra (circuit), trunk of 1, no training": 0.7, "hydra (circuit), grouped": 0.1})
    write("vision", VISION)
    time({0: 2.44, 6: 1.55, 8: 1.35})
    found = trunk.gathered()
    assert found["recommended"] == "2/3"
    assert set(found["tasks"]) == {"cifar100", "sst2"}
    assert list(found["tasks"]["sst2"]) == ["0", "1/2", "2/3"]
    assert found["tasks"]["sst2"]["1/2"]["auroc"] == {
        "mean": pytest.approx(81.5),
        "std": pytest.approx(0.5),
        "seeds": 3,
    }
    assert found["tasks"]["cifar100"]["0"]["accuracy"]["mean"] == pytest.approx(90)
    assert list(found["without_training"]["sst2"]) == ["1/6"]
    shown = [line.split("|") for line in trunk.table(found["tasks"], found["speed"], "").splitlines() if "|" in line]
    assert [cells[1].strip() for cells in shown[2:]] == ["0", "1/2", "2/3"]


@pytest.mark.parametrize(
    ("change", "ratios", "expected"),
    [
        ({SHARED.format(8): 0.8949}, {6: 1.6, 8: 1.3}, "1/2"),  # two thirds lose more than half a point on images
        ({}, {6: 1.55, 8: 1.61}, "1/2"),  # two thirds are too slow
        ({}, {6: 1.61, 8: 1.61}, None),
        ({}, {}, None),  # nothing was timed
        ({SHARED.format(8): 0.99}, {8: 1.3}, "2/3"),  # better is no loss
    ],
)
def test_a_share_is_recommended_where_it_loses_little_and_is_fast(change, ratios, expected, invented):
    write, time = invented
    write("text", TEXT)
    write("vision", VISION | change)
    time(ratios)
    found = trunk.gathered()
    assert found["recommended"] == expected
    assert found["loses_at_most_half_a_point"] is (expected is not None)


@pytest.mark.parametrize(
    ("change", "ratios", "expected"),
    [
        ({SHARED.format(6): 0.893, SHARED.format(8): 0.892}, {6: 1.5, 8: 1.3}, "1/2"),
        ({SHARED.format(6): 0.892, SHARED.format(8): 0.893}, {6: 1.5, 8: 1.3}, "2/3"),
        ({SHARED.format(6): 0.894, SHARED.format(8): 0.893}, {6: 1.7, 8: 1.3}, "2/3"),  # the other one is too slow
    ],
)
def test_where_every_fast_share_loses_too_much_the_least_loss_is_recommended_and_said(
    change, ratios, expected, invented
):
    write, time = invented
    write("text", TEXT)
    write("vision", VISION | change)
    time(ratios)
    found = trunk.gathered()
    assert (found["recommended"], found["loses_at_most_half_a_point"]) == (expected, False)
    assert found["auroc_lost"][expected] == {
        "cifar100": pytest.approx(0.7),
        "sst2": pytest.approx(0.3 if expected == "2/3" else -1),
    }


def test_a_share_with_fewer_seeds_is_shown_but_not_recommended(invented):
    write, time = invented
    write("text", {name: auroc for name, auroc in TEXT.items() if name != SHARED.format(4)})
    write("text", {SHARED.format(4): 0.80}, seeds=(0, 1))
    time({6: 1.5, 8: 1.3})
    assert trunk.gathered()["recommended"] is None  # there is one task only
    write("vision", VISION)
    found = trunk.gathered()
    assert found["tasks"]["sst2"]["2/3"]["auroc"]["seeds"] == 2
    assert found["recommended"] == "1/2"


def test_one_slow_point_is_enough_against_a_share(invented, tmp_path):
    write, time = invented
    write("text", TEXT)
    time({6: 1.5})
    rows = json.loads((tmp_path / "latency.json").read_text())["rows"]
    slower = [{**rows[0], "hydra_over": {"single": 1.61}}, *rows[1:]]
    assert trunk.speeds_of(slower)["1/2"]["largest_ratio"] == 1.61
    assert trunk.speeds_of(rows[1:]) == {}
    others = [{**row, "mode": "compiled"} for row in rows] + [{**row, "last_block": "full"} for row in rows]
    assert trunk.speeds_of(others) == {}
