"""Hydras that know their classes and how to decide, of images and of texts."""

from dataclasses import replace

from families import model_of, perturbed
from hydra_ensembles import ConformalSets, HeadSet, OODDetector, fuse, prune
from hydra_ensembles.data import load_data
from hydra_ensembles.uncertainty import Fitted, Temperature
from tiny_sets import tiny_tokenizer

NAMES = ["ant", "bee", "cat", "dog", "elk"]
TEXT = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 20, "pad_id": 0, "token_types": True}


def hydra_of(name, preprocess, known):
    """A hydra that knows its classes and how to decide."""
    members = [prune(model_of(name), HeadSet.sample(model_of(name), 6, m)) for m in range(2)]
    for m, member in enumerate(members):
        perturbed(member.model, m)
    hydra = fuse(members, mlp="grouped")
    hydra.preprocess, hydra.classes = preprocess, NAMES
    hydra.fitted = Fitted(Temperature(1.5))
    batches = load_data(known, hydra)
    OODDetector(hydra, score="energy").fit(batches, accept=0.7)
    ConformalSets(hydra).fit(batches, coverage=0.5)
    # Both numbers are those of a row: rounding, which depends on the batch, would decide about that row.
    ood, conformal = hydra.fitted.ood, hydra.fitted.conformal
    ood = replace(ood, threshold=ood.threshold + 1e-3)
    hydra.fitted = replace(hydra.fitted, ood=ood, conformal=replace(conformal, quantile=conformal.quantile + 1e-3))
    return hydra
