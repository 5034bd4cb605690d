"""Theorem 6, store: what is saved is loaded, to the bit; what is damaged is refused in one line."""

import copy
import dataclasses
import json
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from families import BY_NAME, CASES, edit_config, head_sets, model_of, own_output
from hydra_ensembles import HeadSet, Member, load_model, prune, save_model
from hydra_ensembles.backbones import UnknownReference
from hydra_ensembles.errors import HydraError
from hydra_ensembles.store import StoreError

# A model whose attention class is not the library's cannot be described by the library's names.
STORABLE = [case.name for case in CASES if case.name != "timm-gated"]
names = pytest.mark.parametrize("name", STORABLE)


@names
@given(data=st.data())
def test_a_member_returns_to_the_bit(name, data, tmp_path_factory):
    member = prune(model_of(name), data.draw(head_sets(name)))
    directory = member.save(tmp_path_factory.mktemp("store") / "member")
    again = Member.load(directory)
    assert again.heads == member.heads
    assert again.origin == member.origin
    before, after = member.model.state_dict(), again.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    inputs = BY_NAME[name].inputs(2, 6, 0)
    torch.testing.assert_close(own_output(again.model, inputs), own_output(member.model, inputs), rtol=0, atol=0)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]


def test_loading_draws_no_weights_that_it_throws_away(tmp_path):
    member = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2))
    member.save(tmp_path / "m")
    before = torch.get_rng_state()
    Member.load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_member_keeps_its_dtype(dtype, tmp_path):
    member = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2)).to(dtype)
    again = Member.load(member.save(tmp_path / "m"))
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_a_member_with_all_its_heads_is_a_whole_model(tmp_path):
    """As the command leaves a whole model that it fine-tuned."""
    model = model_of("timm")
    prune(model, HeadSet.all(model)).save(tmp_path / "whole")
    x = BY_NAME["timm"].inputs(2, 0, 0)
    assert torch.equal(load_model(str(tmp_path / "whole")).eval()(x), model(x))
    prune(model, HeadSet.first(model, 2)).save(tmp_path / "pruned")
    with pytest.raises(UnknownReference, match=r"is a member, no whole model; load it with Member\.load"):
        load_model(str(tmp_path / "pruned"))


def test_tables_that_would_not_come_back_are_not_left_behind(tmp_path):
    """EVA's turns are computed, not stored: after a cast down and up they are not what timm computes."""
    model = copy.deepcopy(model_of("timm-eva02-tiny"))
    member = prune(model, HeadSet.first(model, 2))
    x, narrow = BY_NAME["timm-eva02-tiny"].inputs(2, 0, 0), copy.deepcopy(member).bfloat16()
    for whole in (member, narrow):
        chance = torch.get_rng_state()
        whole.save(tmp_path / "m")
        assert torch.equal(torch.get_rng_state(), chance)  # nor does it draw weights at the user's cost
        again = Member.load(whole.save(tmp_path / "m"))
        assert torch.equal(again(x), whole(x))
    with pytest.raises(StoreError, match="is computed, not stored, and timm would compute other numbers"):
        narrow.float().save(tmp_path / "rounded")
    with pytest.raises(HydraError, match="is computed, not stored"):
        save_model(model.bfloat16().float(), tmp_path / "rounded")
    assert not (tmp_path / "rounded").exists()


def test_saving_again_replaces_and_a_strange_directory_is_left_alone(tmp_path):
    member = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2))
    member.save(tmp_path / "m")
    prune(member, HeadSet.first(model_of("timm"), 1)).save(tmp_path / "m")
    assert len(Member.load(tmp_path / "m").heads) == 3
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        member.save(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "no draft is left behind"


def test_a_member_that_could_not_be_rebuilt_is_not_saved(tmp_path):
    member = prune(model_of("timm-gated"), HeadSet.first(model_of("timm-gated"), 2))
    with pytest.raises(StoreError, match=r"could not be read back: .*gate"):
        member.save(tmp_path / "m")
    other = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2))
    other.model.norm.eps = 0.5
    with pytest.raises(StoreError, match=r"readout\.norm\.eps is 0\.5"):
        other.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def _truncate(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _cut_header(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:20])


def _edit_tensors(change):
    def edit(directory):
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


DAMAGE = {
    "truncated tensors": (_truncate, r"model\.safetensors \(\d+ bytes\) is truncated"),
    "truncated header": (_cut_header, r"model\.safetensors \(20 bytes\) is truncated"),
    "truncated config": (
        lambda d: (d / "config.json").write_text('{"library": "ti'),
        r"config\.json is not JSON",
    ),
    "config of another type": (lambda d: (d / "config.json").write_text("[1]"), "holds a list"),
    "no config": (
        lambda d: (d / "config.json").unlink(),
        r"has no config\.json; it holds model\.safetensors",
    ),
    "renamed file": (
        lambda d: (d / "model.safetensors").rename(d / "weights.safetensors"),
        r"has no model\.safetensors; it holds config\.json, weights\.safetensors",
    ),
    "renamed tensor": (
        _edit_tensors(lambda t: t.update({"head.wait": t.pop("head.weight")})),
        r"lacks tensor 'head\.weight' \(it has 'head\.wait'",
    ),
    "missing tensor": (_edit_tensors(lambda t: t.pop("norm.bias")), r"lacks tensor 'norm\.bias'"),
    "extra tensor": (_edit_tensors(lambda t: t.update(more=torch.ones(1))), "has tensor 'more'"),
    "wrong shape": (
        _edit_tensors(lambda t: t.update({"head.bias": torch.ones(7)})),
        r"tensor 'head\.bias' has shape \(7,\), config\.json implies \(5,\)",
    ),
    "wrong version": (
        edit_config(lambda c: c.update(format_version=99)),
        "has format_version 99, this library reads 1",
    ),
    "no version": (edit_config(lambda c: c.pop("format_version")), "has no 'format_version'"),
    "wrong kind": (
        edit_config(lambda c: c.update(kind="hydra")),
        "is a store of kind 'hydra', expected 'member'",
    ),
    "no library": (edit_config(lambda c: c.pop("library")), "does not say 'library'"),
    "unknown library": (edit_config(lambda c: c.update(library="keras")), "library 'keras' is not known"),
    "unknown architecture": (
        edit_config(lambda c: c.update(architecture="vit_enormous")),
        "timm has no model named 'vit_enormous'",
    ),
    "architecture on a hub": (
        edit_config(lambda c: c.update(architecture="hf-hub:somebody/something")),
        "timm has no model named 'hf-hub:somebody/something'",
    ),
    "unknown setting": (
        edit_config(lambda c: c["kwargs"].update(wings=2)),
        "'wings' is not a setting of a timm model",
    ),
    "a file to open": (
        edit_config(lambda c: c["kwargs"].update(checkpoint_path="weights.pt")),
        "'checkpoint_path' is not a setting of a timm model",
    ),
    "heads of another model": (
        edit_config(lambda c: c["heads"]["vision"].update(num_heads=[4, 4], kept=[[0], [1]])),
        "has 3 layers, the set is over 2",
    ),
    "impossible head": (
        edit_config(lambda c: c["heads"]["vision"]["kept"].__setitem__(1, [14])),
        "layer 1 of tower 'vision' has 4 heads, but the set keeps head 14",
    ),
    "other heads": (
        edit_config(lambda c: c["heads"]["vision"]["kept"].__setitem__(1, [0, 1, 2])),
        r"tensor 'blocks\.1\.attn\.qkv\.weight' has shape \(48, 32\), config\.json implies \(72, 32\)",
    ),
    "no heads": (edit_config(lambda c: c.pop("heads")), "does not say which 'heads'"),
    "heads of nonsense": (edit_config(lambda c: c.update(heads="all")), "a head set is written"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_refused_in_one_line_that_names_what_is_wrong(damage, tmp_path):
    directory = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2)).save(tmp_path / "m")
    harm, message = DAMAGE[damage]
    harm(directory)
    with pytest.raises(HydraError, match=message) as error:
        Member.load(directory)
    assert "\n" not in str(error.value)


def test_what_is_not_ours_is_never_replaced(tmp_path):
    member = prune(model_of("bert"), HeadSet.first(model_of("bert"), 2))
    model_of("bert").save_pretrained(tmp_path / "bert")
    before = {path.name: path.read_bytes() for path in (tmp_path / "bert").iterdir()}
    with pytest.raises(StoreError, match="not part of a store of ours"):
        member.save(tmp_path / "bert")
    assert {path.name: path.read_bytes() for path in (tmp_path / "bert").iterdir()} == before
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"is a file; a store is a directory|cannot be written"):
            member.save(path)


def test_saving_into_the_directory_one_stands_in_works(tmp_path, monkeypatch):
    member = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2))
    member.save(tmp_path / "m")
    monkeypatch.chdir(tmp_path / "m")
    member.save(".")
    assert Member.load(".").heads == member.heads


def test_two_files_of_different_writes_are_noticed(tmp_path):
    model = model_of("timm")
    one = prune(model, HeadSet.of({"vision": [[0], [0], [0]]}, {"vision": [4, 4, 4]})).save(tmp_path / "one")
    two = prune(model, HeadSet.of({"vision": [[1], [0], [0]]}, {"vision": [4, 4, 4]})).save(tmp_path / "two")
    (one / "config.json").write_bytes((two / "config.json").read_bytes())
    with pytest.raises(StoreError, match="come from different writes"):
        Member.load(one)


def test_a_config_that_is_not_json_is_refused_before_anything_is_written(tmp_path):
    member = prune(model_of("timm"), HeadSet.first(model_of("timm"), 2))
    member.origin = dataclasses.replace(member.origin, preprocess={"mean": float("nan")})
    with pytest.raises(StoreError, match="cannot be written as JSON"):
        member.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_classifier_put_in_by_hand_is_stored(tmp_path):
    for name, attribute in (("timm", "head"), ("bert", "classifier")):
        model = copy.deepcopy(model_of(name))
        setattr(model, attribute, torch.nn.Linear(32, 9))
        again = Member.load(prune(model, HeadSet.first(model, 2)).save(tmp_path / name))
        assert again(BY_NAME[name].inputs(2, 4, 0)).shape == (2, 9)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is not a directory"):
        Member.load(tmp_path / "nowhere")


def test_a_write_that_is_killed_does_not_stand_in_the_way_of_the_next(tmp_path, monkeypatch):
    """Safetensors writes a draft of its own beside the file that it is told to write."""
    member, place = prune(model_of("timm"), HeadSet.sample(model_of("timm"), 6, 0)), tmp_path / "member"

    def killed(tensors, path, metadata):
        (path.parent / ".tmpoBa7c5").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr("hydra_ensembles.store.directory.save_file", killed)
        member.save(place)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in place.rglob("*") if path.is_file()] == [".tmpoBa7c5"]
    assert Member.load(member.save(place)).heads == member.heads
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("hydra_ensembles.store.directory.save_file", full)
    with pytest.raises(StoreError, match="member cannot be written: I/O error: No space left on device"):
        prune(model_of("timm"), HeadSet.first(model_of("timm"), 2)).save(tmp_path / "member")
    assert list((tmp_path / "member").iterdir()) == []


@pytest.mark.parametrize("left", [".model.safetensors.draft", ".config.json.draft"])
def test_what_a_killed_write_left_behind_does_not_stand_in_the_way(left, tmp_path):
    member = prune(model_of("timm"), HeadSet.sample(model_of("timm"), 6, 0))
    directory = tmp_path / "member"
    directory.mkdir()
    (directory / left).write_text("half")
    assert Member.load(member.save(directory)).heads == member.heads
    (directory / "config.json").unlink()  # killed between the two files
    assert Member.load(member.save(directory)).heads == member.heads
