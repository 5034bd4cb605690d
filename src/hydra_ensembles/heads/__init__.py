"""Heads: which are kept, turning them off, taking them out, and what that costs."""

from hydra_ensembles.heads.ablation import ablate
from hydra_ensembles.heads.cost import Cost, hydra_cost, predict_costs, single_cost
from hydra_ensembles.heads.description import Description, describe
from hydra_ensembles.heads.head_set import Head, HeadSet, HeadSetError, layer_divergence, overlap
from hydra_ensembles.heads.member import Member, load_subject, name_classes, own_logits, prune
from hydra_ensembles.heads.ranking import HeadRanking, RankingError

__all__ = [
    "Cost",
    "Description",
    "Head",
    "HeadRanking",
    "HeadSet",
    "HeadSetError",
    "Member",
    "RankingError",
    "ablate",
    "describe",
    "hydra_cost",
    "layer_divergence",
    "load_subject",
    "name_classes",
    "overlap",
    "own_logits",
    "predict_costs",
    "prune",
    "single_cost",
]
