"""Scoring: which heads matter."""

from hydra_ensembles.scoring.circuits import circuit_ranking
from hydra_ensembles.scoring.journal import JournalError
from hydra_ensembles.scoring.objectives import OBJECTIVES, ScoringError
from hydra_ensembles.scoring.taylor import taylor_ranking

__all__ = ["OBJECTIVES", "JournalError", "ScoringError", "circuit_ranking", "taylor_ranking"]
