"""Which heads may go in a run, and how many do."""

from hydra_ensembles.heads import Head, HeadSet
from hydra_ensembles.members.selection import POOL_SHARE
from hydra_ensembles.pipeline.recipe import RunRecipe


def behind_trunk(recipe: RunRecipe, heads: HeadSet) -> list[Head]:
    """The heads that `members.keep` is counted in."""
    return [head for head in heads if head.layer >= recipe.members.shared]


def may_go(recipe: RunRecipe, heads: HeadSet) -> list[Head]:
    """Of these, those in the towers that heads are taken from."""
    towers = recipe.ranking.towers
    return [head for head in behind_trunk(recipe, heads) if towers in ("both", head.tower)]


def lost(recipe: RunRecipe, heads: HeadSet) -> int:
    """How many heads a member loses."""
    return len(behind_trunk(recipe, heads)) - recipe.members.kept


def ranked(recipe: RunRecipe, heads: HeadSet) -> int:
    """How many heads a ranking must have in all: what a member loses, or what members draw from."""
    pool = recipe.members.pool or round(len(may_go(recipe, heads)) * POOL_SHARE)
    if recipe.members.how == "sample":
        return pool
    return max(pool, lost(recipe, heads)) if draws_where_two_coincide(recipe) else lost(recipe, heads)


def draws_where_two_coincide(recipe: RunRecipe) -> bool:
    """Has every member a ranking of its own, of which more heads may go than must?"""
    return recipe.members.how == "calibration" and recipe.ranking.method == "taylor-global"
