"""Small data and recipes that the tests of fine-tuning share."""

import copy

import torch

from families import BY_NAME, CLASSES, model_of
from hydra_ensembles import HeadSet, prune
from hydra_ensembles.members.recipes import Recipe

QUICK = Recipe("quick", learning_rate=3e-3, steps=10, batch_size=8, warm_up=2, patience=None, keep="last")


def labelled(name, rows=24, seed=0):
    """Random inputs of a family with random labels: to be learnt by heart."""
    labels = torch.randint(0, CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))
    return BY_NAME[name].inputs(rows, 7, seed), labels


def member_of(name, seed=0, keep=7):
    """A member with some of its heads, fresh every time."""
    model = model_of(name)
    return prune(model, HeadSet.sample(model, keep, seed))


def plain_of(name):
    return copy.deepcopy(model_of(name))


def same(first, second):
    """Are two models equal to the bit?"""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
