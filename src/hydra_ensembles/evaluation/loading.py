"""Loading whatever answers: a hydra, a member, a model."""

from pathlib import Path
from typing import Any

from torch import nn

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.evaluation.answers import check_has_classes
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.heads import load_subject
from hydra_ensembles.store import read_config


def load_network(reference: str, **settings: Any) -> nn.Module:
    """The hydra or member stored in a directory, or the model that a reference names; one that has classes."""
    directory = Path(expand(reference))
    is_hydra = (directory / "config.json").is_file() and read_config(directory).get("kind") == "hydra"
    model = Hydra.load(directory) if is_hydra else load_subject(reference, **settings)
    check_has_classes(model)
    return model
