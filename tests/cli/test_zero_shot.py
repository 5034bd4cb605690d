"""`hydra-ens zero-shot`: CLIP on disk becomes a classifier that every other command takes."""

import json

import numpy as np
import pytest
import torch
import yaml

from families import model_of
from hydra_ensembles import HeadRanking, HeadSet, Hydra, ZeroShotClassifier, load_model
from hydra_ensembles.backbones import origin_of
from kitchen import CLASSES, SETS, pictures, write_folders
from kitchen import RECIPE as TRAINED
from zero_shots import images, write_tokenizer

TEMPLATES = ["photo {}", "{}"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A tiny CLIP of transformers, sets of images, and a file with names."""
    model_of("hf-clip").save_pretrained(tmp_path / "clip")
    write_tokenizer(tmp_path / "clip")
    for seed, (name, rows) in enumerate(SETS.items()):
        np.savez(tmp_path / f"{name}.npz", **pictures(seed, rows))
    (tmp_path / "names.txt").write_text("\n".join(CLASSES) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prompted(run, *more):
    done = run("zero-shot", "hf:clip", "--classes", "names.txt", "--template", "photo {}", "--template", "{}",
               "--out", "model", *more)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_the_classifier_on_disk_is_the_one_made_in_python(place, run):
    done = prompted(run)
    assert "4 classes; asked about the first: photo ant, ant" in done.stdout
    own = ZeroShotClassifier.of_reference("hf:clip", CLASSES, TEMPLATES)
    found = load_model("model")
    with torch.no_grad():
        assert torch.equal(found(images()), own(images()))
    assert origin_of(found).classes == CLASSES


def test_names_are_asked_in_words_and_kept_as_the_data_has_them(place, run):
    write_folders(place, "pets", ["big_cat", "dog"], 0)
    done = run("zero-shot", "hf:clip", "--classes", "pets", "--out", "model")
    assert "a photo of a big cat." in done.stdout
    assert origin_of(load_model("model")).classes == ["big_cat", "dog"]


def test_heads_of_one_tower_are_ranked(place, run):
    prompted(run)
    for towers, expected in (("vision", {"vision"}), ("text", {"text"})):
        done = run("rank", "model", "--data", "val.npz", "--ood", "oodval.npz", "--remove", "4", "--towers", towers,
                   "--out", f"{towers}.json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert {head.tower for head in HeadRanking.load(f"{towers}.json").removed} == expected


RECIPE = {
    "name": "clip",
    "backbone": {"model": "model"},
    "data": {name: split for name, split in TRAINED["data"].items() if name not in ("train", "shifts")},
    "ranking": {"objectives": ["acc", "ood", "avg"]},
    "members": {"number": 3, "keep": 21},
    "decisions": TRAINED["decisions"],
    "evaluation": TRAINED["evaluation"],
}


def recipe(**changes):
    content = {**RECIPE, **{name: {**RECIPE.get(name, {}), **new} for name, new in changes.items()}}
    with open("recipe.yaml", "w") as file:
        yaml.safe_dump(content, file, sort_keys=False)


WAYS = {
    "both": ({}, {"vision", "text"}),
    "vision": ({"ranking": {"towers": "vision"}}, {"vision"}),
    "drawn": (
        {"ranking": {"towers": "vision", "objectives": ["avg"]}, "members": {"number": 3, "keep": 21, "how": "sample"}},
        {"vision"},
    ),
    "taylor": (
        {"ranking": {"towers": "vision", "method": "taylor"}, "members": {"how": "calibration"}},
        {"vision"},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_recipe_runs_to_a_hydra_without_training(place, run, way):
    prompted(run)
    changes, towers = WAYS[way]
    recipe(**changes)
    done = run("run", "recipe.yaml", "--until", "fusion")
    assert done.returncode == 0, done.stderr
    hydra = Hydra.load("runs/clip/hydra")
    every = set(HeadSet.all(load_model("model")))
    gone = [head for heads in hydra.heads for head in every - set(heads)]
    assert len(gone) == 3 * 3
    assert {head.tower for head in gone} <= towers


def test_it_is_evaluated_decided_and_reported_as_any_other(place, run):
    prompted(run)
    recipe()
    done = run("run", "recipe.yaml", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    planned = {one["name"]: one["forwards"] for one in json.loads(done.stdout)}
    # Half of 24 heads look at images: the others cost next to nothing.
    assert planned["ranking-acc"] == pytest.approx(0.45 * 0.5 * (24 + 23 + 22) * 12)
    done = run("run", "recipe.yaml")
    assert done.returncode == 0, done.stderr
    results = json.loads((place / "runs/clip/results.json").read_text())
    assert set(results["models"]) == {"base", "members", "hydra"}
    assert Hydra.load("runs/clip/hydra").fitted is not None
    done = run("report", "runs/clip")
    assert done.returncode == 0, done.stderr


BROKEN = {
    "a training": (
        {"data": {"train": "train.npz"}, "finetuning": {"recipe": "cifar100", "steps": 1}},
        "finetuning: the model compares images with texts and is not trained; leave it out",
    ),
    "too many of one tower": (
        {"ranking": {"towers": "text"}, "members": {"keep": 12}},
        "the tower 'text' has 12 behind the trunk, of which one must stay",
    ),
    "more than members can draw from": (
        {
            "ranking": {"towers": "vision", "objectives": ["avg"]},
            "members": {"number": 3, "keep": 14, "how": "sample"},
        },
        "members.pool 8: a member loses 10 of 12 heads",
    ),
    "joint": (
        {"ranking": {"towers": "text", "objectives": ["avg"]}, "members": {"how": "joint"}},
        "'joint' takes heads from all towers",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_is_said_before_anything_is_done(place, run, what):
    prompted(run)
    changes, told = BROKEN[what]
    recipe(**changes)
    done = run("run", "recipe.yaml")
    assert done.returncode == 1
    assert told in " ".join(done.stderr.split())


def test_a_model_of_one_tower_has_no_other(place, run):
    recipe(backbone={"model": "timm:test_vit", "classes": 4}, ranking={"towers": "text"}, members={"keep": 3})
    done = run("run", "recipe.yaml")
    assert "ranking.towers text: the model has vision" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hf:clip", "--classes", "val.npz"], "names 0 classes; write them into a .txt, one name a line"),
        (["hf:clip", "--classes", "none.txt"], "none.txt: no such file"),
        (["hf:clip", "--classes", "names.txt", "--template", "photo"], "template 'photo' has no {}"),
        (["timm:test_vit", "--classes", "names.txt"], "has no text tower beside an image tower"),
    ],
)
def test_what_is_missing_is_named(place, run, arguments, told):
    done = run("zero-shot", *arguments, "--out", "model")
    assert done.returncode == 1
    assert told in " ".join(done.errors)
    assert not (place / "model").exists()
