"""A model that was written is the model that is read, and what could not be read is not written."""

import pytest
import torch

from families import BY_NAME, CASES, model_of
from hydra_ensembles import HeadSet, load_model, prune, save_model
from hydra_ensembles.backbones.saving import SavingError
from hydra_ensembles.data import preprocess_of
from hydra_ensembles.errors import HydraError

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
