"""What a stage works on: the base, the members or the hydra, from the stages before it."""

from typing import Any

from torch import nn

from hydra_ensembles.backbones.references import load_model, settings_for_classes
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.heads import Member, name_classes
from hydra_ensembles.members.checkpoint import own_randomness, seed_all
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.stage import Work


def load_backbone(recipe: RunRecipe) -> nn.Module:
    """The model that the recipe starts from; what is random in it comes from the recipe's seed."""
    reference = recipe.backbone.model
    with own_randomness():
        seed_all(recipe.seed)
        settings: dict[str, Any] = {**settings_for_classes(reference, recipe.backbone.classes)}
        return load_model(reference, **settings)


def load_base(work: Work) -> nn.Module:
    """The base model: fine-tuned, or as it was loaded."""
    model = Member.load(work.done["base"] / "model") if "base" in work.done else load_backbone(work.recipe)
    return model.to(work.device)


def subject(work: Work) -> nn.Module:
    """The base model, which knows the names of its classes."""
    model = load_base(work)
    if "base" not in work.done:
        name_classes(model, work.splits.classes)
    return model


def answering(name: str, work: Work) -> Any:
    """The base, the members, or the hydra, from the stages before."""
    if name == "members":
        paths = [path for stage, path in work.done.items() if stage.startswith("member-")]
        return [Member.load(path / "member").to(work.device) for path in paths]
    if name == "hydra":
        return Hydra.load((work.done.get("decisions") or work.done["fusion"]) / "hydra").to(work.device)
    return subject(work)


def one_of(model: Any) -> nn.Module:
    one: nn.Module = model[0] if isinstance(model, list) else model
    return one
