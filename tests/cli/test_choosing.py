"""`hydra-ens rank`, `prune` and `finetune`: from a model on disk to tuned members on disk."""

import json

import numpy as np
import pytest
import torch

from hydra_ensembles import HeadRanking, Hydra, Member, fuse
from kitchen import write_folders
from members.training import same

MODEL = "timm:test_vit"


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("known", "unknown"):
        pixels = rng.integers(0, 256, (12, 40, 40, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=pixels, labels=np.arange(12) % 4)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["rank", MODEL, "--data", "known.npz", "--remove", "1", "--out", "acc.json"],
        ["prune", MODEL, "acc.json", "--keep", "1", "--out", "members"],
        ["evaluate", MODEL, "--id-test", "known.npz"],
        ["predict", MODEL, "known.npz"],
        ["run", "recipe.yaml"],
        ["bench", MODEL, "--keep", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_device_that_is_not_there_is_refused_in_one_line(arguments, run):
    done = run(*arguments, "--device", "tpu")
    assert done.returncode == 1
    assert done.errors == ["OptionError: --device tpu is not there; it is cpu, or cuda where torch sees a GPU"]


def test_a_model_becomes_members_on_disk(pictures, run):
    known, unknown = str(pictures / "known.npz"), str(pictures / "unknown.npz[:8]")
    base = pictures / "base"
    done = run("finetune", MODEL, "--classes", "4", "--train", known, "--val", known, "--recipe", "cifar100-head",
               "--steps", "2", "--batch-size", "6", "--out", str(base))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 steps, validation accuracy" in done.stdout

    files = []
    for objective in ("acc", "ood", "avg"):
        out = pictures / f"{objective}.json"
        done = run("rank", str(base), "--data", known, "--ood", unknown, "--objective", objective, "--remove", "3",
                   "--layers", "1:", "--out", str(out))  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "3 heads, S " in done.stdout
        assert "random weights" not in done.stderr
        assert (pictures / f"{objective}.journal.jsonl").exists()
        assert len(HeadRanking.load(out)) == 3
        files.append(str(out))

    behind = sum(head.layer >= 1 for head in HeadRanking.load(files[0]).start)
    members = pictures / "members"
    done = run("prune", str(base), *files, "--keep", str(behind - 3), "--trunk", "1", "--out", str(members))
    assert done.returncode == 0, done.stderr
    assert "wrote member-0, member-1, member-2 and selection.json" in done.stdout
    found = json.loads((members / "selection.json").read_text())
    assert found["overlap"][0][0] == 1.0

    tuned = pictures / "tuned"
    paths = [str(members / f"member-{m}") for m in range(3)]
    done = run("finetune", *paths, "--train", known, "--recipe", "cifar100", "--steps", "1", "--batch-size", "6",
               "--freeze-blocks", "1", "--out", str(tuned))  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = [Member.load(tuned / f"member-{m}") for m in range(3)]
    assert [m.heads for m in loaded] == [Member.load(path).heads for path in paths]
    assert fuse(loaded).trunk["vision"] >= 1

    done = run("fuse", *(str(tuned / f"member-{m}") for m in range(3)), "--out", str(pictures / "hydra"))
    assert done.returncode == 0, done.stderr
    hydra = Hydra.load(pictures / "hydra")
    assert hydra.predict(torch.randn(2, 3, 160, 160)).probs.shape == (2, 4)
    assert hydra.preprocess


@pytest.mark.parametrize("method", ["taylor", "taylor-global"])
def test_taylor_from_the_command(method, pictures, run):
    out = pictures / "taylor.json"
    done = run("rank", MODEL, "--data", str(pictures / "known.npz"), "--method", method, "--remove", "1",
               "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{MODEL} has random weights" in done.stderr
    ranking = HeadRanking.load(out)
    assert (ranking.budget is None) == (method == "taylor-global")


def test_a_new_classifier_is_drawn_by_the_seed(pictures, run):
    """Else a killed training could not go on, as it would start from another model."""
    known = str(pictures / "known.npz")
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        done = run("finetune", MODEL, "--classes", "4", "--train", known, "--recipe", "cifar100-head", "--steps", "1",
                   "--batch-size", "12", "--seed", seed, "--out", str(pictures / name))  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, again, other = (Member.load(pictures / name) for name in ("one", "again", "other"))
    assert same(one, again)
    assert not same(one, other)


def test_a_validation_set_is_numbered_as_the_training_set(pictures, run):
    for name, classes in {"train": ["ant", "bee", "cat", "dog"], "val": ["ant", "dog"], "strange": ["emu"]}.items():
        write_folders(pictures, name, classes, 7)
    command = ["finetune", MODEL, "--classes", "4", "--train", str(pictures / "train"), "--recipe", "cifar100-head",
               "--steps", "1", "--batch-size", "12", "--out", str(pictures / "out")]  # fmt: skip
    done = run(*command, "--val", str(pictures / "strange"))
    assert (done.returncode, "emu" in done.stderr) == (1, True)
    done = run(*command, "--val", str(pictures / "val"))
    assert done.returncode == 0, done.stderr
    assert Member.load(pictures / "out").origin.classes == ["ant", "bee", "cat", "dog"]


def test_joint_members_from_the_command(pictures, run):
    done = run("prune", MODEL, "--how", "joint", "--members", "2", "--keep", "7", "--data", str(pictures / "known.npz"),
               "--ood", str(pictures / "unknown.npz"), "--out", str(pictures / "members"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (pictures / "members" / "joint.journal.1.jsonl").exists()
    assert len(Member.load(pictures / "members" / "member-1").heads) == 7


def test_members_of_an_earlier_choice_are_not_left_beside_new_ones(pictures, run):
    ranking = pictures / "acc.json"
    done = run("rank", MODEL, "--data", str(pictures / "known.npz"), "--objective", "acc", "--remove", "4", "--out",
               str(ranking))  # fmt: skip
    assert done.returncode == 0, done.stderr
    place = ["--out", str(pictures / "m"), "--pool", "4"]
    choose = ["prune", MODEL, str(ranking), "--how", "sample", "--keep", "10", *place, "--members"]
    assert run(*choose, "3").returncode == 0
    done = run(*choose, "2")
    assert done.returncode == 1
    assert "holds member-2 of an earlier choice" in done.stderr


def test_where_nothing_can_be_written_nothing_is_trained_or_searched(pictures, run, monkeypatch):
    (pictures / "stranger").mkdir()
    (pictures / "stranger" / "notes.txt").write_text("mine")
    monkeypatch.setattr("hydra_ensembles.members.finetune_members", lambda *a, **b: pytest.fail("it was trained"))
    monkeypatch.setattr("hydra_ensembles.scoring.circuit_ranking", lambda *a, **b: pytest.fail("it was searched"))
    known = str(pictures / "known.npz")
    done = run("finetune", MODEL, "--train", known, "--recipe", "cifar100-head", "--out", str(pictures / "stranger"))
    assert (done.returncode, "holds 'notes.txt'" in done.stderr) == (1, True)
    done = run("rank", MODEL, "--data", known, "--objective", "acc", "--remove", "1", "--out", str(pictures))
    assert (done.returncode, "is a directory; name a file" in done.stderr) == (1, True)


RANK = ["rank", MODEL, "--data", "{known}", "--out", "{out}", "--remove"]
TUNE = ["finetune", MODEL, "--train", "{known}", "--out", "{out}", "--recipe"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*RANK, "2"], "needs OOD data"),
        (["rank", MODEL, "--data", "nowhere.npz", "--remove", "2", "--out", "{out}"], "nowhere.npz"),
        ([*RANK, "2", "--layers", "x"], "expected A:B"),
        ([*RANK, "2", "--layers", "7:"], "--layers 7: names none: the model's layers are 0 to 5"),
        ([*RANK, "2", "--method", "magic"], "known: circuit"),
        ([*RANK, "99", "--objective", "acc"], "between 1 and 11 of 12"),
        (["prune", MODEL, "nothing.json", "--keep", "3", "--members", "1", "--out", "{out}"], "write a ranking with"),
        (["prune", MODEL, "--keep", "3", "--out", "{out}"], "takes 3 rankings, found 0"),
        ([*TUNE, "?"], "sst2"),
        ([*TUNE, "cifar100", "--train-last-blocks", "99"], "train_last_blocks=99, but the model has 6 blocks"),
        ([*TUNE, "sst2", "--epochs", "1", "--steps", "1"], "not both"),
    ],
)
def test_what_is_wrong_ends_in_one_line(arguments, message, pictures, run):
    places = {"known": str(pictures / "known.npz"), "out": str(pictures / "out")}
    done = run(*[argument.format(**places) for argument in arguments])
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.errors) == 1


def test_columns_of_any_name_can_be_named(tmp_path, run):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", pics=rng.integers(0, 256, (8, 40, 40, 3), dtype=np.uint8), who=np.arange(8) % 4)
    own, named = str(tmp_path / "own.npz"), ["--image", "pics", "--label", "who"]
    done = run("finetune", MODEL, "--classes", "4", "--train", own, "--recipe", "cifar100-head", "--steps", "1",
               "--batch-size", "4", "--out", str(tmp_path / "base"), *named)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "has random weights" in done.stderr
    base = str(tmp_path / "base")
    done = run("rank", base, "--data", own, "--objective", "acc", "--remove", "1", "--out", str(tmp_path / "r"), *named)
    assert done.returncode == 0, done.stderr
    done = run("rank", base, "--data", own, "--objective", "acc", "--remove", "1", "--out", str(tmp_path / "r2"))
    assert "labels" in done.stderr
