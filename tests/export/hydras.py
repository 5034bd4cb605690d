"""Hydras to export: members with equal or unequal numbers of heads, trained or only pruned."""

import random
from typing import Any

from families import model_of, perturbed
from hydra_ensembles import HeadSet, Hydra, fuse, prune


def hydra_of(name: str, is_ragged: bool, trained: bool = True, **how: Any) -> Hydra:
    """Three members; `trained` ones differ in every number, as after training, and share nothing but their shape."""
    model = model_of(name)
    every = HeadSet.all(model)
    heads = list(every)
    drawn = random.Random(0)
    if is_ragged:
        kept = [every.without(drawn.sample(heads, len(heads) // 3)) for _ in range(3)]
    else:
        kept = [every.without([head for head in heads if head.index == m]) for m in range(3)]
    members = [prune(model, keep) for keep in kept]
    for seed, member in enumerate(members if trained else ()):
        perturbed(member.model, seed)
    return fuse(members, **how)
