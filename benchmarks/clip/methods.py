"""What is compared: heads chosen once a model, answers asked once a network, each a unit of work.

Nothing is trained after the two towers have been; the error predictor alone has an MLP of its own.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from clip.task import Model, Task
from evidence.journals import with_journal
from evidence.networks import OBJECTIVES, drawn_heads
from evidence.units import Units
from hydra_ensembles import (
    HeadRanking,
    HeadSet,
    ZeroShotClassifier,
    circuit_ranking,
    fuse,
    prune,
    select_members,
    taylor_ranking,
)
from hydra_ensembles.baselines import ErrorPredictor, LastLayerLaplace
from hydra_ensembles.evaluation import answers
from hydra_ensembles.evaluation.analyses import taylor_map
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import Head
from hydra_ensembles.heads.cost import Cost

VISION, BOTH, TAYLOR_VISION, RANDOM = "vision", "both", "taylor-vision", "random"
WHOLE = ("single", "laplace", "errors")
"""Kinds that keep all heads."""


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    kind: str
    """Which networks answer: units of rows with the same kind are shared."""
    tempered: bool = False
    """Is a temperature part of the method?"""


METHODS = (
    Method("single", "single"),
    Method("temperature scaling", "single", tempered=True),
    Method("Laplace (BayesVLM-style)", "laplace"),
    Method("error predictor (ViLU-style)", "errors"),
    Method("Taylor (vision only)", TAYLOR_VISION),
    Method("Taylor (by tower)", "taylor-by-tower"),
    Method("CircAvg", "circavg"),
    Method("hydra (circuit)", "circuit-both"),
    Method("hydra (circuit) + temperature", "circuit-both", tempered=True),
    Method("hydra (circuit, vision only)", "circuit-vision"),
    Method("hydra (random heads)", RANDOM),
)


@dataclass(frozen=True)
class Networks:
    """Adds units for models, rankings, head sets and answers, and reads what they left."""

    units: Units
    task: Task
    journals: Path
    """Where those of searches are left, for other checkouts."""
    weights: str | None = None
    """A directory with a two-tower model; None: one is trained here for each seed."""

    def trained(self, seed: int) -> tuple[str, ...]:
        """The unit that trains a model, where one is trained."""
        if self.weights is not None:
            return ()

        def work(place: Path) -> Mapping[str, Any]:
            from clip.training import train

            return train(place, seed)

        return (self.units.add(f"models/{seed}", work),)

    def model(self, seed: int) -> Model:
        return Model.at(self.weights or self.units.directory(f"models/{seed}") / "weights")

    def classifier(self, seed: int, *columns: str) -> ZeroShotClassifier:
        """For the classes of some columns, by default of the first."""
        return self.model(seed).classifier(self.task.classes(*(columns or (self.task.first,))))

    def ranking(self, name: str) -> HeadRanking:
        return HeadRanking.load(self.units.directory(name) / "ranking.json")

    def head_sets(self, kind: str, seed: int) -> list[HeadSet]:
        found = json.loads((self.units.directory(f"heads/{kind}-{seed}") / "selection.json").read_text())
        return [HeadSet.from_json(one) for one in found["members"]]

    def circuit(self, seed: int, objective: str, towers: str) -> str:
        """A lazy search, of the heads of both towers or of the image tower's."""

        def work(place: Path) -> Mapping[str, Any]:
            model = self.classifier(seed)
            known, unknown = self.task.searched(model)

            def search(journal: Path) -> HeadRanking:
                return circuit_ranking(
                    model,
                    known,
                    None if objective == "acc" else unknown,
                    objective,
                    self.removed_of(model) + self.task.more,
                    search="lazy",
                    towers=towers,
                    journal=journal,
                    progress=False,
                )

            found = with_journal(place, self.journals / name, search)
            found.save(place / "ranking.json")
            return {"start_score": found.start_score, "last_score": found.scores[-1], **by_tower(found.removed)}

        name = f"{objective}-{towers}-{seed}"
        return self.units.add(f"rankings/{name}", work, self.trained(seed))

    def taylor(self, seed: int, kind: str) -> str:
        """Taylor scores on training images: of the image tower (the paper), or of both, each by its mean (ours).

        The paper takes as many heads from every layer, which is done where their number can be shared out so.
        """

        def work(place: Path) -> Mapping[str, Any]:
            model = self.classifier(seed)
            remove, data = self.removed_of(model), self.task.calibration(model)
            how: dict[str, Any] = {"scope": "global", "remove": remove}
            how |= {"towers": VISION} if kind == TAYLOR_VISION else {"by_tower": True}
            each, rest = divmod(remove, len(HeadSet.all(model)[VISION]))
            if kind == TAYLOR_VISION and not rest:
                how |= {"scope": "layer", "remove": each}
            found = taylor_ranking(model, data, **how)
            found.save(place / "ranking.json")
            return by_tower(found.removed)

        return self.units.add(f"rankings/{kind}-{seed}", work, self.trained(seed))

    def heads(self, kind: str, seed: int) -> str:
        """Head sets of the members of a kind."""
        if kind == RANDOM:
            return self._random_heads(seed)
        if kind.startswith("taylor"):
            rankings = [self.taylor(seed, kind)]
        else:
            towers = VISION if kind == "circuit-vision" else BOTH
            wanted = OBJECTIVES if kind != "circavg" else OBJECTIVES[:1]
            rankings = [self.circuit(seed, objective, towers) for objective in wanted]

        def work(place: Path) -> Mapping[str, Any]:
            found = [self.ranking(name) for name in rankings]
            kept = self.task.more if kind != "circuit-more" and not kind.startswith("taylor") else 0
            keep = len(found[0].start) - len(found[0].removed) + kept
            if len(found) == 1:
                said: dict[str, Any] = {"members": [found[0].keep(keep).to_json()]}
            else:
                said = select_members(found, keep=keep).to_json()
            (place / "selection.json").write_text(json.dumps(said, indent=1) + "\n")
            return {name: said[name] for name in ("overlap", "divergence") if name in said}

        return self.units.add(f"heads/{kind}-{seed}", work, rankings)

    def _random_heads(self, seed: int) -> str:
        """The control: as many heads of both towers as circuits remove, drawn."""

        def work(place: Path) -> None:
            model = self.classifier(seed)
            every = HeadSet.all(model)
            keep = len(every) - self.removed_of(model)
            sets = [drawn_heads(every, keep, 1000 * seed + m) for m in range(len(OBJECTIVES))]
            (place / "selection.json").write_text(json.dumps({"members": [one.to_json() for one in sets]}) + "\n")

        return self.units.add(f"heads/{RANDOM}-{seed}", work, self.trained(seed))

    def build(self, kind: str, seed: int, columns: Sequence[str]) -> nn.Module:
        """A network for the classes of some columns."""
        classifier = self.classifier(seed, *columns)
        if kind == "single":
            return classifier
        if kind == "laplace":
            return self._laplace(seed).for_classes(classifier)
        if kind == "errors":
            predictor = ErrorPredictor(classifier, seed=seed)
            predictor.fit(*self.task.validation(classifier, columns[0]))
            return predictor
        members = [prune(classifier, heads) for heads in self.head_sets(kind, seed)]
        return fuse(members) if len(members) > 1 else members[0]

    def asked(self, kind: str, seed: int) -> dict[str, str]:
        """By column, the unit with a network's answers to its sets."""
        after = self.trained(seed) if kind in WHOLE else (self.heads(kind, seed),)
        # An error predictor knows the classes of one column, and cannot be asked about two at once.
        alone = {name: (name,) for name, column in self.task.columns.items() if column.validation is not None}
        groups = alone if kind == "errors" else self.task.asked
        found: dict[str, str] = {}
        for name, columns in groups.items():
            unit = self.units.add(f"answers/{kind}-{name}-{seed}", self._ask(kind, seed, columns), after)
            found |= dict.fromkeys(columns, unit)
        return found

    def _ask(self, kind: str, seed: int, columns: Sequence[str]) -> Callable[[Path], None]:
        def work(place: Path) -> None:
            model = self.build(kind, seed, columns)
            for name, batches in self.task.sets_of(self.classifier(seed, *columns), columns).items():
                if not (place / name / "config.json").is_file():
                    has_labels = getattr(batches, "labels", None) is not None
                    answers(model, batches, labels=has_labels, progress=False).save(place / name)

        return work

    def cost(self, kind: str, seed: int) -> Cost:
        """Counted with the classes of the first column; what is fitted costs the same as before."""
        classifier = self.classifier(seed)
        if kind == "laplace":
            return LastLayerLaplace(classifier).cost()
        if kind == "errors":
            return ErrorPredictor(classifier).cost()
        if kind == "single":
            return network_cost(classifier, classifier)
        members = [prune(classifier, heads) for heads in self.head_sets(kind, seed)]
        return network_cost(fuse(members, last_block="full") if len(members) > 1 else members[0], classifier)

    def scores_by_layer(self, seed: int) -> str:
        """Taylor scores of all heads of both towers (Figure 7)."""

        def work(place: Path) -> None:
            model = self.classifier(seed)
            found = taylor_map(model, self.task.calibration(model))
            (place / "map.json").write_text(json.dumps(found.to_json()) + "\n")

        return self.units.add(f"maps/taylor-{seed}", work, self.trained(seed))

    def removed_of(self, model: ZeroShotClassifier) -> int:
        """Heads to remove; 11 of 108, 24 of 240."""
        return round(self.task.sizes.removed_share * len(HeadSet.all(model)))

    def _laplace(self, seed: int) -> LastLayerLaplace:
        """Fitted on the first column: curvature from training images, prior precision by validation rows."""
        method = LastLayerLaplace(self.classifier(seed))
        fitted, _ = self.task.validation(method.network, self.task.first)
        method.fit(self.task.calibration(method.network), fitted)
        return method


def by_tower(heads: Collection[Head]) -> dict[str, int]:
    """How many heads of each tower."""
    return {tower: sum(head.tower == tower for head in heads) for tower in ("vision", "text")}
