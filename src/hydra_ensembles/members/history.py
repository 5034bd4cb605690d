"""What happened in a fine-tuning, step by step, and how it is shown while it happens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hydra_ensembles.members.checkpoint import is_first_process
from hydra_ensembles.members.recipes import Recipe


class Evaluation(NamedTuple):
    """A look at the validation set after `step` steps; of a hydra, the mean of its members."""

    step: int
    nll: float
    accuracy: float


class Step(NamedTuple):
    """One step that was just made: what a progress callback receives."""

    step: int
    """Steps made so far."""
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    evaluation: Evaluation | None
    """The evaluation made after this step, if any."""


@dataclass
class History:
    """How a fine-tuning went."""

    recipe: Recipe
    trained_parameters: int
    steps_planned: int
    losses: list[float] = field(default_factory=list)
    """The training loss of every step."""
    evaluations: list[Evaluation] = field(default_factory=list)
    best_step: int | None = None
    """The step of the best evaluation; whether its weights were kept, `recipe.keep` says."""
    stopped_early: bool = False
    seconds: float = 0.0

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation, by `recipe.stop_on`; None without a validation set."""
        return next((found for found in self.evaluations if found.step == self.best_step), None)

    @property
    def kept(self) -> Evaluation | None:
        """The evaluation of the weights that were kept: the best, or the last, which comes after the last step."""
        last = self.evaluations[-1] if self.evaluations else None
        return self.best if self.recipe.keep == "best" else last

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {
            **asdict(self),
            "recipe": self.recipe.to_json(),
            "evaluations": [found._asdict() for found in self.evaluations],
        }

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "History":
        """Read the fields written by `to_json`."""
        recipe = Recipe.from_json(config["recipe"])
        evaluations = [Evaluation(**found) for found in config["evaluations"]]
        return cls(**{**config, "recipe": recipe, "evaluations": evaluations})


Show: TypeAlias = Callable[[Step], object]


@contextmanager
def shown(progress: bool | Show | None, title: str) -> Iterator[Show]:
    """A function that shows each step: the caller's own, a bar (None: on a terminal only), or nothing."""
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True)
    if not (console.is_terminal if progress is None else progress) or not is_first_process():
        yield lambda _: None
        return
    text = "loss {task.fields[loss]:.4f}  rate {task.fields[rate]:.1e}  {task.fields[found]}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(text))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=None, loss=float("nan"), rate=0.0, found="")

        def show(step: Step) -> None:
            found = step.evaluation
            seen = {} if found is None else {"found": f"val acc {found.accuracy:.4f} nll {found.nll:.4f}"}
            fields: dict[str, Any] = {"loss": step.loss, "rate": step.learning_rate, **seen}
            bar.update(task, completed=step.step, total=step.steps, **fields)

        yield show
