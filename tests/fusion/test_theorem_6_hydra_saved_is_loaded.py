"""Theorem 6 for hydras: what is saved is loaded, to the bit, without any model library; batches do not matter."""

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from families import BY_NAME, CASES, _timm, edit_config, head_sets, model_of, perturbed
from hydra_ensembles import HeadSet, Hydra, Member, fuse, prune
from hydra_ensembles.errors import HydraError
from hydra_ensembles.store import StoreError
from hydra_ensembles.uncertainty import ConformalQuantile, Fitted, OODThreshold, Temperature

names = pytest.mark.parametrize("name", [case.name for case in CASES])


def hydra_of(name, keeps=None, mlp="average"):
    keeps = keeps or [HeadSet.sample(model_of(name), 5 + m, m) for m in range(2)]
    members = [prune(model_of(name), keep) for keep in keeps]
    for m, member in enumerate(members):
        perturbed(member.model, m)
    return fuse(members, mlp=mlp)


def test_the_same_hydra_is_the_same_files(tmp_path):
    """Recipes and caches know a model by its bytes."""
    hydra = hydra_of("timm")
    places = [hydra.save(tmp_path / str(i)) for i in range(8)]
    for name in ("model.safetensors", "config.json"):
        assert len({(place / name).read_bytes() for place in places}) == 1


@names
@settings(max_examples=3)
@given(data=st.data())
def test_a_hydra_returns_to_the_bit(name, data, tmp_path_factory):
    mlp = data.draw(st.sampled_from(["average", "grouped"]))
    hydra = hydra_of(name, [data.draw(head_sets(name)) for _ in range(2)], mlp)
    hydra.classes, hydra.preprocess = list("abcde"), {"size": 16}
    hydra.fitted = Fitted(Temperature(1.25), OODThreshold("energy", -0.5, 0.95), ConformalQuantile("aps", 0.9, 0.8))
    again = Hydra.load(hydra.save(tmp_path_factory.mktemp("store") / "hydra"))
    before, after = hydra.state_dict(), again.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert again.spec() == hydra.spec()
    for field in ("heads", "classes", "preprocess", "fitted", "mlp", "last_block", "num_members", "trunk"):
        assert getattr(again, field) == getattr(hydra, field)
    inputs = BY_NAME[name].inputs(2, 6, 0)
    with torch.no_grad():
        assert torch.equal(again.members(inputs), hydra.members(inputs))
        assert again.predict(inputs).decision == hydra.predict(inputs).decision


@names
def test_batch_order_and_split_do_not_matter(name):
    hydra, inputs = hydra_of(name), BY_NAME[name].inputs(4, 7, 0)
    order = torch.tensor([2, 0, 3, 1])

    def rows(index):
        if isinstance(inputs, Tensor):
            return inputs[index]
        return {field: part if field == "text" else part[index] for field, part in inputs.items()}

    with torch.no_grad():
        whole = hydra(inputs)
        for index in (order, order[:1], order[1:]):
            torch.testing.assert_close(hydra(rows(index)), whole[index], rtol=1e-5, atol=1e-5)


def test_a_hydra_keeps_its_dtype(tmp_path):
    hydra = hydra_of("timm").to(torch.bfloat16)
    again = Hydra.load(hydra.save(tmp_path / "h"))
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}


WITHOUT_LIBRARIES = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"timm", "torchvision", "transformers", "open_clip", "tokenizers", "PIL"}:
            raise ModuleNotFoundError(f"{name} is not in this environment", name=name)
sys.meta_path.insert(0, Blocked())
import json, torch
from hydra_ensembles import Hydra
inputs = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    print(json.dumps(Hydra.load(sys.argv[1]).predict(inputs).probs.tolist()))
"""


@pytest.mark.parametrize("name", ["timm-map", "torchvision", "bert", "hf-vit", "open_clip"])
def test_a_hydra_predicts_where_no_model_library_is(name, tmp_path):
    hydra, inputs = hydra_of(name), BY_NAME[name].inputs(2, 6, 0)
    torch.save(inputs, tmp_path / "inputs.pt")
    command = [sys.executable, "-c", WITHOUT_LIBRARIES, hydra.save(tmp_path / "h"), tmp_path / "inputs.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = hydra.predict(inputs).probs
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected, rtol=1e-5, atol=1e-6)


def _vision(config):
    return config["spec"]["parts"]["towers"]["parts"]["vision"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (edit_config(lambda c: c.pop("spec")), r"does not describe a hydra \(KeyError: 'spec'\)"),
        (edit_config(lambda c: c["spec"].update(part="Dragon")), "a part named 'Dragon' is not known"),
        (
            edit_config(lambda c: _vision(c).pop("trunk")),
            "does not describe a hydra",
        ),
        (
            edit_config(lambda c: c.update(spec=_vision(c))),
            "describes a HydraTower",
        ),
        (
            edit_config(lambda c: c.update(fitted={"temperature": {"value": -1.0}})),
            r"does not describe a hydra \(FittingError: a temperature is a number above 0, found -1.0\)",
        ),
        (edit_config(lambda c: c.pop("fitted")), r"does not describe a hydra \(KeyError: 'fitted'\)"),
        (edit_config(lambda c: c.update(format_version=2)), "has format_version 2, this library reads 1"),
        (edit_config(lambda c: c.update(kind="member")), "is a store of kind 'member', expected 'hydra'"),
        (lambda d: (d / "model.safetensors").write_bytes(b"short"), "is truncated or not a safetensors file"),
    ],
)
def test_a_damaged_hydra_is_refused_in_one_line(harm, message, tmp_path):
    directory = hydra_of("timm").save(tmp_path / "h")
    harm(directory)
    with pytest.raises(HydraError, match=message) as error:
        Hydra.load(directory)
    assert "\n" not in str(error.value)


def test_a_store_with_nothing_fitted_has_no_decisions(tmp_path):
    directory = hydra_of("timm").save(tmp_path / "h")
    assert json.loads((directory / "config.json").read_text())["fitted"] == {}
    assert Hydra.load(directory).fitted == Fitted()


@pytest.mark.parametrize("on", ["ensemble", "members"])
def test_a_temperature_is_in_log_probs_and_predictions_but_not_in_the_members(on):
    hydra, inputs = hydra_of("timm"), BY_NAME["timm"].inputs(3, 0, 0)
    with torch.no_grad():
        plain, members = hydra(inputs), hydra.members(inputs)
        hydra.fitted = Fitted(Temperature(2.0, on))
        assert torch.equal(hydra.members(inputs), members)
        probs = (members / 2).softmax(-1).mean(1) if on == "members" else plain.exp().sqrt()
        torch.testing.assert_close(hydra(inputs).exp(), probs / probs.sum(-1, keepdim=True))
        torch.testing.assert_close(hydra.predict(inputs).probs, hydra(inputs).exp())


def test_a_hydra_is_not_a_member(tmp_path):
    directory = hydra_of("timm").save(tmp_path / "h")
    with pytest.raises(StoreError, match="is a store of kind 'hydra', expected 'member'"):
        Member.load(directory)


def test_names_of_other_classes_than_there_are_do_not_load(tmp_path):
    place = hydra_of("timm").save(tmp_path / "hydra")
    edit_config(lambda config: config.update(classes=["a", "b"]))(place)
    with pytest.raises(StoreError, match="names 2 classes, the hydra has 5"):
        Hydra.load(place)
    hydra = hydra_of("timm")
    hydra.classes = ["a", "b"]
    with pytest.raises(StoreError, match="has 5 classes, but 2 names"):
        hydra.save(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_without_a_classifier_there_is_nothing_to_predict():
    with pytest.raises(HydraError, match="has no classifier, only features"):
        fuse([_timm(num_classes=0)]).predict(BY_NAME["timm"].inputs(2, 0, 0))
