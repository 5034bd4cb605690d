"""Recipes: one file from a pre-trained model to an evaluated hydra; stages are cached by the hash of their inputs."""

from hydra_ensembles.pipeline.reading import RecipeError, parse_recipe, read_recipe
from hydra_ensembles.pipeline.recipe import RunRecipe
from hydra_ensembles.pipeline.running import Run, planned, run
from hydra_ensembles.pipeline.splits import SplitError, Splits

__all__ = ["RecipeError", "Run", "RunRecipe", "SplitError", "Splits", "parse_recipe", "planned", "read_recipe", "run"]
