"""A recipe: one file that names backbone, data, ranking, members, fine-tuning, fusion, decisions and evaluation.

The classes are the file's sections and its JSON schema; what is not known is refused.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model, model_validator
from pydantic_core import PydanticCustomError

from hydra_ensembles.members import RECIPES
from hydra_ensembles.members.recipes import FineTuningError, Recipe

Objective = Literal["acc", "ood", "avg"]
Score = Literal["msp", "entropy", "mutual_information", "energy", "max_logit"]


class Section(BaseModel):
    """A part of the file; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TrainingBase(Section):
    """A fine-tuning recipe of the library by its name, and what is to be otherwise."""

    recipe: Literal[tuple(RECIPES)] = Field(description="One of the paper's recipes.")  # type: ignore[valid-type]

    def settings(self, seed: int) -> Recipe:
        """The recipe with its changes."""
        changes = self.model_dump(exclude={"recipe"}, exclude_unset=True)
        if "epochs" in changes or "steps" in changes:
            changes = {"epochs": None, "steps": None, **changes}
        try:
            return replace(RECIPES[self.recipe], **{"seed": seed, **changes})
        except FineTuningError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainingBase":
        self.settings(0)
        return self


def _optional_fields() -> dict[str, Any]:
    """Every setting of a fine-tuning recipe, none of them required."""
    types, left_out = get_type_hints(Recipe), ("name", "learning_rate_grid", "seed")
    known = [field.name for field in fields(Recipe) if field.name not in left_out]
    assert all(field.default is not MISSING or field.name in ("name", "learning_rate") for field in fields(Recipe))
    # What is left out is the recipe's; null is for what may be None there, and means that.
    return {name: (types[name], None) for name in known}


Training: Any = create_model("Training", __base__=TrainingBase, __doc__=TrainingBase.__doc__, **_optional_fields())


class BackboneSection(Section):
    """The model to start from."""

    model: str = Field(description="A reference, as for `hydra-ens inspect`; ${VAR} and ${VAR:-otherwise} expand.")
    classes: int | None = Field(default=None, ge=2, description="Classes of a model that has no classifier yet.")
    finetune: Training | None = Field(default=None, description="Train the whole model first.")


class DataSection(Section):
    """The data sets, by what they may be used for. `[:3000]` behind a reference chooses rows."""

    train: str | None = Field(default=None, description="Known inputs with labels, for training.")
    id_val: str = Field(description="Known inputs with labels, to choose heads and to stop early.")
    ood_val: str | None = Field(default=None, description="Unknown inputs to choose heads with; never a test set.")
    id_cal: str | None = Field(
        default=None, description="Known inputs for temperature, threshold and sets; else id_val."
    )
    id_test: str = Field(description="Known inputs with labels, for evaluation alone.")
    near: dict[str, str] = Field(default_factory=dict, description="Unknown inputs much like known ones, by name.")
    far: dict[str, str] = Field(default_factory=dict, description="Unknown inputs of another kind, by name.")
    shifts: list[str] = Field(default_factory=list, description="Corruptions of id_test, as gaussian_noise/3.")
    batch_size: int = Field(default=64, ge=1, description="Inputs at a time, but for training.")
    max_tokens: int | None = Field(default=None, ge=1, description="Cut texts at so many tokens.")
    first_size: int | None = Field(default=None, ge=1, description="Bring every image to this size first.")
    augment: Literal["none", "flip", "crop", "resized-crop"] = Field(default="none", description="Of training images.")
    text: str | list[str] | None = Field(
        default=None, description="The column with texts, where it is not found by itself."
    )
    image: str | None = Field(default=None, description="The column with images.")
    label: str | None = Field(default=None, description="The column with labels, of sets that have them.")
    allow_seen: bool = Field(default=False, description="Evaluate also on sets that were used to choose.")


class RankingSection(Section):
    """In which order heads can go."""

    method: Literal["circuit", "taylor", "taylor-global"] = "circuit"
    objectives: list[Objective] = Field(default=["acc", "ood", "avg"], min_length=1, description="A circuit for each.")
    search: Literal["fast", "lazy", "plain"] = "fast"
    towers: Literal["both", "vision", "text"] = Field(
        default="both", description="Of a zero-shot classifier: the towers that heads are taken from."
    )
    rows: int | None = Field(
        default=None, ge=1, description="Rows of each validation set to search with; all by default."
    )
    batch_size: int = Field(default=16, ge=1, description="Inputs at a time; a lazy search looks at batch after batch.")


_SHARE = "^[1-9][0-9]*/[1-9][0-9]*$"


def _amount(least: int) -> Callable[[Any], Any]:
    """Takes a number, or a share as text."""

    def checked(value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not is_number and not (isinstance(value, str) and re.fullmatch(_SHARE, value)):
            told = f"input should be a whole number, {least} or more, or a share such as 2/3"
            raise PydanticCustomError("amount", told)
        return value

    return checked


def _in_schema(least: int) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": least}, {"type": "string", "pattern": _SHARE}]})


Heads = Annotated[int | str, BeforeValidator(_amount(1)), _in_schema(1)]
Blocks = Annotated[int | str, BeforeValidator(_amount(0)), _in_schema(0)]


class MembersSection(Section):
    """From rankings to members."""

    keep: Heads = Field(
        description="Heads a member keeps in all, or a share of them, as 2/3; with a trunk, of those behind it."
    )
    number: int = Field(default=3, ge=1, description="How many members.")
    how: Literal["objectives", "sample", "calibration", "joint"] = "objectives"
    trunk: Blocks = Field(
        default=0,
        description="Leading blocks that all members share, with all their heads: a number, or a share, as 1/2.",
    )
    pool: int | None = Field(
        default=None,
        ge=1,
        description="Of 'sample', and of 'calibration' where two members coincide: how many heads of a ranking may go.",
    )

    @property
    def kept(self) -> int:
        """`keep` as a number, in a recipe whose shares were counted."""
        assert isinstance(self.keep, int)
        return self.keep

    @property
    def shared(self) -> int:
        """`trunk` as a number, likewise."""
        assert isinstance(self.trunk, int)
        return self.trunk


class FusionSection(Section):
    """From members to one network."""

    mlp: Literal["average", "grouped"] = "average"
    last_block: Literal["read", "full"] = "read"


class DecisionsSection(Section):
    """What is fitted after training, so that the model can say that it does not know."""

    temperature: Literal["ensemble", "members", "none"] = "ensemble"
    score: Score = "msp"
    accept: float = Field(default=0.95, gt=0, le=1, description="The share of known inputs not called unknown.")
    coverage: float = Field(default=0.9, gt=0, lt=1, description="How often a prediction set holds the right label.")
    sets: Literal["thr", "aps"] = "thr"


class EvaluationSection(Section):
    """What is evaluated, and how."""

    models: list[Literal["base", "members", "hydra"]] = Field(default=["base", "members", "hydra"], min_length=1)
    detectors: bool = Field(default=False, description="KNN, Mahalanobis and ViM on the base model.")
    score: Score = Field(default="msp", description="The score whose figures get intervals.")
    resamples: int = Field(default=1000, ge=0, description="Of the bootstrap; 0 for no intervals.")
    latency_rounds: int = Field(
        default=20, ge=0, description="In each, every evaluated model answers once, in turn; 0 for no latency."
    )
    latency_batch: int = Field(default=4, ge=1, description="Random inputs at once, of which latency is measured.")


class RunRecipe(Section):
    """One run, from a pre-trained model to an evaluated hydra."""

    name: str = Field(pattern=r"^\w[\w.-]*$")
    seed: int = Field(default=0, ge=0)
    threads: int | None = Field(default=None, ge=1, description="CPU threads; all by default.")
    output: str | None = Field(default=None, description="A directory; runs/NAME by default.")
    backbone: BackboneSection
    data: DataSection
    ranking: RankingSection = RankingSection()
    members: MembersSection
    finetuning: Training | None = Field(default=None, description="Of the members; without it they stay as pruned.")
    fusion: FusionSection = FusionSection()
    decisions: DecisionsSection | None = DecisionsSection()
    evaluation: EvaluationSection = EvaluationSection()

    @model_validator(mode="after")
    def _fits_together(self) -> "RunRecipe":
        ranking, members, data = self.ranking, self.members, self.data
        if len(set(ranking.objectives)) < len(ranking.objectives):
            raise ValueError("an objective stands twice in ranking.objectives; each gives one circuit")
        if ranking.method == "circuit":
            wanted = {"objectives": members.number, "sample": 1, "joint": 1}.get(members.how)
            if wanted is None:
                raise ValueError("members.how 'calibration' takes Taylor rankings; set ranking.method to 'taylor'")
            if len(ranking.objectives) != wanted:
                raise ValueError(
                    f"members.how '{members.how}' with {members.number} members takes {wanted} objectives, "
                    f"found {len(ranking.objectives)}; members.how 'sample' draws members from one ranking"
                )
            if data.ood_val is None and set(ranking.objectives) != {"acc"}:
                raise ValueError("the objectives 'ood' and 'avg' need data.ood_val")
            if members.how == "joint" and ranking.towers != "both":
                raise ValueError("members.how 'joint' takes heads from all towers; leave out ranking.towers")
        elif members.how not in ("calibration", "sample"):
            raise ValueError(f"a Taylor ranking takes members.how 'calibration' or 'sample', found '{members.how}'")
        elif members.how == "sample" and ranking.method == "taylor":
            raise ValueError("a Taylor ranking per layer holds at its own budget; draw from method 'taylor-global'")
        if data.train is None and (self.finetuning is not None or self.backbone.finetune is not None):
            raise ValueError("fine-tuning needs data.train")
        models = self.evaluation.models
        if len(set(models)) < len(models):
            raise ValueError("a model stands twice in evaluation.models; each is evaluated once")
        if self.evaluation.detectors and "base" not in models:
            raise ValueError("evaluation.detectors are those of the base model; put 'base' among evaluation.models")
        names = [*data.near, *data.far]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two OOD sets are called '{twice}'; give each its own name")
        return self
