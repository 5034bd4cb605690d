"""Rankings: heads in the order in which they are removed, with the score after each removal."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra_ensembles.errors import HydraError
from hydra_ensembles.heads.head_set import Head, HeadSet, HeadSetError
from hydra_ensembles.store import whole

FORMAT_VERSION = 1


class RankingError(HydraError):
    """A ranking that cannot be read, or cannot answer what is asked."""


@dataclass(frozen=True)
class HeadRanking:
    """The heads of `start`, least needed first.

    `scores[i]` belongs to `removed[i]`: of a circuit, the objective after that removal (`start_score` before the
    first); of Taylor, the head's importance. `budget` is set where a ranking holds at one number of removals only
    (Taylor per layer); otherwise any prefix is a circuit of its own.

    >>> start = HeadSet.of({"vision": [[0, 1], [0, 1]]}, {"vision": [2, 2]})
    >>> ranking = HeadRanking(start, (Head("vision", 1, 0), Head("vision", 0, 1)), (0.8, 0.7))
    >>> ranking.keep(3)["vision"]
    ((0, 1), (1,))
    """

    start: HeadSet
    removed: tuple[Head, ...]
    scores: tuple[float, ...]
    start_score: float | None = None
    budget: int | None = None
    how: dict[str, Any] = field(default_factory=dict)
    """What made it: method, objective, data, work."""

    def __post_init__(self) -> None:
        if len(self.removed) != len(self.scores):
            raise RankingError(f"{len(self.removed)} heads are ranked, but there are {len(self.scores)} scores")
        if len(set(self.removed)) != len(self.removed):
            raise RankingError("a head is removed twice")
        gone = [head for head in self.removed if head not in set(self.start)]
        if gone:
            raise RankingError(f"{gone[0]} is removed, but was not there at the start")

    def __len__(self) -> int:
        return len(self.removed)

    def without_first(self, number: int) -> HeadSet:
        """What is left after the first `number` removals."""
        if not 0 <= number <= len(self.removed):
            raise RankingError(f"the ranking removes {len(self.removed)} heads, {number} are asked for; rank more")
        if self.budget is not None and number not in (0, self.budget):
            raise RankingError(
                f"this ranking holds at {self.budget} removals only, {number} are asked for: its scores were computed "
                "anew after every layer; rank again with another budget, or with scope='global'"
            )
        return self.start.without(self.removed[:number])

    def keep(self, heads: int, trunk: int = 0) -> HeadSet:
        """The circuit that keeps `heads` heads in all; with a trunk, in the layers behind it."""
        self.check_spares(trunk)
        behind = sum(head.layer >= trunk for head in self.start)
        if not 0 <= heads <= behind:
            raise RankingError(f"cannot keep {heads} of {behind} heads")
        return self.without_first(behind - heads)

    def check_spares(self, trunk: int) -> None:
        """Refuse a trunk that the model does not have, and a ranking that removes heads of it."""
        depth = max(len(layers) for layers in self.start.kept)
        if not 0 <= trunk <= depth:
            raise RankingError(f"the model has {depth} blocks, a trunk of {trunk} is asked for")
        early = [head for head in self.removed if head.layer < trunk]
        if early:
            raise RankingError(
                f"the ranking removes {early[0]}, which lies in the trunk of {trunk} blocks; rank with "
                f"layers=range({trunk}, {depth})"
            )

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "ranking",
            "how": self.how,
            "start": self.start.to_json(),
            "start_score": self.start_score,
            "budget": self.budget,
            "removed": [list(head) for head in self.removed],
            "scores": list(self.scores),
        }

    @classmethod
    def from_json(cls, ranking: dict[str, Any]) -> "HeadRanking":
        """Read what `to_json` wrote."""
        try:
            if ranking["kind"] != "ranking" or ranking["format_version"] > FORMAT_VERSION:
                raise RankingError(
                    f"this is a {ranking['kind']} of format {ranking['format_version']}; a ranking up to format "
                    f"{FORMAT_VERSION} is read"
                )
            return cls(
                HeadSet.from_json(ranking["start"]),
                tuple(Head(str(tower), int(layer), int(index)) for tower, layer, index in ranking["removed"]),
                tuple(float(score) for score in ranking["scores"]),
                ranking["start_score"],
                ranking["budget"],
                ranking["how"],
            )
        except (KeyError, TypeError, ValueError, HeadSetError) as error:
            raise RankingError(f"this is not a ranking of ours ({type(error).__name__}: {error})") from None

    def save(self, path: str | Path) -> Path:
        """Write a JSON file."""
        path = Path(path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as draft:
            draft.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "HeadRanking":
        """Read a JSON file."""
        try:
            content = json.loads(Path(path).expanduser().read_text())
        except OSError as error:
            raise RankingError(f"{path}: {error.strerror}; write a ranking with 'hydra-ens rank'") from None
        except ValueError as error:
            raise RankingError(f"{path} is not JSON ({error})") from None
        try:
            return cls.from_json(content)
        except RankingError as error:
            raise RankingError(f"{path}: {error}") from None
