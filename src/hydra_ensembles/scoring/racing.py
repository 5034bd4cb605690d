"""A race of candidates on growing parts of the data: a candidate leaves as soon as it can hardly win.

Candidates are compared in pairs on the same rows, so what a row does to all of them cancels out. Between removals each
candidate keeps its last known gain (its score minus that of the network it would leave); those whose gain is too far
behind do not start at all.

Shapes: A candidates, N known rows, U unknown rows.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hydra_ensembles.heads import Head
from hydra_ensembles.scoring.objectives import Outcome, influences, scores

PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The shares of the data after which candidates are compared."""

Ask = Callable[[Sequence[Head], float, float], tuple[Outcome, Outcome]]
"""Candidates, from which share of the data, to which: their outcomes, and that of the network as it is."""


class Gain(NamedTuple):
    """What was last known of a candidate: its gain, the sampling error of it, how far gains have moved since."""

    mean: float
    error: float
    drift: float


class Finish(NamedTuple):
    """The result of a race. `rival`: the highest probability of one passed over to be the better; `regret`: points."""

    winner: Head
    score: float
    score_before: float
    rival: float
    regret: float


class Race:
    """Races, one a removal, with what they taught about the candidates."""

    def __init__(self, objective: str, risk: float):
        self.objective, self.bar = objective, -NormalDist().inv_cdf(risk)
        self.memory: dict[Head, Gain] = {}

    def run(self, candidates: Sequence[Head], ask: Ask) -> Finish:
        """One race; the winner's score and that before it are of the whole data."""
        alive, waiting = self._entered(candidates)
        doubts = [(self._behind(gain, alive), head) for head, gain in waiting.items()]
        zs = [z for z, _ in doubts]
        losses = [_expected_loss(z, math.hypot(waiting[head].error, waiting[head].drift)) for z, head in doubts]
        found: Outcome | None = None
        own: Outcome | None = None
        gains: dict[Head, Gain] = {}
        start = 0.0
        for end in PARTS:
            more, more_own = ask(alive, start, end)
            start = end
            found = more if found is None else Outcome.join([found, more])
            own = more_own if own is None else Outcome.join([own, more_own])
            if not _comparable(self.objective, own):
                continue
            points = scores(self.objective, found)
            difference, error = paired(self.objective, found, own)
            gains |= {h: Gain(d, e, 0.0) for h, d, e in zip(alive, difference.tolist(), error.tolist(), strict=True)}
            if end == 1.0:
                break
            leader = int(points.argmax())
            behind, spread = paired(self.objective, found, found[leader : leader + 1])
            stays = []
            for place, (d, e) in enumerate(zip(behind.tolist(), spread.tolist(), strict=True)):
                z = d / e if e > 0 else (0.0 if d == 0 else math.copysign(math.inf, d))
                if place == leader or z >= -self.bar:
                    stays.append(place)
                else:
                    zs.append(z)
                    losses.append(_expected_loss(z, e))
            found = found[torch.tensor(stays)]
            alive = [alive[place] for place in stays]
        assert found is not None
        assert own is not None
        points = scores(self.objective, found)
        best = int(points.argmax())
        self._learn(gains, alive[best])
        rival = max((NormalDist().cdf(z) for z in zs if z > -8), default=0.0)
        return Finish(
            alive[best], float(points[best]), float(scores(self.objective, own)[0]), rival, max(losses, default=0.0)
        )

    def _entered(self, candidates: Sequence[Head]) -> tuple[list[Head], dict[Head, Gain]]:
        known = {head: self.memory[head] for head in candidates if head in self.memory}
        if not known:
            return list(candidates), {}
        top = max(gain.mean for gain in known.values())
        waiting = {
            head: gain
            for head, gain in known.items()
            if gain.mean + self.bar * math.hypot(gain.error, gain.drift) < top
        }
        return [head for head in candidates if head not in waiting], waiting

    def _behind(self, gain: Gain, alive: Sequence[Head]) -> float:
        top = max((self.memory[head].mean for head in alive if head in self.memory), default=gain.mean)
        spread = math.hypot(gain.error, gain.drift)
        return (gain.mean - top) / spread if spread > 0 else (0.0 if gain.mean == top else -math.inf)

    def _learn(self, gains: dict[Head, Gain], winner: Head) -> None:
        """Keep the new gains; the others may have moved as much as those that were seen twice did."""
        moves = [gains[head].mean - self.memory[head].mean for head in gains if head in self.memory]
        drift = math.sqrt(sum(move * move for move in moves) / len(moves)) if moves else 0.0
        for head, gain in self.memory.items():
            self.memory[head] = gain._replace(drift=math.hypot(gain.drift, drift))
        self.memory |= gains
        self.memory.pop(winner, None)

    def memory_json(self) -> list[list[Any]]:
        """What a journal must keep."""
        return [[*head, *gain] for head, gain in self.memory.items()]

    def restore(self, winner: Head, memory: list[list[Any]]) -> None:
        """What a journal kept."""
        self.memory = {Head(*row[:3]): Gain(*row[3:]) for row in memory}
        self.memory.pop(winner, None)


def paired(objective: str, found: Outcome, against: Outcome) -> tuple[Tensor, Tensor]:
    """Each candidate's score minus that of `against` (one), and its sampling error, rows taken in pairs `(A,)`."""
    (known_AN, unknown_AU), (known_1N, unknown_1U) = influences(objective, found), influences(objective, against)
    known, unknown = known_AN - known_1N, unknown_AU - unknown_1U
    variance = known.var(dim=-1, correction=0) / max(known.shape[-1], 1)
    if unknown.shape[-1]:
        variance = variance + unknown.var(dim=-1, correction=0) / unknown.shape[-1]
    return known.mean(dim=-1), variance.sqrt()


def _comparable(objective: str, own: Outcome) -> bool:
    return own.known_AN.shape[-1] > 0 and (objective == "acc" or own.unknown_AU.shape[-1] > 0)


def _expected_loss(z: float, error: float) -> float:
    """E[max(0, X)] of X ~ N(z * error, error): what passing a candidate over costs on average."""
    if z < -8 or error == 0:
        return 0.0
    normal = NormalDist()
    return error * (normal.pdf(z) + z * normal.cdf(z))
