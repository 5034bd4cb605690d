"""`hydra-ens inspect`, as a person and as a machine would call it."""

import copy
import json
import subprocess
import sys
import warnings

import pytest
from safetensors.torch import load_file, save_file

from families import edit_config, model_of
from hydra_ensembles import HeadSet, load_model, prune
from hydra_ensembles.backbones import UnknownReference
from hydra_ensembles.cli.main import in_options, main


def test_json_has_the_hydra_of_table_7_to_the_last_parameter(run):
    done = run("inspect", "timm:vit_base_patch16_224", "--keep", "8", "--members", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "single": {"params": 86567656, "mult_adds": 17563828224},
        "member": {"params": 77121256, "mult_adds": 15466260480},
        "hydra": {"params": 116540088, "mult_adds": 46167570432},
        "hydra_default": {"params": 116540088, "mult_adds": 42812000256},
    }


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("timm:vit_base_patch16_224", ["144 heads", "86.57 M parameters"]),
        ("torchvision:vit_b_16", ["144 heads", "86.57 M parameters"]),
        ("open_clip:ViT-B-32", ["240 heads", "vision", "text", "50 vision, 77 text"]),
    ],
)
def test_an_architecture_is_shown_without_weights(reference, words, run):
    done = run("inspect", reference, "--keep", "6")
    assert done.returncode == 0, done.stderr
    for word in [*words, "hydra_default"]:
        assert word in done.stdout


def test_text_is_counted_at_the_tokens_asked_for(tmp_path, run, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path))
    model_of("bert").save_pretrained(tmp_path / "bert")
    reference = "hf:${WHERE}/bert"
    short, long = (json.loads(run("inspect", reference, "--tokens", n, "--json").stdout) for n in ("8", "16"))
    assert 2 < long["single"]["mult_adds"] / short["single"]["mult_adds"] < 2.2
    assert long["single"]["params"] == short["single"]["params"]


def test_a_stored_member_is_shown_with_the_heads_it_kept(tmp_path, run):
    prune(model_of("timm"), HeadSet.sample(model_of("timm"), 5, 0)).save(tmp_path / "member")
    done = run("inspect", str(tmp_path / "member"))
    assert "5 heads" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["timm:vit_base_patch99"], "UnsupportedBackbone: timm has no model named 'vit_base_patch99'"),
        (["torchvision:resnet18"], "torchvision has no vision transformer named 'resnet18'; it has vit_b_16"),
        (["open_clip:hf-hub:somebody/something"], "open_clip has no model named 'hf-hub:somebody/something'"),
        (["open_clip:ViT-Z-1"], "open_clip has no model named 'ViT-Z-1'"),
        (["timm:swin_tiny_patch4_window7_224"], "windowed attention is not supported"),
        (["nowhere"], "'nowhere' is neither a directory nor a reference; references start with timm:"),
        (["hf:nowhere"], "hf:nowhere has no config.json"),
        (["hf:pkg:no_such_package/model"], "package 'no_such_package' is not installed"),
        (["${NOT_SET}/model"], "names the environment variable NOT_SET, which is not set"),
        (["timm:vit_base_patch16_224", "--keep", "13"], "cannot keep 13 heads in every layer"),
        (["timm:vit_base_patch16_224", "--keep", "8", "--trunk", "13"], "a trunk of 13 blocks"),
        (["src"], "has no config.json"),
    ],
)
def test_a_wrong_call_ends_in_one_line_and_a_failure(arguments, message, repository, monkeypatch, run):
    monkeypatch.chdir(repository)
    done = run("inspect", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


@pytest.mark.parametrize(
    "harm",
    [
        lambda d: (d / "config.json").write_text("{"),
        edit_config(lambda c: c.pop("model_type")),
        edit_config(lambda c: c.update(model_type="resnet")),
        edit_config(lambda c: c.update(hidden_size="wide")),
        edit_config(lambda c: c.update(model_type="mystery", auto_map={"AutoConfig": "evil.Config"})),
    ],
)
def test_a_transformers_directory_that_is_damaged_ends_in_one_line(harm, tmp_path, run):
    model_of("bert").save_pretrained(tmp_path / "bert")
    harm(tmp_path / "bert")
    done = run("inspect", f"hf:{tmp_path / 'bert'}")
    assert done.returncode == 1
    assert "transformers cannot read hf:" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_transformers_directory_that_lacks_a_tensor_is_refused(tmp_path):
    model_of("bert").save_pretrained(tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    tensors = load_file(path)
    tensors["mystery"] = tensors.pop("bert.encoder.layer.0.attention.self.query.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UnknownReference, match=r"lacks tensor 'bert\.encoder\.layer\.0\.attention\.self"):
        load_model(f"hf:{tmp_path / 'bert'}")


def test_weights_of_another_task_are_refused_and_a_new_classifier_is_told(tmp_path):
    from transformers import BertForTokenClassification

    config = copy.deepcopy(model_of("bert").config)
    BertForTokenClassification(config).save_pretrained(tmp_path / "tokens")
    for task, labels in (("multi_label_classification", 5), ("regression", 1), (None, 1)):
        config.problem_type, config.num_labels = task, labels
        model_of("bert").__class__(config).save_pretrained(tmp_path / f"{task}-{labels}")
    for name, why in (
        ("tokens", "BertForTokenClassification, which does not classify whole inputs"),
        ("multi_label_classification-5", "multi_label_classification; one class an input is meant"),
        ("regression-1", "regression; one class an input is meant"),
        ("None-1", "1 output, no classes"),
    ):
        with pytest.raises(UnknownReference, match=why):
            load_model(f"hf:{tmp_path / name}")
    model_of("bert").bert.save_pretrained(tmp_path / "encoder")
    with pytest.warns(UserWarning, match="its classifier is random; train it before"):
        load_model(f"hf:{tmp_path / 'encoder'}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        load_model(f"hf:{tmp_path / 'encoder'}", num_labels=3)


def test_debug_lets_the_error_through():
    with pytest.raises(UnknownReference):
        main(["--debug", "inspect", "nowhere"])
    with pytest.raises(UnknownReference):
        main(["inspect", "nowhere", "--debug"])


def test_help_shows_an_example_and_does_not_wait_for_torch(run):
    done = run("inspect", "--help")
    assert "hydra-ens inspect timm:vit_base_patch16_224 --keep 8 --members 3" in " ".join(done.stdout.split())
    check = "import sys, hydra_ensembles.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
    assert run("--version").stdout.startswith("hydra-ens 0.")


@pytest.mark.parametrize(
    ("told", "command", "shown"),
    [
        ("name one with image=", "predict", "name one with --image"),
        ("name one with text=; or none", "score", "name one with --text; or none"),
        ("say allow_seen=True", "evaluate", "say --allow-seen"),
        ("say check=False", "export", "say --no-check"),
        ("say mlp='grouped'", "fuse", "say --mlp grouped"),
        ("say allow_seen=True", "predict", "say allow_seen=True"),
        ("by='loss' and label=['a']", "evaluate", "by='loss' and label=['a']"),
    ],
)
def test_errors_speak_of_options(told, command, shown):
    assert in_options(told, ["--debug", command, "out"]) == shown
