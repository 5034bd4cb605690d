"""A model that was written is the model that is read, and what could not be read is not written."""

import dataclasses
import json

import pytest
import torch

import zero_shots
from families import BY_NAME, CASES, model_of
from hydra_ensembles import HeadSet, Member, fuse, load_model, prune, save_model
from hydra_ensembles.backbones import origin_of
from hydra_ensembles.backbones.references import num_classes
from hydra_ensembles.backbones.saving import SavingError
from hydra_ensembles.data import preprocess_of
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import FusionError
from hydra_ensembles.heads import name_classes
from hydra_ensembles.store import StoreError

NAMES = [case.name for case in CASES if case.modality != "both" and case.name != "timm-gated"]


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_is_loaded_to_the_bit(name, tmp_path):
    model, inputs = model_of(name), BY_NAME[name].inputs(2, 6, 0)
    names = ["ant", "bee", "cat", "dog", "emu"]
    again = load_model(str(save_model(model, tmp_path / "model", names)))
    assert again.origin.classes == names
    with torch.no_grad():
        for mine, theirs in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs)
        ours = again(inputs) if isinstance(inputs, torch.Tensor) else again(**inputs)
        expected = model(inputs) if isinstance(inputs, torch.Tensor) else model(**inputs)
    assert torch.equal(getattr(ours, "logits", ours), getattr(expected, "logits", expected))


def test_preprocessing_can_be_said_and_a_directory_written_again(tmp_path):
    preprocess = {"kind": "image", "size": 16, "interpolation": "bilinear", "mean": [0.1] * 3, "std": [0.2] * 3}
    for _ in range(2):
        save_model(model_of("timm"), tmp_path / "model", preprocess=preprocess)
    assert preprocess_of(load_model(str(tmp_path / "model"))) == preprocess


@pytest.mark.parametrize("name", NAMES)
def test_names_do_not_outlive_their_classifier(name, tmp_path):
    model = load_model(str(save_model(model_of(name), tmp_path / "model", list("abcde"))))
    replace_classifier(model, 3)
    assert num_classes(model) == 3
    member = prune(model, HeadSet.all(model))
    assert member.origin.classes is None
    assert Member.load(member.save(tmp_path / "member")).origin.classes is None
    assert fuse([model, model]).classes is None
    assert load_model(str(save_model(model, tmp_path / "again", list("xyz")))).origin.classes == list("xyz")
    name_classes(model, list("uvw"))
    assert origin_of(model).classes == list("uvw")
    member.origin = dataclasses.replace(member.origin, classes=list("abcde"))
    with pytest.raises(StoreError, match="has 3 classes, but its origin names 5"):
        member.save(tmp_path / "other")
    with pytest.raises(FusionError, match="have 3 classes, but 5 names"):
        fuse([member, member])


def replace_classifier(model, count):
    """As one does by hand, without telling the model."""
    if hasattr(model, "heads"):
        model.heads.head = torch.nn.Linear(model.heads.head.in_features, count)
    elif hasattr(getattr(model, "classifier", None), "out_proj"):
        model.classifier.out_proj = torch.nn.Linear(32, count)
    else:
        setattr(model, "head" if hasattr(model, "head") else "classifier", torch.nn.Linear(32, count))


@pytest.mark.parametrize("name", zero_shots.NAMES)
def test_a_zero_shot_classifier_is_saved_with_its_own_classes(name, tmp_path):
    model = zero_shots.classifier_of(name).eval().bfloat16()
    assert (num_classes(model), num_classes(model.model)) == (4, None)
    again = load_model(str(save_model(model, tmp_path / "model")))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert origin_of(again).classes == zero_shots.CLASSES
    images = zero_shots.images()
    with torch.no_grad():
        assert torch.equal(again(images), model.float()(images))


def test_what_could_not_be_read_is_not_written(tmp_path):
    model = model_of("timm")
    pruned = prune(model, HeadSet.sample(model, keep=8, seed=0)).model
    with pytest.raises(HydraError, match="would not build this model again"):
        save_model(pruned, tmp_path / "model")
    with pytest.raises(SavingError, match="has 5 classes, 2 names were given"):
        save_model(model, tmp_path / "model", ["ant", "bee"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    with pytest.raises(HydraError, match=r"holds 'thesis\.txt'"):
        save_model(model, tmp_path / "full")
    prune(model, HeadSet.sample(model, keep=8, seed=0)).save(tmp_path / "member")
    model_of("bert").save_pretrained(tmp_path / "theirs")
    for taken in ("member", "theirs"):
        with pytest.raises(HydraError, match="choose another directory"):
            save_model(model, tmp_path / taken)
    assert not (tmp_path / "model").exists()


def test_a_store_is_replaced_by_one_of_its_kind_alone(tmp_path):
    model = model_of("timm")
    member = prune(model, HeadSet.sample(model, keep=8, seed=0))
    for _ in range(2):
        member.save(tmp_path / "member")
    with pytest.raises(HydraError, match="is a store of kind 'member', not 'hydra'; choose another directory"):
        fuse([member, member]).save(tmp_path / "member")
    assert Member.load(tmp_path / "member").heads == member.heads
