"""Broken recipes and broken data: each ends with one clear line and a non-zero exit, without a traceback."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hydra_ensembles.cli.main import main
from hydra_ensembles.pipeline import RecipeError, read_recipe
from kitchen import pictures, write_folders


@pytest.fixture
def broken(kitchen, capsys, monkeypatch):
    """Run the command; what it says, and with which exit code."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(path):
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(["run", str(path), "--out", str(kitchen.place / "out")])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=done.value.code, out=out, err=err)

    return call


RECIPES = {
    "an unknown section": ({"rankings": {}}, "a recipe has no 'rankings' (did you mean 'ranking'?)"),
    "no backbone": ({"backbone": None}, "a recipe must say 'backbone'"),
    "no data": ({"data": None}, "a recipe must say 'data'"),
    "no test set": ({"data__id_test": None}, "'data' must say 'id_test'"),
    "a name that is no file name": ({"name": "a/b"}, "name is 'a/b'"),
    "a name that leads away": ({"name": ".."}, "name is '..'"),
    "a pool that is too small": (
        {"members__how": "sample", "ranking__objectives": ["avg"], "members__pool": 2},
        "members.pool 2: a member loses 3 of 12 heads, so that between 3 and 11",
    ),
    "a pool that is too large": (
        {"members__how": "sample", "ranking__objectives": ["avg"], "members__pool": 12},
        "members.pool 12",
    ),
    "dropout of 2": ({"finetuning__dropout": 2.0}, "dropout lies in [0, 1), found 2.0"),
    "a momentum of 7": ({"finetuning__momentum": 7.0}, "momentum lies in [0, 1)"),
    "a negative rate of the classifier": ({"finetuning__head_learning_rate": -3.0}, "head_learning_rate must be above"),
    "a negative seed": ({"seed": -1}, "seed is -1"),
    "no members": ({"members__number": 0}, "members.number is 0"),
    "an unknown recipe of training": ({"finetuning__recipe": "sst3"}, "allowed: 'imagenet-base'"),
    "an unknown setting of training": ({"finetuning__lerning_rate": 1}, "did you mean 'learning_rate'?"),
    "steps and epochs": ({"finetuning__epochs": 2}, "give either epochs or steps"),
    "a negative learning rate": ({"finetuning__learning_rate": -1.0}, "learning_rate must be above 0"),
    "an unknown objective": ({"ranking__objectives": ["acc", "auroc"]}, "ranking.objectives.1 is 'auroc'; allowed"),
    "too few objectives": ({"ranking__objectives": ["acc"]}, "with 2 members takes 2 objectives, found 1"),
    "an objective twice": ({"ranking__objectives": ["acc", "acc"]}, "an objective stands twice"),
    "a model twice": ({"evaluation__models": ["hydra", "hydra"]}, "a model stands twice in evaluation.models"),
    "detectors of no base": (
        {"evaluation__models": ["hydra"], "evaluation__detectors": True},
        "evaluation.detectors are those of the base model",
    ),
    "calibration rows as a test": ({"data__id_test": "val.npz[12:]"}, "shares 12 of its 12 rows with id_cal"),
    "circuits for calibration": ({"members__how": "calibration"}, "takes Taylor rankings"),
    "objectives for Taylor": ({"ranking__method": "taylor"}, "takes members.how 'calibration' or 'sample'"),
    "no OOD data for avg": ({"data__ood_val": None}, "need data.ood_val"),
    "training without data": ({"data__train": None}, "fine-tuning needs data.train"),
    "one name for two sets": ({"data__far": {"close": "far.npz"}}, "two OOD sets are called 'close'"),
    "a list where a text belongs": ({"data__id_test": ["a", "b"]}, "data.id_test is ['a', 'b']"),
    "a share above 1": ({"decisions__accept": 2}, "decisions.accept is 2"),
    "an unknown score": ({"decisions__score": "odin"}, "decisions.score is 'odin'; allowed: 'msp'"),
    "an unknown model to evaluate": ({"evaluation__models": ["teacher"]}, "evaluation.models.0 is 'teacher'; allowed"),
    "a backbone that is not there": ({"backbone__model": "no/such"}, "no/such, which is not a directory"),
    "a variable that is not set": ({"data__id_test": "${NO_SUCH_PLACE}/x.npz"}, "NO_SUCH_PLACE, which is not set"),
    "a missing file": ({"data__near": {"close": "gone.npz"}}, "data.near.close: gone.npz does not exist"),
    "an unknown format": ({"data__id_test": "model/config.json"}, "data.id_test: model/config.json ends in '.json'"),
    "a range without rows": ({"data__far": {"away": "far.npz[50:]"}}, "data.far.away: no row of far.npz is left"),
    "more blocks than there are": ({"finetuning__train_last_blocks": 8}, "speaks of 8 blocks, the model has 3"),
    "an unknown corruption": ({"data__shifts": ["rain/2"]}, "'rain'"),
    "a severity of 9": ({"data__shifts": ["fog/9"]}, "severity 9 of fog is not known; it is one of 1, 2, 3, 4, 5"),
    "a text corruption of images": ({"data__shifts": ["word_swap/1"]}, "word_swap"),
    "keeping more heads than there are": ({"members__keep": 99}, "99 of 12 heads would stay; one at least must go"),
    "a trunk that is too long": ({"members__trunk": 9}, "members.trunk 9: the model has 3 blocks"),
    "the OOD validation set as a test": (
        {"data__near": {"close": "oodval.npz"}},
        "shares 12 of its 12 rows with ood_val",
    ),
    "another part of it as a test": (
        {"data__near": {"close": "oodval.npz[6:]"}, "data__ood_val": "oodval.npz[:6]"},
        "comes from the same file as ood_val",
    ),
    "validation rows as a test": ({"data__id_test": "val.npz[:12]"}, "shares 12 of its 12 rows with id_val"),
    "one set under two names": ({"data__far": {"away": "near.npz"}}, "hold the same rows"),
    "too few rows for the promise": ({"decisions__coverage": 0.99}, "cannot be promised from 6 rows"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_broken_recipe_ends_with_one_line(kitchen, broken, name):
    changes, told = RECIPES[name]
    check(broken(kitchen.recipe(**changes)), told)


FILES = {
    "nothing": ("", "expected sections"),
    "a list": ("- a\n- b\n", "expected sections"),
    "not YAML": ("name: [a\nseed: 1\n", "line 2: not YAML"),
    "a tab": ("name: a\ndata:\n\tx: 1\n", "line 3: not YAML"),
    "a key that is a list": ("? [a, b]\n: 1\n", "neither is a recipe"),
    "a section inside itself": ("a: &x [*x]\n", "neither is a recipe"),
    "a key twice": ("name: a\nname: b\n", "line 2: 'name' stands here and in line 1"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_recipe_ends_with_one_line(kitchen, broken, name):
    text, told = FILES[name]
    check(broken(kitchen.written(text)), told)


TOGETHER = {
    "circuits for calibration": ({"members__how": "calibration"}, "  how:"),
    "a detector without the base model": (
        {"evaluation__models": ["hydra"], "evaluation__detectors": True},
        "  detectors:",
    ),
    "training without data": ({"data__train": None}, "data:"),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_settings_that_do_not_fit_together_are_found_by_line(kitchen, name):
    changes, start = TOGETHER[name]
    path = kitchen.recipe(**changes)
    with pytest.raises(RecipeError) as told:
        read_recipe(path)
    number = int(str(told.value).split(" line ")[1].split(":")[0])
    assert path.read_text().splitlines()[number - 1].startswith(start)


def test_a_recipe_that_is_not_there_ends_with_one_line(kitchen, broken):
    check(broken(kitchen.place / "gone.yaml"), "gone.yaml cannot be read")


def images(**changes):
    return {**pictures(7, 16), **changes}


def wrong_labels(place):
    np.savez(place / "test.npz", **images(labels=np.arange(16)))


def unlabelled_test(place):
    np.savez(place / "test.npz", images=pictures(7, 16)["images"])


def negative_labels(place):
    np.savez(place / "test.npz", **images(labels=np.arange(16) - 3))


def empty_set(place):
    np.savez(place / "near.npz", images=np.zeros((0, 32, 32, 3), np.uint8), labels=np.zeros(0, np.int64))


def truncated(place):
    whole = (place / "far.npz").read_bytes()
    (place / "far.npz").write_bytes(whole[: len(whole) // 2])


def not_an_archive(place):
    (place / "far.npz").write_text("hello")


def one_class_to_calibrate(place):
    labels = np.where(np.arange(24) < 12, np.arange(24) % 4, 0)  # heads are chosen on the first twelve
    np.savez(place / "val.npz", **{**pictures(7, 24), "labels": labels})


def nan_weights(place):
    path = place / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["head.weight"] = torch.full_like(tensors["head.weight"], float("nan"))
    save_file(tensors, path)


def missing_tensor(place):
    path = place / "model" / "model.safetensors"
    tensors = load_file(path)
    del tensors["norm.weight"]
    save_file(tensors, path)


def no_preprocessing(place):
    path = place / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "preprocess": {"kind": "text", "tokenizer": "{}"}}))


def unknown_architecture(place):
    path = place / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architecture": "no_such_vit"}))


def unreadable_image(place):
    folder = place / "near"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside" / "photo.png").write_bytes(b"no image")


def unnamed_model(place):
    path = place / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "classes": None}))


def fewer_folders(place):
    unnamed_model(place)
    for number, name in enumerate(("train", "val", "cal", "test")):
        write_folders(place, name, ["ant", "bee"], 20 + 10 * number)


def named_training(place):
    write_folders(place, "train", ["ant", "bee", "cat", "dog"], 20)


def strange_folders(place):
    named_training(place)
    for number, name in enumerate(("val", "cal", "test")):
        write_folders(place, name, ["ant", "bee", "cat", "emu" if name == "test" else "dog"], 30 + 10 * number)


NAMED = {"data__train": "train", "data__id_val": "val", "data__id_cal": "cal", "data__id_test": "test"}
DATA = {
    "labels that the model does not have": (wrong_labels, {}, "has label 4, but the model has 4 classes"),
    "a test set without labels": (unlabelled_test, {}, "data.id_test: test.npz has no labels"),
    "negative labels": (negative_labels, {}, "has label -3"),
    "a label column that is not there": (lambda place: None, {"data__label": "target"}, "has no column 'target'"),
    "an empty OOD set": (empty_set, {}, "near.npz has no rows"),
    "fewer class names than the model has": (
        fewer_folders,
        NAMED,
        "data.train: train names 2 classes, but the model",
    ),
    "class names of its own in the test set": (strange_folders, NAMED, "has label 'emu', which is none of the 4"),
    "numbers where training has names": (named_training, {"data__train": "train"}, "has numbers as labels, where"),
    "a truncated file": (truncated, {}, "data.far.away: far.npz"),
    "a file that is something else": (not_an_archive, {}, "data.far.away: far.npz"),
    "an unreadable image": (unreadable_image, {"data__near": {"close": "near"}}, "photo.png"),
    "one class only to calibrate on": (one_class_to_calibrate, {}, "stage 'decisions'"),
    "NaN weights": (nan_weights, {"backbone__finetune": None, "finetuning": None}, "logits that are not finite"),
    "a missing tensor": (missing_tensor, {}, "norm.weight"),
    "a model of texts": (no_preprocessing, {}, "the model takes texts, but train.npz holds images"),
    "an unknown architecture": (unknown_architecture, {}, "no_such_vit"),
}


@pytest.mark.parametrize("name", DATA)
def test_broken_data_end_with_one_line(kitchen, broken, name):
    spoil, changes, told = DATA[name]
    spoil(kitchen.place)
    check(broken(kitchen.recipe(**changes)), told)


def check(done, told):
    assert done.code == 1, (done.out, done.err)
    lines = [line for line in done.err.splitlines() if ": " in line and "started" not in line]
    assert "Traceback" not in done.err
    assert len(lines) == 1, done.err
    assert done.err.splitlines()[-1] == lines[0]
    assert told in lines[0]
    assert Path(lines[0].split(":")[0]).suffix == ""  # the kind of error comes first


def test_there_are_forty_of_them():
    assert len(RECIPES) + len(FILES) + 1 + len(DATA) >= 40
