"""From a laptop to a cluster, on Ray: circuit search, members, bulk scoring, serving."""

from hydra_ensembles.scale.search import circuit_ranking

__all__ = ["circuit_ranking"]
