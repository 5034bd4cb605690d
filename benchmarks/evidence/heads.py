"""What heads do, in numbers: Proposition 1 (B.1), distances of known and unknown inputs (Table 5, Figure 4)."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from torch import nn

from evidence.extras import extra
from evidence.methods import heads_of
from evidence.networks import OBJECTIVES, Networks
from hydra_ensembles.data import Batches
from hydra_ensembles.evaluation.analyses import centroid_distances, projections, proposition_1
from hydra_ensembles.evaluation.analyses.centroids import CentroidDistances

EXTREME = 6
"""Heads on each side, as the paper's Figure 4 shows."""

CONDITIONS = {"CircAvg": "circuit", "Taylor": "taylor", "random heads": "random"}
"""Head sets that Proposition 1 is looked at with."""


def separated(networks: Networks) -> str:
    """Are unknown inputs farther from known ones in the heads that matter, and in the circuit for them?"""
    setting, base, chosen = networks.setting, networks.base(0), heads_of(networks, "circuit", 0)
    ranking = networks.circuit(0, "ood", setting.to_remove)

    def work() -> Mapping[str, Any]:
        dense, circuit = networks.load(base), networks.pruned(0, OBJECTIVES.index("ood"), chosen)
        tests = setting.tests(dense)
        (known, *_) = next(iter(setting.known_tests.values()))
        unknown = {name: tests[name] for group in ("near", "far") for name in setting.groups[group]}
        found = {
            name: centroid_distances(m, tests[known], unknown) for name, m in (("single", dense), ("CircOOD", circuit))
        }
        # The circuit may have lost all heads of the last layer.
        layer = max(set.intersection(*({head.layer for head in one.heads} for one in found.values())))
        order = networks.ranking(ranking)
        kept = sorted(order.start.without(order.removed))
        extreme = min(EXTREME, len(order) // 2)
        sides = {
            "first removed": order.removed[:extreme],
            "last removed": order.removed[-extreme:],
            "never removed": kept,
        }
        return {
            "models": {name: one.to_json() for name, one in found.items()},
            "last_layer": {
                name: {
                    distance: fmean(one.average(distance, layer).values()) for distance in ("euclidean", "mahalanobis")
                }
                for name, one in found.items()
            },
            "layer": layer,
            "heads_of_single": {
                side: {distance: _mean(found["single"], heads, distance) for distance in ("euclidean", "mahalanobis")}
                for side, heads in sides.items()
            },
        }

    return extra(networks, "separation", work, (base, chosen, ranking))


def projected(networks: Networks, known: Callable[[nn.Module], Batches], unknown: Mapping[str, Any]) -> str:
    """Figure 4: where some known and unknown inputs lie in the heads that CircOOD removed last and first."""
    setting, base = networks.setting, networks.base(0)
    ranking = networks.circuit(0, "ood", setting.to_remove)

    def work() -> Mapping[str, Any]:
        model = networks.load(base)
        others = {name: data(model) for name, data in unknown.items()}
        found = projections(model, networks.ranking(ranking), known(model), others, number=EXTREME)
        said = found.to_json()
        for plane in (*said["most"], *said["least"]):
            # Four digits of the widest point are finer than a picture shows.
            widest = max(float(np.abs(points).max()) for points in plane["points"].values())
            digits = 4 - math.ceil(math.log10(widest)) if widest > 0 else 0
            plane["points"] = {name: np.round(points, digits).tolist() for name, points in plane["points"].items()}
        return said

    return extra(networks, "projections", work, (base, ranking))


def conditions(networks: Networks, data: Callable[[nn.Module], tuple[Batches, Batches]], probes: int) -> str:
    """Proposition 1 for a circuit, Taylor and random heads, on clean and corrupted known inputs; a unit each."""
    base = networks.base(0)

    def looked_at(kind: str) -> str:
        chosen = first_circuit(networks) if kind == "circuit" else heads_of(networks, kind, 0)

        def work(place: Path) -> Mapping[str, Any]:
            model = networks.load(base)
            clean, noisy = data(model)
            heads = networks.head_sets(chosen)[0]
            found = proposition_1(model, heads, clean, noisy, probes=probes, progress=False)
            return {"found": found.to_json(), "rows": clean.num_rows}

        return networks.units.add(f"conditions/{kind}-0", work, (base, chosen))

    units = {name: looked_at(kind) for name, kind in CONDITIONS.items()}

    def work() -> Mapping[str, Any]:
        done = {name: networks.units.done(unit) for name, unit in units.items()}
        rows = next(iter(done.values()))["rows"]
        return {"sets": {name: one["found"] for name, one in done.items()}, "rows": rows}

    return extra(networks, "proposition-1", work, tuple(units.values()))


def first_circuit(networks: Networks) -> str:
    """The heads of CircAvg, which is the first member of hydra (circuit), without a search for the others."""
    ranking = networks.circuit(0, OBJECTIVES[0], networks.setting.to_remove)
    return networks.selection("first-circuit", 0, [ranking], members=1)


def _mean(found: CentroidDistances, heads: Any, distance: str) -> float:
    """Over some heads and all sets."""
    places = [found.heads.index(head) for head in heads]
    return fmean(row[place] for row in getattr(found, distance).values() for place in places)
