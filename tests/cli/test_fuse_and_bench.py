"""`hydra-ens fuse` and `hydra-ens bench`."""

import json

import pytest
import timm
import torch

from families import BY_NAME, model_of, perturbed
from hydra_ensembles import HeadSet, Hydra, prune


@pytest.fixture
def stored(tmp_path):
    members = [prune(model_of("timm"), HeadSet.sample(model_of("timm"), 6, seed)) for seed in range(3)]
    for seed, member in enumerate(members):
        perturbed(member.model, seed)
    return [str(member.save(tmp_path / f"member-{m}")) for m, member in enumerate(members)], members


@pytest.mark.parametrize("mlp", ["average", "grouped"])
def test_members_on_disk_become_a_hydra_on_disk(mlp, stored, tmp_path, run):
    paths, members = stored
    done = run("fuse", *paths, "--out", str(tmp_path / "hydra"), "--mlp", mlp)
    assert done.returncode == 0, done.stderr
    assert "3 members, trunk 0 of 3 blocks" in done.stdout
    hydra, images = Hydra.load(tmp_path / "hydra"), BY_NAME["timm"].inputs(2, 0, 0)
    assert hydra.heads == [member.heads for member in members]
    if mlp == "grouped":
        with torch.no_grad():
            expected = torch.stack([member(images) for member in members], dim=1)
            torch.testing.assert_close(hydra.members(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a directory"),
        (["{member}", "--mlp", "mean"], "--mlp mean is not known"),
        (["{member}", "--last-block", "cls"], "--last-block cls is not known"),
    ],
)
def test_a_wrong_fuse_ends_in_one_line(arguments, message, stored, tmp_path, run):
    done = run("fuse", *[a.format(member=stored[0][0]) for a in arguments], "--out", str(tmp_path / "hydra"))
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "hydra").exists()


def test_a_warning_is_one_line(tmp_path, run):
    """Averaging the MLPs of networks that were never one is warned of, in the words of the command."""
    for seed in range(2):
        torch.manual_seed(seed)
        strange = timm.create_model("test_vit").eval()
        prune(strange, HeadSet.all(strange)).save(tmp_path / str(seed))
    done = run("fuse", str(tmp_path / "0"), str(tmp_path / "1"), "--out", str(tmp_path / "hydra"))
    (told,) = done.errors
    assert told.startswith("Warning: the MLPs of members 0 and 1 have little in common")
    assert told.endswith("keep each its own with --mlp grouped")


SMALL = ["timm:test_vit", "--keep", "1", "--batch", "2", "--rounds", "3"]


def test_bench_times_everybody_in_turn(run):
    done = run("bench", *SMALL, "--threads", "2", "--trunk", "2", "--json")
    found = json.loads(done.stdout)
    assert {"single_ms", "members_ms", "deep_ensembles_ms", "hydra_ms"} <= set(found)
    assert all(found[f"{name}_quartiles_ms"][0] <= found[f"{name}_ms"] for name in ("single", "hydra"))
    assert found["threads"] == 2
    assert 1 < found["arithmetic_ratio"] < 3
    shown = run("bench", *SMALL, "--dtype", "bf16")
    assert shown.returncode == 0, shown.stderr
    for word in ("single", "members", "deep_ensembles", "hydra", "threads", "3 interleaved rounds"):
        assert word in shown.stdout


def test_texts_are_timed_and_counted_at_the_tokens_asked_for(run, tmp_path):
    model_of("bert").save_pretrained(tmp_path / "bert")
    ask = ["bench", f"hf:{tmp_path / 'bert'}", "--keep", "1", "--batch", "2", "--rounds", "1", "--json", "--tokens"]
    short, long = (json.loads(run(*ask, tokens).stdout) for tokens in ("4", "16"))
    assert (short["tokens"], long["tokens"]) == (4, 16)
    assert short["arithmetic_ratio"] != long["arithmetic_ratio"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SMALL, "--dtype", "fp8"], "--dtype fp8 is not known"),
        ([*SMALL, "--trunk", "7"], "a trunk of 7 blocks does not fit the model"),
        (["timm:test_vit", "--keep", "9"], "cannot keep 9 heads"),
    ],
)
def test_a_wrong_bench_ends_in_one_line(arguments, message, run):
    done = run("bench", *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
