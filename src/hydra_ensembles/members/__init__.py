"""Members: from rankings to M head sets; fine-tuning."""

from hydra_ensembles.members.finetuning import finetune
from hydra_ensembles.members.history import Evaluation, History, Step
from hydra_ensembles.members.parallel import finetune_members
from hydra_ensembles.members.rates import choose_learning_rate
from hydra_ensembles.members.recipes import RECIPES, FineTuningError, Recipe, rate_at
from hydra_ensembles.members.selection import Selection, SelectionError, select_members

__all__ = [
    "RECIPES",
    "Evaluation",
    "FineTuningError",
    "History",
    "Recipe",
    "Selection",
    "SelectionError",
    "Step",
    "choose_learning_rate",
    "finetune",
    "finetune_members",
    "rate_at",
    "select_members",
]
