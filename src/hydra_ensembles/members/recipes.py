"""Fine-tuning recipes as data: the paper's appendices C.1.2, C.1.3 and C.2 (base models) and D.2 (pruned members)."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Real
from types import NoneType
from typing import Any, get_args

from hydra_ensembles.errors import HydraError

_CHOICES = {
    "optimiser": ("adamw", "sgd"),
    "decay": ("cosine", "linear", "none"),
    "precision": ("fp32", "bf16"),
    "stop_on": ("accuracy", "nll"),
    "keep": ("best", "last"),
}


class FineTuningError(HydraError):
    """Something that keeps a model from being fine-tuned."""


class Diverged(FineTuningError):
    """A loss that is not finite."""


@dataclass(frozen=True)
class Recipe:
    """How to fine-tune. `dataclasses.replace(recipe, steps=500)` is another recipe."""

    name: str
    learning_rate: float
    """The highest one, reached at the end of the warm-up."""
    learning_rate_grid: tuple[float, ...] = ()
    """Rates to choose from by validation; see `choose_learning_rate`."""
    head_learning_rate: float | None = None
    """The classifier's own rate; None: that of all."""
    epochs: int | None = None
    steps: int | None = None
    """One of `epochs` and `steps` is given."""
    batch_size: int = 32
    """For data that are tensors; batches keep theirs."""
    optimiser: str = "adamw"
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 0.0
    """Decoupled under AdamW; never on biases, norms and LayerScale."""
    warm_up: int | float = 0
    """Linear: a number of steps, or, below 1, a fraction of all steps."""
    decay: str = "cosine"
    floor: float = 0.0
    """Where the decay ends, as a fraction of `learning_rate`."""
    label_smoothing: float = 0.0
    dropout: float | None = None
    """Of the layers inside the blocks, attention weights apart; None: as the model has it."""
    clip_norm: float | None = None
    precision: str = "fp32"
    """`"bf16"` is autocast; the weights stay fp32."""
    evaluate_every: int | None = None
    """Steps between two looks at the validation set; None: at the end of each epoch."""
    patience: int | None = None
    """Stop after so many evaluations in a row without an improvement of more than `min_delta`; None: never."""
    min_delta: float = 0.0
    stop_on: str = "accuracy"
    """What improves: `"accuracy"` or `"nll"` of the validation set."""
    keep: str = "best"
    """Which weights stay: those of the `"best"` evaluation, or the `"last"`."""
    freeze_stem: bool = False
    freeze_blocks: int = 0
    """Freeze the stem and so many leading blocks: members that started alike share them as a trunk."""
    train_last_blocks: int | None = None
    """Train only so many last blocks, and the readout, never the stem; None: all."""
    head_only: bool = False
    """Train only the classifier, the last linear layer."""
    zero_head: bool = False
    """Set the classifier to zero first."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_kinds()
        object.__setattr__(self, "learning_rate_grid", tuple(self.learning_rate_grid))
        if (self.epochs is None) == (self.steps is None):
            raise FineTuningError(f"recipe '{self.name}': give either epochs or steps")
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise FineTuningError(
                    f"recipe '{self.name}': {field}={getattr(self, field)!r} is not known; it is one of "
                    f"{', '.join(map(repr, choices))}"
                )
        for field in (
            "epochs",
            "steps",
            "batch_size",
            "evaluate_every",
            "patience",
            "learning_rate",
            "head_learning_rate",
            "clip_norm",
        ):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise FineTuningError(f"recipe '{self.name}': {field} must be above 0, found {value!r}")
        for field in ("warm_up", "floor", "weight_decay", "min_delta", "freeze_blocks", "train_last_blocks"):
            if not (getattr(self, field) or 0) >= 0:
                raise FineTuningError(f"recipe '{self.name}': {field} must not be negative")
        for field in ("label_smoothing", "momentum", "dropout"):
            if not 0 <= (getattr(self, field) or 0) < 1:
                raise FineTuningError(f"recipe '{self.name}': {field} lies in [0, 1), found {getattr(self, field)!r}")

    def _check_kinds(self) -> None:
        """A file may hold text where a number or a yes or no is meant."""
        for field in fields(self):
            value, kinds = getattr(self, field.name), get_args(field.type) or (field.type,)
            if field.name == "learning_rate_grid":
                kind, fits = "a list of numbers", isinstance(value, list | tuple) and all(map(_is_number, value))
            elif bool in kinds:
                kind, fits = "true or false", isinstance(value, bool)
            elif {int, float} & set(kinds):
                kind, fits = "a number", _is_number(value) or (value is None and NoneType in kinds)
            else:
                continue
            if not fits:
                hint = "; YAML takes 1e-3 for text: write 1.0e-3" if "number" in kind and isinstance(value, str) else ""
                raise FineTuningError(f"recipe {self.name!r}: {field.name} must be {kind}, found {value!r}{hint}")

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {**asdict(self), "learning_rate_grid": list(self.learning_rate_grid)}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> "Recipe":
        """Read the fields written by `to_json`; what is left out has its usual value."""
        known = [field.name for field in fields(cls)]
        for name in config:
            if name not in known:
                raise FineTuningError(f"a recipe has no '{name}'; it has {', '.join(known)}")
        for name in ("name", "learning_rate"):
            if name not in config:
                raise FineTuningError(f"a recipe must say its '{name}'")
        return cls(**config)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def warm_up_steps(steps: int, recipe: Recipe) -> int:
    """How many of `steps` are warm-up."""
    share = recipe.warm_up
    return min(steps, int(share * steps) if share < 1 else int(share))


def rate_at(step: int, steps: int, recipe: Recipe) -> float:
    """The learning rate of a step (from 0): it rises to its highest over the warm-up, then decays to the floor.

    >>> recipe = Recipe("short", learning_rate=1.0, steps=8, warm_up=4, decay="linear")
    >>> [rate_at(step, 8, recipe) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    rising = warm_up_steps(steps, recipe)
    if step < rising:
        return recipe.learning_rate * (step + 1) / rising
    if recipe.decay == "none":
        return recipe.learning_rate
    gone = min(1.0, (step - rising) / max(1, steps - rising))
    left = 1 - gone if recipe.decay == "linear" else 0.5 * (1 + math.cos(math.pi * gone))
    return recipe.learning_rate * (recipe.floor + (1 - recipe.floor) * left)


def recipe_named(recipe: "Recipe | str") -> Recipe:
    """A recipe by its name, or the recipe itself."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise FineTuningError(f"there is no recipe '{recipe}'; there are {', '.join(RECIPES)}")
    return RECIPES[recipe]


def changed(recipe: "Recipe | str", **changes: Any) -> Recipe:
    """A recipe, or the one of that name, with every field that is not given as None."""
    return replace(recipe_named(recipe), **{field: value for field, value in changes.items() if value is not None})


# The paper names no batch size for classifiers. Images: 512, as Dosovitskiy et al. (2020), whom C.1 follows, fine-tune;
# texts: 32, as Devlin et al. (2019) do. Where it gives a grid of learning rates, `learning_rate` is one of its middle.
_IMAGE = {"optimiser": "sgd", "momentum": 0.9, "decay": "cosine", "batch_size": 512}
_TEXT = {"optimiser": "adamw", "decay": "linear", "batch_size": 32}

# C.1.2 and C.1.3 stop "at validation convergence" without a number: three evaluations, and the NLL, are our choice.
# Both say "cosine decay over N steps" after the warm-up and call N the step budget: N is taken as the total, as in D.2.
_CONVERGED = {"patience": 3, "stop_on": "nll"}

# C.2: early stopping on accuracy, patience 2, delta 5e-4, an evaluation an epoch, the best epoch is kept.
_BEST_EPOCH = {"patience": 2, "min_delta": 5e-4, "stop_on": "accuracy", "keep": "best"}

# D.2 unfreezes "attention modules, MLPs, LayerNorms and the classifier head": everything but the stem. (A norm inside
# the stem, as BERT's, stays frozen with it here, so that members keep sharing the stem.) No early stopping is named for
# images, so the last weights stay.
_PRUNED_IMAGE = {**_IMAGE, "floor": 1e-5, "label_smoothing": 0.1, "freeze_stem": True, "keep": "last"}

# D.2, CIFAR-100.
_PRUNED_CIFAR = {
    "learning_rate": 0.01,
    "learning_rate_grid": (0.001, 0.003, 0.01, 0.03),
    "warm_up": 500,
    "steps": 10_000,
    "zero_head": True,
    **_PRUNED_IMAGE,
}

_ALL: tuple[dict[str, Any], ...] = (
    # C.1.2: SGD, no weight decay, no dropout, 500 steps of warm-up, cosine, 20,000 steps.
    {
        "name": "imagenet-base",
        "learning_rate": 0.03,
        "learning_rate_grid": (0.003, 0.01, 0.03, 0.06),
        "warm_up": 500,
        "steps": 20_000,
        "dropout": 0.0,
        **_IMAGE,
        **_CONVERGED,
    },
    # C.1.3: the same, 10,000 steps, a lower grid.
    {
        "name": "cifar100-base",
        "learning_rate": 0.01,
        "learning_rate_grid": (0.001, 0.003, 0.01, 0.03),
        "warm_up": 500,
        "steps": 10_000,
        "dropout": 0.0,
        **_IMAGE,
        **_CONVERGED,
    },
    # C.2: AdamW, 8e-6, weight decay 0.01 but not on biases and LayerNorm, 10 % warm-up, linear, clip 1.0, 7 epochs.
    {
        "name": "sst2-base",
        "learning_rate": 8e-6,
        "weight_decay": 0.01,
        "warm_up": 0.1,
        "clip_norm": 1.0,
        "epochs": 7,
        **_TEXT,
        **_BEST_EPOCH,
    },
    # D.2, ImageNet-1k: 5,000 steps of warm-up, cosine to a floor of 1e-5, 120,000 steps, dropout 0.1 in each layer.
    {
        "name": "imagenet",
        "learning_rate": 0.03,
        "learning_rate_grid": (0.003, 0.01, 0.03, 0.06),
        "warm_up": 5_000,
        "steps": 120_000,
        "dropout": 0.1,
        **_PRUNED_IMAGE,
    },
    # D.2, CIFAR-100, contradicts itself: "only the last five Transformer blocks are updated" and, a few lines on, "we
    # fine-tune only the final classification layer". The first is the recipe, the second another one.
    {"name": "cifar100", "train_last_blocks": 5, **_PRUNED_CIFAR},
    {"name": "cifar100-head", "head_only": True, **_PRUNED_CIFAR},
    # D.2, SST-2: AdamW (though D.2 opens with "train with SGD"), 1e-5, 10 % warm-up, linear to zero, clip 1.0, no label
    # smoothing, the model's own dropout. Weight decay, epochs and stopping are not given: those of C.2.
    {
        "name": "sst2",
        "learning_rate": 1e-5,
        "weight_decay": 0.01,
        "warm_up": 0.1,
        "clip_norm": 1.0,
        "epochs": 7,
        "freeze_stem": True,
        **_TEXT,
        **_BEST_EPOCH,
    },
)
RECIPES: dict[str, Recipe] = {settings["name"]: Recipe(**settings) for settings in _ALL}
"""The paper's recipes by name; `-base` trains a whole model before pruning, the others a pruned member."""
