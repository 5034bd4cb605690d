"""An evaluation: judged rows of every test set, the figures they give, and how sure those are.

Shapes: S resamples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, stack

from hydra_ensembles.errors import HydraError
from hydra_ensembles.evaluation.bootstrap import (
    Difference,
    difference,
    draws,
    interval,
    resampled_answers,
    resampled_separation,
)
from hydra_ensembles.evaluation.judged import Judged, shown_accuracy
from hydra_ensembles.evaluation.metrics import answer_metrics, separation_metrics
from hydra_ensembles.evaluation.protocol import AVERAGE, GROUPS, ID_TEST, SHIFTS
from hydra_ensembles.evaluation.shift.names import seed_of
from hydra_ensembles.store import read_store, write_store


class EvaluationError(HydraError):
    """Evaluations that cannot be read or compared."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model did on the sets of a protocol.

    `figures` has every metric, shares as fractions; `intervals` a 95 % bootstrap interval for answers and one score.
    """

    judged: Mapping[str, Judged]
    """By set, `id_test` first."""
    groups: Mapping[str, Sequence[str]]
    """The names of the near, the far and the shifted sets."""
    digests: Mapping[str, str | None] = field(default_factory=dict)
    """Of the rows and their labels, by set."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The model, what it was fitted with, the share of each decision by set, which sets were seen before."""
    resamples: int = 1000
    seed: int = 0
    score: str = "msp"
    """The score whose figures get intervals."""

    def __repr__(self) -> str:
        known = self.judged[ID_TEST]
        sets = [f"; {group}: {', '.join(names)}" for group, names in self.groups.items() if names]
        return f"Evaluation({ID_TEST} {len(known)} rows{shown_accuracy(known)}{''.join(sets)})"

    @property
    def scores(self) -> list[str]:
        """Every score that unknown inputs were told by."""
        return list(self.judged[ID_TEST].scores)

    @cached_property
    def figures(self) -> dict[str, dict[str, dict[str, float]]]:
        """By part (`answers`, `diversity`, `ood/SCORE`), set and metric; means over sets are sets themselves.

        Means are unweighted over sets: `shifts` in `answers`; `near`, `far` and `average` in `ood/SCORE`.
        """
        answers = {name: answer_metrics(rows) for name, rows in self.judged.items() if rows.right is not None}
        diversity = {
            name: {metric: float(getattr(rows, metric).mean()) for metric in ("mutual_information", "disagreement")}
            for name, rows in self.judged.items()
        }
        found = {"answers": answers | self._shift_mean(answers), "diversity": diversity}
        for score in self.scores if self._unknown else []:
            known = self.judged[ID_TEST].scores[score]
            sets = {name: separation_metrics(known, self.judged[name].scores[score]) for name in self._unknown}
            found[f"ood/{score}"] = sets | self._group_means(sets)
        return found

    @cached_property
    def resampled(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """As `figures`, for answers and one score, `(S,)` each."""
        answers = {
            name: resampled_answers(rows, self._draws(name))
            for name, rows in self.judged.items()
            if rows.right is not None
        }
        found = {"answers": answers | self._shift_mean(answers)}
        if self._unknown:
            known, counts = self.judged[ID_TEST].scores[self.score], self._draws(ID_TEST)
            sets = {
                name: resampled_separation(known, self.judged[name].scores[self.score], counts, self._draws(name))
                for name in self._unknown
            }
            found[f"ood/{self.score}"] = sets | self._group_means(sets)
        return found

    @cached_property
    def intervals(self) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
        """As `resampled`: where the middle 95 % of the resamples lie."""
        if not self.resamples:
            return {}
        return {
            part: {name: {metric: interval(values) for metric, values in row.items()} for name, row in sets.items()}
            for part, sets in self.resampled.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Figures and intervals with what is known about them."""
        return {
            "figures": self.figures,
            "intervals": self.intervals,
            "rows": {name: len(rows) for name, rows in self.judged.items()},
            "groups": {name: list(sets) for name, sets in self.groups.items()},
            "digests": dict(self.digests),
            "resamples": self.resamples,
            "seed": self.seed,
            "score": self.score,
            "about": dict(self.about),
        }

    def save(self, directory: str | Path) -> Path:
        """Write the figures (`config.json`) and the rows behind them (`model.safetensors`)."""
        tensors = {
            f"{name}/{column}": values.contiguous()
            for name, rows in self.judged.items()
            for column, values in _columns(rows)
        }
        return write_store(directory, "evaluation", {**self.to_json(), "sets": list(self.judged)}, tensors)

    @classmethod
    def load(cls, directory: str | Path) -> "Evaluation":
        """Read an evaluation back; figures are computed again from its rows."""
        config, tensors = read_store(directory, "evaluation")
        try:
            sets = {name: _from_columns(name, tensors) for name in config["sets"]}
            known = {name: config[name] for name in ("groups", "digests", "about", "resamples", "seed", "score")}
        except (KeyError, TypeError) as error:
            raise EvaluationError(f"{directory} is not a whole evaluation ({error})") from None
        return cls(sets, **known)

    @property
    def _unknown(self) -> list[str]:
        return [name for group in GROUPS for name in self.groups.get(group, ())]

    def _draws(self, name: str) -> Tensor:
        """The same for the same seed, name and number of rows, whatever other sets there are; 2 bytes a number."""
        rows = len(self.judged[name])
        # Shifts are the known rows once more: drawn together, or their mean would look surer than it is.
        if name in self.groups.get(SHIFTS, ()) and rows == len(self.judged[ID_TEST]):
            name = ID_TEST
        return draws(rows, self.resamples, seed_of(self.seed, name))

    def _shift_mean(self, sets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        shifts = [sets[name] for name in self.groups.get(SHIFTS, ())]
        return {SHIFTS: _mean(shifts)} if shifts else {}

    def _group_means(self, sets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        groups = {group: list(self.groups.get(group, ())) for group in GROUPS} | {AVERAGE: self._unknown}
        return {group: _mean([sets[name] for name in names]) for group, names in groups.items() if names}


def compare(first: Evaluation, second: Evaluation) -> dict[str, dict[str, dict[str, Difference]]]:
    """First minus second, on the same draws of the same rows: for answers and for the score that has intervals."""
    digests = {name: first.digests.get(name) for name in first.judged}
    check_comparable(second, first.groups, digests, resamples=first.resamples, seed=first.seed, score=first.score)
    for name, rows in first.judged.items():
        if len(rows) != len(second.judged[name]):
            raise _different_rows(name)
    return {
        part: {
            name: {
                metric: difference(
                    first.figures[part][name][metric],
                    second.figures[part][name][metric],
                    values,
                    second.resampled[part][name][metric],
                )
                for metric, values in row.items()
            }
            for name, row in sets.items()
        }
        for part, sets in first.resampled.items()
    }


def check_comparable(
    other: Evaluation, groups: Mapping[str, Sequence[str]], digests: Mapping[str, str | None], **how: Any
) -> None:
    """Can an evaluation of these sets and rows, with these `resamples`, `seed` and `score`, be compared with another?

    All of it is known before a model is asked.
    """
    if {group: sorted(sets) for group, sets in groups.items()} != {
        group: sorted(sets) for group, sets in other.groups.items()
    }:
        raise EvaluationError("the evaluations have different sets; evaluate both by one protocol")
    for name, digest in digests.items():
        if digest != other.digests.get(name):
            raise _different_rows(name)
    for name, value in how.items():
        if value != getattr(other, name):
            raise EvaluationError(
                f"the evaluations have {name} {value} and {getattr(other, name)}; evaluate both with the same"
            )
    if not other.resamples:
        raise EvaluationError("a comparison needs resamples; evaluate both with resamples=1000")


def _different_rows(name: str) -> EvaluationError:
    return EvaluationError(f"the evaluations have different rows in '{name}'; evaluate both on the same data")


def differences_json(differences: Mapping[str, Mapping[str, Mapping[str, Difference]]]) -> dict[str, Any]:
    """What `compare` found, for a results file."""
    return {
        part: {row: {metric: vars(found) for metric, found in metrics.items()} for row, metrics in sets.items()}
        for part, sets in differences.items()
    }


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The unweighted mean over sets, of numbers or of resampled values."""
    return {
        metric: stack([row[metric] for row in rows]).mean(dim=0)
        if isinstance(rows[0][metric], Tensor)
        else sum(row[metric] for row in rows) / len(rows)
        for metric in rows[0]
    }


def _columns(rows: Judged) -> Iterator[tuple[str, Tensor]]:
    for part in fields(rows):
        value = getattr(rows, part.name)
        if part.name == "scores":
            yield from ((f"score {name}", values) for name, values in value.items())
        elif value is not None:
            yield part.name, value


def _from_columns(name: str, tensors: Mapping[str, Tensor]) -> Judged:
    columns = {key.partition("/")[2]: values for key, values in tensors.items() if key.partition("/")[0] == name}
    scores = {key.removeprefix("score "): values for key, values in columns.items() if key.startswith("score ")}
    return Judged(scores, **{key: values for key, values in columns.items() if not key.startswith("score ")})
