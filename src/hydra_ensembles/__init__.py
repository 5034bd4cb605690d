"""hydra-ensembles: one pre-trained transformer in, one calibrated ensemble out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra_ensembles.backbones import Backbone, ZeroShotClassifier, load_model, register_backbone, save_model
    from hydra_ensembles.evaluation import (
        ConformalSets,
        OODDetector,
        Protocol,
        TemperatureScaler,
        evaluate,
    )
    from hydra_ensembles.fusion import Hydra, fuse
    from hydra_ensembles.heads import Head, HeadRanking, HeadSet, Member, ablate, describe, prune
    from hydra_ensembles.members import finetune, select_members
    from hydra_ensembles.scoring import circuit_ranking, taylor_ranking
    from hydra_ensembles.uncertainty import Prediction

__version__ = "0.1.0.dev0"

# Imported at first use, so that `hydra-ens --help` does not wait for torch.
_ROOMS = {
    "Backbone": "backbones",
    "ZeroShotClassifier": "backbones",
    "load_model": "backbones",
    "register_backbone": "backbones",
    "save_model": "backbones",
    "ConformalSets": "evaluation",
    "OODDetector": "evaluation",
    "Protocol": "evaluation",
    "TemperatureScaler": "evaluation",
    "evaluate": "evaluation",
    "Hydra": "fusion",
    "fuse": "fusion",
    "Head": "heads",
    "HeadRanking": "heads",
    "HeadSet": "heads",
    "Member": "heads",
    "ablate": "heads",
    "describe": "heads",
    "prune": "heads",
    "finetune": "members",
    "select_members": "members",
    "circuit_ranking": "scoring",
    "taylor_ranking": "scoring",
    "Prediction": "uncertainty",
}

__all__ = [
    "Backbone",
    "ConformalSets",
    "Head",
    "HeadRanking",
    "HeadSet",
    "Hydra",
    "Member",
    "OODDetector",
    "Prediction",
    "Protocol",
    "TemperatureScaler",
    "ZeroShotClassifier",
    "ablate",
    "circuit_ranking",
    "describe",
    "evaluate",
    "finetune",
    "fuse",
    "load_model",
    "prune",
    "register_backbone",
    "save_model",
    "select_members",
    "taylor_ranking",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'hydra_ensembles' has no attribute '{name}'")
    return getattr(import_module(f"hydra_ensembles.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
