"""From a laptop to a cluster, on Ray: circuit search, recipes, bulk scoring, serving."""

from hydra_ensembles.scale.bulk import score
from hydra_ensembles.scale.search import circuit_ranking
from hydra_ensembles.scale.serving import serve
from hydra_ensembles.scale.stages import each, run_recipe

__all__ = ["circuit_ranking", "each", "run_recipe", "score", "serve"]
