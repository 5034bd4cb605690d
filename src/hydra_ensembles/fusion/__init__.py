"""Fusion: many members, one network, one prediction."""

from hydra_ensembles.fusion.grouped import grouped_linear
from hydra_ensembles.fusion.hydra import Hydra
from hydra_ensembles.fusion.merging import FusionError, fuse

__all__ = ["FusionError", "Hydra", "fuse", "grouped_linear"]
