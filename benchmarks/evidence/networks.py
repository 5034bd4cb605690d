"""The networks of a setting: trained, pruned, trained again; each a unit that leaves a stored member.

Seeds: network m of the ensemble with seed s has seed 10 s + m, and `single` with seed s is network 0 of it, so that
single and Deep Ensembles share networks. Pruned members with seed s come from `single` with seed s.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import nn

from evidence.journals import JOURNAL, with_journal
from evidence.setting import Setting
from evidence.units import Units
from hydra_ensembles import HeadRanking, HeadSet, Member, circuit_ranking, prune, select_members, taylor_ranking
from hydra_ensembles.baselines.classifiers import draw_classifier
from hydra_ensembles.baselines.lora import LoraTrainee
from hydra_ensembles.data import Batches
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.trainee import Trainee
from hydra_ensembles.store import whole
from provenance import RESULTS, machine, provenance

OBJECTIVES = ("avg", "acc", "ood")
"""The member of CircAvg comes first: it is a row of its own."""
RANK, ALPHA = 4, 8.0
T = TypeVar("T")
WEIGHTS = "weights.safetensors"
PACKAGES = ("transformers", "timm", "peft", "torchmetrics", "torch-uncertainty")


@dataclass(frozen=True)
class Networks:
    """Adds units for networks, rankings and head sets, and reads what they left."""

    setting: Setting
    units: Units

    def results(self, name: str, kind: str = "json") -> Path:
        """A results file of the setting."""
        return RESULTS / self.setting.name / f"{name}.{kind}"

    def leave(self, unit: str, name: str, work: Callable[[Path], Mapping[str, Any]], after: Sequence[str] = ()) -> str:
        """A unit that writes `results/SETTING/NAME.json`."""
        path = self.results(name)

        def write(place: Path) -> None:
            said = {**work(place), "provenance": provenance(packages=PACKAGES, machine=machine())}
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path) as draft:
                draft.write_text(json.dumps(said, indent=1) + "\n")

        return self.units.add(unit, write, after, leaves=path)

    def load(self, name: str) -> Member:
        return Member.load(self.units.directory(name) / "member")

    def ranking(self, name: str) -> HeadRanking:
        return HeadRanking.load(self.units.directory(name) / "ranking.json")

    def load_method(self, name: str, start: Callable[[], Any]) -> Any:
        """A baseline that is no member, with the weights that a unit left."""
        method = start()
        method.load_state_dict(load_file(self.units.directory(name) / "member" / WEIGHTS))
        return method.eval()

    def unpruned(self, seed: int) -> Member:
        """The pre-trained model with all heads."""
        model = self.setting.load(seed)
        return prune(model, HeadSet.all(model))

    def base(self, seed: int) -> str:
        """All of the pre-trained model, trained on all rows; without a recipe, as it is."""
        if self.setting.base is None:

            def keep(place: Path) -> None:
                self.unpruned(seed).save(place / "member")

            return self.units.add(f"networks/base-{seed}", keep)
        return self._trained("base", seed, lambda: self.unpruned(seed), self._from_nothing("base"))

    def dropping(self, seed: int) -> str:
        """What MC Dropout asks: the base network, or, where that has no dropout, another one trained with some."""
        if self.setting.dropout is None:
            return self.base(seed)
        return self._trained(
            "dropout", seed, lambda: self.unpruned(seed), self._from_nothing("dropout", dropout=self.setting.dropout)
        )

    def plus(self, seed: int, kind: str = "plus", **recipe: Any) -> str:
        """A base network put through the training that follows pruning: the control."""
        base = self.base(seed)
        rate_of = self.setting.same_rate if kind != "plus" else None
        return self._trained(kind, seed, lambda: self.load(base), self._after_pruning(**recipe), (base,), rate_of)

    def classifier(self, seed: int) -> str:
        """The encoder of a `single` with a new classifier, the only part that is trained, on all rows."""
        base = self.base(seed // 10 * 10)

        def start() -> Member:
            member = self.load(base)
            draw_classifier(member, seed)
            return member

        return self._trained("classifier", seed, start, self._from_nothing("classifier", head_only=True), (base,))

    def lora(self, seed: int) -> str:
        """The pre-trained model with LoRA matrices, trained on all rows; they are then part of its weights."""

        def start() -> Trainee:
            return LoraTrainee(self.unpruned(seed), RANK, ALPHA, seed)

        return self._trained("lora", seed, start, self._from_nothing("lora"))

    def baseline(self, kind: str, seed: int, start: Callable[[], Any]) -> str:
        """A method that rebuilds the pre-trained model, trained on all rows."""
        return self._trained(kind, seed, start, self._from_nothing(kind))

    def sparse(self, seed: int, start: Callable[[], Any]) -> str:
        """A base network without single weights, trained as pruned members are."""
        after = (self.base(10 * seed),)
        return self._trained("sparse", seed, start, self._after_pruning(), after, self.setting.same_rate)

    def pruned(self, seed: int, m: int, head_sets: str, base: int | None = None) -> Member:
        """Member m with the heads of a unit that chose them, before any training."""
        return prune(self.load(self.base(10 * seed if base is None else base)), self.head_sets(head_sets)[m])

    def member(self, kind: str, seed: int, m: int, head_sets: str, base: int | None = None, **recipe: Any) -> str:
        """The same, trained; `base` is another network than `single`, `recipe` changes the training."""
        after = (self.base(10 * seed if base is None else base), head_sets)

        def start() -> Member:
            return self.pruned(seed, m, head_sets, base)

        return self._trained(kind, 10 * seed + m, start, self._after_pruning(**recipe), after, self.setting.same_rate)

    def pretrained_member(self, kind: str, seed: int, m: int, head_sets: str) -> str:
        """Member m from the pre-trained model instead of the trained one: pruned, then trained on all rows."""

        def start() -> Member:
            return prune(self.unpruned(10 * seed + m), self.head_sets(head_sets)[m])

        return self._trained(kind, 10 * seed + m, start, self._from_nothing(kind), (head_sets,))

    def varied(self, name: str, m: int, head_sets: str, like: str, order: int, dropout: int) -> str:
        """Member m of seed 0 whose batches come in the order of one seed and whose dropout draws from another.

        At the rate that was chosen for the networks of `like`.
        """
        base = self.base(0)

        def work(place: Path) -> Mapping[str, Any]:
            def ordered(model: nn.Module, seed: int) -> Batches:
                return self.setting.tune(model, order)

            training = replace(self._after_pruning(), data=ordered)
            return self._train(place, self.pruned(0, m, head_sets), dropout, self.units.done(like)["rate"], training)

        return self.units.add(f"networks/{name}", work, (base, head_sets, like))

    def head_sets(self, name: str) -> list[HeadSet]:
        found = json.loads((self.units.directory(name) / "selection.json").read_text())
        return [HeadSet.from_json(one) for one in found["members"]]

    def circuit(
        self, seed: int, objective: str, remove: int, name: str | None = None, onward: str | None = None, **other: Any
    ) -> str:
        """A lazy search on the fixed validation rows, or onward from another.

        `other` puts another `known`, `unknown` or `layers` in the place of the usual ones.
        """
        base, setting = self.base(10 * seed), self.setting

        def work(place: Path) -> Mapping[str, Any]:
            model = self.load(base)
            known = other.get("known", setting.known_search)(model)
            unknown = None if objective == "acc" else other.get("unknown", setting.unknown_search)(model)

            def search(journal: Path) -> HeadRanking:
                if onward is not None and not journal.exists():
                    shutil.copyfile(self.units.directory(onward) / JOURNAL, journal)
                return circuit_ranking(
                    model,
                    known,
                    unknown,
                    objective,
                    remove,
                    search="lazy",
                    layers=other.get("layers"),
                    journal=journal,
                    progress=False,
                )

            found = self._with_journal(place, unit, search)
            found.save(place / "ranking.json")
            return {"start_score": found.start_score, "last_score": found.scores[-1]}

        unit = f"rankings/{name or f'circuit-{objective}'}-{seed}"
        return self.units.add(unit, work, (base,) if onward is None else (base, onward))

    def _with_journal(self, place: Path, unit: str, search: Callable[[Path], T]) -> T:
        return with_journal(place, RESULTS / self.setting.name / "journals" / unit.rpartition("/")[2], search)

    def taylor(self, seed: int, sample: int, keep: int, scope: str) -> str:
        """A Taylor ranking on one of the disjoint samples; per layer it holds for one number of heads."""
        base, setting = self.base(10 * seed), self.setting
        remove = setting.pool if scope == "global" else setting.heads - keep // setting.layers

        def work(place: Path) -> None:
            model = self.load(base)
            data = setting.calibration(model, sample)
            taylor_ranking(model, data, remove, scope=scope).save(place / "ranking.json")

        usual = scope == "global" or keep == setting.keep
        return self.units.add(f"rankings/taylor{'' if usual else keep}-{seed}-{sample}", work, (base,))

    def selection(self, kind: str, seed: int, rankings: Sequence[str], **how: Any) -> str:
        """Head sets of all members, from rankings or by a joint search (`how="joint"`)."""
        base, setting = self.base(10 * seed), self.setting

        def work(place: Path) -> Mapping[str, Any]:
            usual = {"keep": setting.keep, "members": setting.members, "seed": seed, "progress": False, **how}
            known = [self.ranking(name) for name in rankings]
            if how.get("how") == "joint":
                model = self.load(base)
                usual |= {"model": model, "id_data": setting.known_search(model), "search": "lazy"}
                usual |= {"ood_data": setting.unknown_search(model)}
                found = self._with_journal(place, unit, lambda path: select_members(known, **usual, journal=path))
            else:
                found = select_members(known, **usual)
            (place / "selection.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")
            return {"overlap": found.overlaps(), "divergence": found.divergences(), "drawn": list(found.drawn)}

        unit = f"heads/{kind}-{seed}"
        return self.units.add(unit, work, (base, *rankings))

    def random_heads(self, kind: str, seed: int, keep: int, behind: int = 0) -> str:
        """Head sets drawn at random, of one size; blocks before `behind` keep all of theirs beside them."""
        base, setting = self.base(10 * seed), self.setting

        def work(place: Path) -> None:
            every = HeadSet.all(self.load(base).model)
            sets = [drawn_heads(every, keep, 1000 * seed + m, behind) for m in range(setting.members)]
            (place / "selection.json").write_text(json.dumps({"members": [one.to_json() for one in sets]}) + "\n")

        return self.units.add(f"heads/{kind}-{seed}", work, (base,))

    def _from_nothing(self, kind: str, **recipe: Any) -> "Training":
        setting = self.setting
        assert setting.base is not None
        rates = setting.rates_of.get(kind, setting.rates)
        return Training(setting.train, replace(setting.base, **recipe), rates)

    def _after_pruning(self, **recipe: Any) -> "Training":
        setting = self.setting
        assert setting.post is not None
        return Training(setting.tune, replace(setting.post, **recipe), setting.post_rates or setting.rates)

    def _trained(
        self,
        kind: str,
        seed: int,
        start: Callable[[], nn.Module],
        training: "Training",
        after: Sequence[str] = (),
        rate_of: str | None = None,
    ) -> str:
        """A network trained at the rate of its kind, which is chosen once, by validation NLL, with seed 0.

        Or at the rate of another kind. A rate that a results file tells is not looked for again.
        """
        known = self._chosen_before.get(rate_of or kind)
        if known is not None:

            def again(place: Path) -> Mapping[str, Any]:
                said = self._train(place, start(), seed, known["rate"], training)
                if seed or rate_of:
                    return said
                return {**said, "val_nll": known["val_nll"], "val_nll_again": said["val_nll"]}

            return self.units.add(f"networks/{kind}-{seed}", again, after)
        if seed == 0 and rate_of is None:
            tried = {rate: self._at(kind, rate, start, training, after) for rate in training.rates}

            def choose(place: Path) -> Mapping[str, Any]:
                nlls = {rate: self.units.done(name)["val_nll"] for rate, name in tried.items()}
                best = min(nlls, key=lambda rate: nlls[rate])
                shutil.copytree(self.units.directory(tried[best]) / "member", place / "member", dirs_exist_ok=True)
                said = self.units.done(tried[best])
                return {**said, "val_nll": {str(rate): nll for rate, nll in nlls.items()}}

            return self.units.add(f"networks/{kind}-{seed}", choose, tuple(tried.values()))
        # The kind's first network says the rate.
        chosen = f"networks/{rate_of or kind}-0"

        def work(place: Path) -> Mapping[str, Any]:
            return self._train(place, start(), seed, self.units.done(chosen)["rate"], training)

        return self.units.add(f"networks/{kind}-{seed}", work, (*after, chosen))

    @cached_property
    def _chosen_before(self) -> dict[str, dict[str, Any]]:
        """By kind of network: the rate that results files say was chosen, and what all of them gave."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((RESULTS / self.setting.name).glob("**/*-[0-9].json")):
            for unit, said in json.loads(path.read_text()).get("networks", {}).items():
                if isinstance(said.get("val_nll"), dict):
                    found[unit.removeprefix("networks/").removesuffix("-0")] = said
        return found

    def _at(
        self, kind: str, rate: float, start: Callable[[], nn.Module], training: "Training", after: Sequence[str]
    ) -> str:
        def work(place: Path) -> Mapping[str, Any]:
            return self._train(place, start(), 0, rate, training)

        return self.units.add(f"rates/{kind}-0-{rate:g}", work, after)

    def _train(self, place: Path, start: Any, seed: int, rate: float, training: "Training") -> Mapping[str, Any]:
        """Train what a unit starts with: a member, LoRA matrices on one, or a baseline with a network of its own."""
        settings = replace(training.recipe, learning_rate=rate, seed=seed)
        is_baseline, more = not isinstance(start, Member | LoraTrainee), {}
        trainee = start.network if is_baseline else start
        if isinstance(start, LoraTrainee):
            more = {"adapter_params": sum(p.numel() for p in start.adapters.values())}
        like = self.setting.load(0) if is_baseline else start.model if isinstance(start, LoraTrainee) else start
        found = finetune(
            trainee,
            training.data(like, seed),
            self.setting.known_val(like),
            settings,
            checkpoint=place / "training",
            progress=False,
        )
        if isinstance(start, LoraTrainee):
            start.merge()
        if is_baseline:
            (place / "member").mkdir(exist_ok=True)
            save_file(start.state_dict(), place / "member" / WEIGHTS)
        else:
            assert isinstance(like, Member)
            like.save(place / "member")
        last = found.evaluations[-1]
        said = {"rate": rate, "val_nll": last.nll, "val_accuracy": last.accuracy, "steps": len(found.losses), **more}
        return {**said, "precision": settings.precision}


def drawn_heads(every: HeadSet, keep: int, seed: int, behind: int = 0) -> HeadSet:
    """So many of the heads from a layer on, at random, and all before it."""
    heads = [head for head in every if head.layer >= behind]
    return every.without(random.Random(seed).sample(heads, len(heads) - keep))


@dataclass(frozen=True)
class Training:
    """On which rows, how, and at which of several rates."""

    data: Callable[[nn.Module, int], Batches]
    recipe: Recipe
    rates: tuple[float, ...]
