"""`hydra-ens inspect`: what a model is made of, and what a hydra of it would cost."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from hydra_ensembles.cli.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydra_ensembles.heads import Cost

_NOTES = {
    "single": "the network as it is",
    "member": "one pruned network",
    "hydra": "fused; no trunk, full last block",
    "hydra_default": "as it would really run",
}


def inspect(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="timm:NAME, torchvision:NAME, open_clip:NAME, open_clip:DIR, hf:DIR, hf:pkg:IMPORT/SUBDIR, or a "
            "directory with model.safetensors and config.json, of a model or of a member. ${VAR} expands.",
        ),
    ],
    keep: Annotated[int | None, typer.Option(help="Heads kept in every layer: predicts what a hydra costs.")] = None,
    members: Annotated[int, typer.Option(min=1, help="Members of that hydra.")] = 3,
    trunk: Annotated[int, typer.Option(min=0, help="Leading blocks that its members share.")] = 0,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per text; 128 unless said.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show a model's heads, parameters and multiply-adds, and predict the cost of a hydra before it is built.

    No weights are read and nothing is fetched.

    Example:  hydra-ens inspect timm:vit_base_patch16_224 --keep 8 --members 3
    """
    from rich.console import Console

    from hydra_ensembles.backbones import Backbone
    from hydra_ensembles.heads import describe, predict_costs
    from hydra_ensembles.heads.member import load_shape

    if trunk and keep is None:
        raise OptionError("--trunk is of the hydra that --keep asks about; give --keep too")
    model = load_shape(reference)
    description = describe(model, tokens)
    costs = {"single": description.total}
    if keep is not None:
        costs = dict(predict_costs(Backbone.of(model), keep, members, trunk, tokens))
    if as_json:
        typer.echo(json.dumps({name: cost.to_json() for name, cost in costs.items()}))
        return
    console = Console()
    console.print(description)
    if keep is not None:
        console.print(_cost_table(costs, keep, members, trunk))


def _cost_table(costs: "Mapping[str, Cost]", keep: int, members: int, trunk: int) -> "object":
    from rich.table import Table

    from hydra_ensembles.heads.description import billions, millions

    shared = f", trunk of {trunk} blocks" if trunk else ""
    table = Table(title=f"{members} members with {keep} heads a layer{shared}", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("parameters", "multiply-adds"):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("×", justify="right", no_wrap=True)
    table.add_column("")
    single = costs["single"]
    for name, cost in costs.items():
        table.add_row(
            name,
            millions(cost.params),
            f"{cost.params / single.params:.2f}",
            billions(cost.mult_adds),
            f"{cost.mult_adds / single.mult_adds:.2f}",
            _NOTES[name],
        )
    table.caption = (
        "hydra: members fine-tuned after pruning, so attention, norms and classifier are each member's own, "
        "the stem is shared and MLPs are averaged; untrained members share more"
    )
    return table
