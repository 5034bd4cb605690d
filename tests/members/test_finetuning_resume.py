"""A killed and resumed fine-tuning equals an undisturbed one; members train alike in one process or in many."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from timm.layers import DropPath
from torch.utils.data import DataLoader, TensorDataset

from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.members.finetuning import finetune
from hydra_ensembles.members.parallel import finetune_members
from hydra_ensembles.members.rates import choose_learning_rate
from hydra_ensembles.members.recipes import FineTuningError
from members.training import QUICK, labelled, member_of, plain_of, same
from patience import PATIENCE_S

# Three steps an epoch; the best weights are not the last.
RECIPE = replace(QUICK, steps=14, evaluate_every=2, stop_on="nll", keep="best", clip_norm=1.0, weight_decay=0.01)

KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from hydra_ensembles.members.finetuning import finetune
from members.training import labelled, member_of
from members.test_finetuning_resume import RECIPE

def kill(step):
    if step.step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

data, val = labelled("bert"), labelled("bert", rows=20, seed=1)
finetune(member_of("bert"), data, val, RECIPE, checkpoint=sys.argv[1], checkpoint_every_s=0, progress=kill)
"""


@pytest.mark.parametrize("step", [7, 12])  # in the middle of an epoch; at its end, just evaluated
def test_a_killed_and_resumed_training_equals_an_undisturbed_one(step, tmp_path, repository):
    paths = os.pathsep.join([str(repository / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "scratch"), str(step)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    data, val, steps = labelled("bert"), labelled("bert", rows=20, seed=1), []
    resumed, undisturbed = member_of("bert"), member_of("bert")
    again = finetune(resumed, data, val, RECIPE, checkpoint=tmp_path / "scratch", progress=steps.append)
    assert [found.step for found in steps] == list(range(step + 1, 15)), "it did not go on where it was killed"
    whole = finetune(undisturbed, data, val, RECIPE)
    assert same(resumed, undisturbed)
    assert (again.losses, again.evaluations, again.best_step) == (whole.losses, whole.evaluations, whole.best_step)
    assert whole.best_step < 14, "the weights that stay must not be the last"
    assert not (tmp_path / "scratch").exists()


class Interrupted(Exception):
    pass


def interrupt_at(step):
    def interrupt(found):
        if found.step == step:
            raise Interrupted

    return interrupt


def shuffled(family, seed):
    return DataLoader(TensorDataset(*labelled(family, seed=seed)), batch_size=8, shuffle=True)


def a_hydra():
    model = plain_of("timm")
    return fuse([prune(model, HeadSet.sample(model, 7, seed)) for seed in (0, 1)])


@pytest.mark.parametrize(
    ("build", "family", "read", "change"),
    [
        (a_hydra, "timm", labelled, {}),
        (lambda: plain_of("timm"), "timm", shuffled, {"dropout": 0.2, "optimiser": "sgd", "learning_rate": 0.1}),
        (lambda: member_of("torchvision-hidden"), "torchvision-hidden", labelled, {"precision": "bf16"}),
        (lambda: member_of("bert"), "bert", labelled, {"zero_head": True, "freeze_blocks": 1}),
    ],
    ids=["hydra", "plain model, shuffling loader", "member, bf16", "member, partly frozen"],
)
@pytest.mark.parametrize("step", [1, 3, 5])
def test_an_interrupted_training_goes_on_to_the_same_bits(build, family, read, change, step, tmp_path):
    recipe = replace(RECIPE, steps=16, warm_up=0, evaluate_every=1, patience=3, **change)
    train, val = read(family, seed=0), read(family, seed=1)
    with pytest.raises(Interrupted):
        finetune(build(), train, val, recipe, checkpoint=tmp_path, checkpoint_every_s=0, progress=interrupt_at(step))
    (tmp_path / ".training.pt.draft").write_bytes(b"killed while it was written")
    resumed, undisturbed = build(), build()
    again = finetune(resumed, train, val, recipe, checkpoint=tmp_path)
    whole = finetune(undisturbed, train, val, recipe)
    assert same(resumed, undisturbed)
    assert (again.evaluations, again.best_step) == (whole.evaluations, whole.best_step)
    assert again.stopped_early == whole.stopped_early


def altered(family, change):
    model = plain_of(family)
    change(model)
    return model


def swap_activation(model):
    model.blocks[1].mlp.act = torch.nn.ReLU()


def drop_more(model):
    model.blocks[1].mlp.drop2.p = 0.5


def drop_paths(model):
    model.blocks[1].drop_path1 = DropPath(0.2)


def freeze_some(model):
    model.blocks[1].requires_grad_(False)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    data, other = labelled("timm"), labelled("timm", seed=1)
    with pytest.raises(Interrupted):
        finetune(
            plain_of("timm"), data, data, RECIPE, checkpoint=tmp_path, checkpoint_every_s=0, progress=interrupt_at(2)
        )
    for model, train, val, recipe, said in [
        (
            plain_of("timm"),
            data,
            data,
            replace(RECIPE, learning_rate=1.0),
            r"another recipe \(learning_rate 0.003, now 1",
        ),
        (plain_of("timm"), other, data, RECIPE, "another training set"),
        (plain_of("timm"), data, None, RECIPE, "another validation set"),
        (altered("timm", swap_activation), data, data, RECIPE, "another starting model"),
        (altered("timm", drop_more), data, data, RECIPE, r"another setting \(blocks.1.mlp.drop2.p 0.0, now 0.5"),
        (altered("timm", drop_paths), data, data, RECIPE, r"another setting \(.*drop_path1.drop_prob None, now 0.2"),
        (altered("timm", freeze_some), data, data, RECIPE, "another choice of frozen parameters"),
        (member_of("timm"), data, data, RECIPE, "another starting model"),
    ]:
        with pytest.raises(FineTuningError, match=said) as refused:
            finetune(model, train, val, recipe, checkpoint=tmp_path)
        assert "\n" not in str(refused.value)
    (tmp_path / "training.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(FineTuningError, match="not a checkpoint of ours"):
        finetune(plain_of("timm"), data, data, RECIPE, checkpoint=tmp_path)
    torch.save({"version": 1, "identity": Interrupted, "state": {}}, tmp_path / "training.pt")
    with pytest.raises(FineTuningError, match="not a checkpoint of ours"):
        finetune(plain_of("timm"), data, data, RECIPE, checkpoint=tmp_path)


def members():
    return [member_of("timm", seed) for seed in range(2)]


def test_members_in_processes_equal_members_one_after_another(tmp_path):
    data, recipe = labelled("timm"), replace(RECIPE, steps=4)
    apart, together = members(), members()
    for member in (*apart, *together):
        member.model.blocks[0].requires_grad_(False)
        member.model.blocks[1].mlp.drop1.p = 0.3  # a store does not hold it
    first = finetune_members(apart, data, data, recipe, threads=1)
    second = finetune_members(together, data, data, recipe, parallel=2, threads=1, checkpoint=tmp_path / "scratch")
    for one, other in zip(apart, together, strict=True):
        assert same(one, other)
        assert not same(one, members()[0])
    assert [history.losses for history in first] == [history.losses for history in second]
    assert [history.recipe.seed for history in second] == [0, 1]
    assert not (tmp_path / "scratch").exists()


def test_members_that_were_done_are_not_trained_again(tmp_path):
    data, recipe, seen = labelled("timm"), replace(RECIPE, steps=4), []
    count, scratch = iter(range(100)), tmp_path / "scratch"

    def interrupt(_):
        if next(count) == 5:  # the second step of the second member
            raise Interrupted

    with pytest.raises(Interrupted):
        finetune_members(members(), data, data, recipe, checkpoint=scratch, checkpoint_every_s=0, progress=interrupt)
    resumed, undisturbed = members(), members()
    again = finetune_members(resumed, data, data, recipe, checkpoint=scratch, progress=seen.append)
    whole = finetune_members(undisturbed, data, data, recipe)
    assert [step.step for step in seen] == [3, 4]
    assert all(same(one, other) for one, other in zip(resumed, undisturbed, strict=True))
    assert [history.losses for history in again] == [history.losses for history in whole]
    assert not scratch.exists()


def test_a_killed_choice_of_a_rate_goes_on_and_tries_none_again(tmp_path):
    data, seen, count = labelled("timm"), [], iter(range(100))
    recipe = replace(RECIPE, steps=4, learning_rate_grid=(1e-6, 5e-3, 1e-5))

    def interrupt(_):
        if next(count) == 5:  # the second step at the second rate
            raise Interrupted

    scratch, alone = tmp_path / "scratch", choose_learning_rate(plain_of("timm"), data, data, recipe)
    options = {"checkpoint": scratch, "checkpoint_every_s": 0}
    with pytest.raises(Interrupted):
        choose_learning_rate(plain_of("timm"), data, data, recipe, **options, progress=interrupt)
    assert choose_learning_rate(plain_of("timm"), data, data, recipe, **options, progress=seen.append) == alone
    assert [step.step for step in seen] == [3, 4, 1, 2, 3, 4]
    assert not scratch.exists()


def test_members_that_cannot_be_sent_are_refused():
    data = labelled("timm")
    with pytest.raises(FineTuningError, match="2 members but 3 seeds"):
        finetune_members(members(), data, None, QUICK, seeds=[1, 2, 3])
    with pytest.raises(FineTuningError, match="only a Member can be sent"):
        finetune_members([plain_of("timm")], data, None, QUICK, parallel=True)
    with pytest.raises(FineTuningError, match="cannot follow other processes"):
        finetune_members(members(), data, None, QUICK, parallel=True, progress=print)
