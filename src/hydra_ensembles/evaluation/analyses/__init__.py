"""The paper's analyses, each a function that returns numbers: what heads do, and what choosing them does."""

from hydra_ensembles.evaluation.analyses.alignment import Proposition1, proposition_1
from hydra_ensembles.evaluation.analyses.centroids import CentroidDistances, centroid_distances
from hydra_ensembles.evaluation.analyses.diversity import Diversity, diversity
from hydra_ensembles.evaluation.analyses.hessian import Diagonal, hessian_diagonal
from hydra_ensembles.evaluation.analyses.overfit import SelectionOverfit, selection_overfit
from hydra_ensembles.evaluation.analyses.projection import Plane, Projections, projections
from hydra_ensembles.evaluation.analyses.score_maps import HeadMap, removal_map, score_map, taylor_map
from hydra_ensembles.evaluation.analyses.subject import AnalysisError
from hydra_ensembles.evaluation.analyses.sweeps import Sweep, head_count_sweep, random_ranking

__all__ = [
    "AnalysisError",
    "CentroidDistances",
    "Diagonal",
    "Diversity",
    "HeadMap",
    "Plane",
    "Projections",
    "Proposition1",
    "SelectionOverfit",
    "Sweep",
    "centroid_distances",
    "diversity",
    "head_count_sweep",
    "hessian_diagonal",
    "projections",
    "proposition_1",
    "random_ranking",
    "removal_map",
    "score_map",
    "selection_overfit",
    "taylor_map",
]
