"""The networks of a setting: trained, pruned, trained again; each a unit that leaves a stored member.

Seeds: network m of the ensemble with seed s has seed 10 s + m, and `single` with seed s is network 0 of it, so that
single and Deep Ensembles share networks. Pruned members with seed s come from `single` with seed s.
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from evidence.setting import Setting
from evidence.units import Units
from hydra_ensembles import HeadRanking, HeadSet, Member, circuit_ranking, prune, select_members, taylor_ranking
from hydra_ensembles.baselines.classifiers import draw_classifier
from hydra_ensembles.baselines.lora import LoraTrainee
from hydra_ensembles.data import Batches
from hydra_ensembles.members import Recipe, finetune
from hydra_ensembles.members.trainee import Trainee

OBJECTIVES = ("avg", "acc", "ood")
"""The member of CircAvg comes first: it is a row of its own."""
RANK, ALPHA = 4, 8.0


@dataclass(frozen=True)
class Networks:
    """Adds units for networks, rankings and head sets, and reads what they left."""

    setting: Setting
    units: Units

    def load(self, name: str) -> Member:
        return Member.load(self.units.directory(name) / "member")

    def ranking(self, name: str) -> HeadRanking:
        return HeadRanking.load(self.units.directory(name) / "ranking.json")

    def base(self, seed: int) -> str:
        """All of the pre-trained model, trained on all rows."""
        setting = self.setting

        def start() -> Member:
            model = setting.load(seed)
            return prune(model, HeadSet.all(model))

        return self._trained("base", seed, start, setting.train, setting.base)

    def plus(self, seed: int) -> str:
        """A base network put through the training that follows pruning: the control."""
        base = self.base(seed)
        return self._trained("plus", seed, lambda: self.load(base), self.setting.tune, self.setting.post, (base,))

    def classifier(self, seed: int) -> str:
        """The encoder of a `single` with a new classifier, the only part that is trained, on all rows."""
        base = self.base(seed // 10 * 10)

        def start() -> Member:
            member = self.load(base)
            draw_classifier(member, seed)
            return member

        recipe = replace(self.setting.base, head_only=True)
        return self._trained("classifier", seed, start, self.setting.train, recipe, (base,))

    def lora(self, seed: int) -> str:
        """The pre-trained model with LoRA matrices, trained on all rows; they are then part of its weights."""

        def start() -> Trainee:
            model = self.setting.load(seed)
            return LoraTrainee(prune(model, HeadSet.all(model)), RANK, ALPHA, seed)

        return self._trained("lora", seed, start, self.setting.train, self.setting.base)

    def pruned(self, seed: int, m: int, head_sets: str, base: int | None = None) -> Member:
        """Member m with the heads of a unit that chose them, before any training."""
        return prune(self.load(self.base(10 * seed if base is None else base)), self.head_sets(head_sets)[m])

    def member(self, kind: str, seed: int, m: int, head_sets: str, base: int | None = None, **recipe: Any) -> str:
        """The same, trained; `base` is another network than `single`, `recipe` changes the training."""
        after = (self.base(10 * seed if base is None else base), head_sets)
        post = replace(self.setting.post, **recipe)

        def start() -> Member:
            return self.pruned(seed, m, head_sets, base)

        return self._trained(kind, 10 * seed + m, start, self.setting.tune, post, after)

    def varied(self, name: str, m: int, head_sets: str, like: str, order: int, dropout: int) -> str:
        """Member m of seed 0 whose batches come in the order of one seed and whose dropout draws from another.

        At the rate that was chosen for the networks of `like`.
        """
        base = self.base(0)

        def work(place: Path) -> Mapping[str, Any]:
            def ordered(model: nn.Module, seed: int) -> Batches:
                return self.setting.tune(model, order)

            rate = self.units.done(like)["rate"]
            return self._train(place, self.pruned(0, m, head_sets), dropout, rate, ordered, self.setting.post)

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
            journal = place / "journal.jsonl"
            if onward is not None and not journal.exists():
                shutil.copyfile(self.units.directory(onward) / "journal.jsonl", journal)
            found = circuit_ranking(
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
            found.save(place / "ranking.json")
            return {"start_score": found.start_score, "last_score": found.scores[-1]}

        return self.units.add(
            f"rankings/{name or f'circuit-{objective}'}-{seed}", work, (base,) if onward is None else (base, onward)
        )

    def taylor(self, seed: int, sample: int, keep: int | None = None) -> str:
        """A Taylor ranking on one of the disjoint samples; per layer it holds for one number of heads."""
        base, setting = self.base(10 * seed), self.setting
        is_global = setting.taylor_scope == "global"
        remove = setting.pool if is_global else setting.heads - (keep or setting.keep) // setting.layers

        def work(place: Path) -> None:
            model = self.load(base)
            data = setting.calibration(model, sample)
            taylor_ranking(model, data, remove, scope=setting.taylor_scope).save(place / "ranking.json")

        name = f"taylor-{seed}-{sample}" if keep is None or is_global else f"taylor{keep}-{seed}-{sample}"
        return self.units.add(f"rankings/{name}", work, (base,))

    def selection(self, kind: str, seed: int, rankings: Sequence[str], **how: Any) -> str:
        """Head sets of all members, from rankings or by a joint search (`how="joint"`)."""
        base, setting = self.base(10 * seed), self.setting

        def work(place: Path) -> Mapping[str, Any]:
            more = dict(how)
            if how.get("how") == "joint":
                model = self.load(base)
                more |= {"model": model, "id_data": setting.known_search(model), "search": "lazy"}
                more |= {"ood_data": setting.unknown_search(model), "journal": place / "journal.jsonl"}
            found = select_members(
                [self.ranking(name) for name in rankings],
                **{"keep": setting.keep, "members": setting.members, "seed": seed, "progress": False, **more},
            )
            (place / "selection.json").write_text(json.dumps(found.to_json(), indent=1) + "\n")
            return {"overlap": found.overlaps(), "divergence": found.divergences()}

        return self.units.add(f"heads/{kind}-{seed}", work, (base, *rankings))

    def random_heads(self, seed: int) -> str:
        """Head sets drawn at random, of the usual size in all."""
        base, setting = self.base(10 * seed), self.setting

        def work(place: Path) -> None:
            every = HeadSet.all(self.load(base).model)
            heads = list(every)
            sets = [
                every.without(random.Random(1000 * seed + m).sample(heads, len(heads) - setting.keep))
                for m in range(setting.members)
            ]
            (place / "selection.json").write_text(json.dumps({"members": [one.to_json() for one in sets]}) + "\n")

        return self.units.add(f"heads/random-{seed}", work, (base,))

    def _trained(
        self,
        kind: str,
        seed: int,
        start: Callable[[], nn.Module],
        data: Callable[[nn.Module, int], Batches],
        recipe: Recipe,
        after: Sequence[str] = (),
    ) -> str:
        """A network trained at the rate of its kind, which is chosen once, by validation NLL, with seed 0."""
        if seed == 0:
            tried = {rate: self._at(kind, seed, rate, start, data, recipe, after) for rate in self.setting.rates}

            def choose(place: Path) -> Mapping[str, Any]:
                nlls = {rate: self.units.done(name)["val_nll"] for rate, name in tried.items()}
                best = min(nlls, key=lambda rate: nlls[rate])
                shutil.copytree(self.units.directory(tried[best]) / "member", place / "member", dirs_exist_ok=True)
                said = self.units.done(tried[best])
                return {**said, "val_nll": {str(rate): nll for rate, nll in nlls.items()}}

            return self.units.add(f"networks/{kind}-{seed}", choose, tuple(tried.values()))
        # The kind's first network says the rate.
        chosen = f"networks/{kind}-0"

        def work(place: Path) -> Mapping[str, Any]:
            return self._train(place, start(), seed, self.units.done(chosen)["rate"], data, recipe)

        return self.units.add(f"networks/{kind}-{seed}", work, (*after, chosen))

    def _at(
        self,
        kind: str,
        seed: int,
        rate: float,
        start: Callable[[], nn.Module],
        data: Callable[[nn.Module, int], Batches],
        recipe: Recipe,
        after: Sequence[str],
    ) -> str:
        def work(place: Path) -> Mapping[str, Any]:
            return self._train(place, start(), seed, rate, data, recipe)

        return self.units.add(f"rates/{kind}-{seed}-{rate:g}", work, after)

    def _train(
        self,
        place: Path,
        member: nn.Module,
        seed: int,
        rate: float,
        data: Callable[[nn.Module, int], Batches],
        recipe: Recipe,
    ) -> Mapping[str, Any]:
        settings = replace(recipe, learning_rate=rate, seed=seed)
        trainee, more = member, {}
        if isinstance(trainee, LoraTrainee):
            member, more = trainee.model, {"adapter_params": sum(p.numel() for p in trainee.adapters.values())}
        assert isinstance(member, Member)
        found = finetune(
            trainee,
            data(member, seed),
            self.setting.known_val(member),
            settings,
            checkpoint=place / "training",
            progress=False,
        )
        if isinstance(trainee, LoraTrainee):
            trainee.merge()
        member.save(place / "member")
        last = found.evaluations[-1]
        return {"rate": rate, "val_nll": last.nll, "val_accuracy": last.accuracy, "steps": len(found.losses), **more}
