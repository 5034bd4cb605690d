"""`describe`: a model's sites, heads, parameters and multiply-adds, to look at."""

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from torch import nn

from hydra_ensembles.backbones import Backbone
from hydra_ensembles.heads.cost import Cost, attention_cost, block_cost, single_cost, tokens_of
from hydra_ensembles.heads.head_set import HeadSet
from hydra_ensembles.heads.member import Member

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Site:
    """One attention layer: its heads, and what it and its whole block cost."""

    tower: str
    layer: int
    num_heads: int
    head_dim: int
    attention: Cost
    block: Cost


@dataclass(frozen=True)
class Description:
    """What `describe` found; prints as a table."""

    model: str
    sites: tuple[Site, ...]
    tokens: dict[str, int]
    """Tokens per input, by tower, at which multiply-adds were counted."""
    total: Cost

    @property
    def num_heads(self) -> int:
        """Heads in all."""
        return sum(site.num_heads for site in self.sites)

    def __rich__(self) -> "Table":
        from rich.table import Table

        title = (
            f"{self.model}: {self.num_heads} heads, {millions(self.total.params)} parameters, "
            f"{billions(self.total.mult_adds)} multiply-adds"
        )
        tokens = ", ".join(f"{n} {tower}" for tower, n in self.tokens.items())
        table = Table(title=title, caption=f"multiply-adds per input of {tokens} tokens", title_justify="left")
        for name in ("tower", "layers"):
            table.add_column(name)
        for name in ("heads", "head dim", "attention", "whole block", "multiply-adds"):
            table.add_column(name, justify="right")
        for _, same in groupby(self.sites, key=lambda s: (s.tower, s.num_heads, s.head_dim, s.block)):
            run = list(same)
            site, layers = run[0], f"{run[0].layer}–{run[-1].layer}" if len(run) > 1 else str(run[0].layer)
            table.add_row(
                site.tower,
                layers,
                str(site.num_heads),
                str(site.head_dim),
                millions(site.attention.params),
                millions(site.block.params),
                billions(site.block.mult_adds),
            )
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def describe(model: nn.Module, text_tokens: int | None = None) -> Description:
    """Sites, heads, parameters and multiply-adds of a model or member.

    `text_tokens`: tokens per text at which multiply-adds are counted (128 unless said; a causal text tower's
    context length).
    """
    inner = model.model if isinstance(model, Member) else model
    backbone = inner if isinstance(inner, Backbone) else Backbone.of(inner)
    tokens = {name: tokens_of(tower, text_tokens) for name, tower in backbone.towers.items()}
    sites = tuple(
        Site(
            tower,
            layer,
            block.attention.num_heads,
            block.attention.head_dim,
            attention_cost(block, tokens[tower], tokens[tower]),
            block_cost(block, tokens[tower], tokens[tower]),
        )
        for tower, layer, block in backbone.blocks()
    )
    return Description(type(inner).__name__, sites, tokens, single_cost(backbone, HeadSet.all(backbone), text_tokens))


def millions(number: int) -> str:
    """A number of parameters, in millions.

    >>> millions(86_567_656)
    '86.57 M'
    """
    return f"{number / 1e6:.2f} M"


def billions(number: int) -> str:
    """A number of multiply-adds, in billions.

    >>> billions(17_563_828_224)
    '17.564 G'
    """
    return f"{number / 1e9:.3f} G"
