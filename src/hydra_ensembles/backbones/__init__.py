"""Backbones: transformers of several libraries, read through one contract. One file a family."""

from hydra_ensembles.backbones.backbone import Backbone, Family, Inputs, Tower, family_of, register_backbone
from hydra_ensembles.backbones.block import Block
from hydra_ensembles.backbones.origin import Origin
from hydra_ensembles.backbones.parts import UnsupportedBackbone
from hydra_ensembles.backbones.references import UnknownReference, load_model, origin_of
from hydra_ensembles.backbones.saving import save_model
from hydra_ensembles.backbones.state import State
from hydra_ensembles.backbones.zero_shot import ZeroShotClassifier

__all__ = [
    "Backbone",
    "Block",
    "Family",
    "Inputs",
    "Origin",
    "State",
    "Tower",
    "UnknownReference",
    "UnsupportedBackbone",
    "ZeroShotClassifier",
    "family_of",
    "load_model",
    "origin_of",
    "register_backbone",
    "save_model",
]
