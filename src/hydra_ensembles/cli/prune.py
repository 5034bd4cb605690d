"""`hydra-ens prune`: from rankings to members on disk."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydra_ensembles.cli.options import (
    DATA_HELP,
    BatchSize,
    Device,
    FirstSize,
    ImageColumn,
    LabelColumn,
    MaxTokens,
    Reference,
    TextColumns,
    check_device,
    check_no_others,
    columns_of,
    read_data,
    say_if_random,
)

if TYPE_CHECKING:
    from hydra_ensembles.members import Selection


def prune(
    reference: Reference,
    out: Annotated[Path, typer.Option(help="A directory; members become member-0, member-1, ... in it.")],
    keep: Annotated[int, typer.Option(min=0, help="Heads kept in all; with a trunk, in the layers behind it.")],
    rankings: Annotated[
        list[Path] | None, typer.Argument(metavar="[RANKING]...", help="Files written by 'hydra-ens rank'.")
    ] = None,
    members: Annotated[int, typer.Option(min=1, help="How many members.")] = 3,
    how: Annotated[
        str, typer.Option(help="'objectives': a ranking each; 'sample': drawn from one; 'calibration'; 'joint'.")
    ] = "objectives",
    trunk: Annotated[int, typer.Option(min=0, help="Leading blocks that keep all heads and that all share.")] = 0,
    pool: Annotated[int | None, typer.Option(min=1, help="Of 'sample': how many heads of the ranking may go.")] = None,
    seed: Annotated[int, typer.Option(help="Of 'sample'.")] = 0,
    data: Annotated[str | None, typer.Option(help=f"Of 'joint': known inputs with labels: {DATA_HELP}")] = None,
    ood: Annotated[str | None, typer.Option(help="Of 'joint': unknown inputs.")] = None,
    objective: Annotated[str, typer.Option(help="Of 'joint': 'acc', 'ood' or 'avg'.")] = "avg",
    search: Annotated[str, typer.Option(help="Of 'joint': 'fast', 'lazy' or 'plain'.")] = "fast",
    text: TextColumns = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    device: Device = "cpu",
    batch_size: BatchSize = 32,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Choose the members' heads and write the members: smaller models, ready to be fine-tuned or fused.

    Example:  hydra-ens prune runs/sst2 acc.json ood.json avg.json --keep 36 --out runs/members
    """
    from rich.console import Console
    from rich.progress import track

    from hydra_ensembles.heads import HeadRanking, load_subject
    from hydra_ensembles.heads import prune as prune_model
    from hydra_ensembles.members import select_members

    console = Console()
    check_device(device)
    check_no_others(out, members)
    model = load_subject(reference).to(device)
    say_if_random(reference)
    prepared = {"batch_size": batch_size, "first_size": first_size, "max_tokens": max_tokens}
    selection = select_members(
        [HeadRanking.load(path) for path in rankings or ()],
        keep=keep,
        members=members,
        how=how,
        trunk=trunk,
        pool=pool,
        seed=seed,
        model=model,
        id_data=read_data(data, model, **columns_of(text, image, label), **prepared),
        ood_data=read_data(ood, model, labels=False, **columns_of(text, image), **prepared),
        objective=objective,
        search=search,
        journal=out / "joint.journal.jsonl" if how == "joint" else None,
    )
    out.mkdir(parents=True, exist_ok=True)
    for m, heads in enumerate(track(selection, "writing members", console=Console(stderr=True), transient=True)):
        prune_model(model, heads).save(out / f"member-{m}")
    (out / "selection.json").write_text(json.dumps(selection.to_json(), indent=1) + "\n")
    console.print(_differences(selection))
    names = ", ".join(f"member-{m}" for m in range(len(selection)))
    console.print(f"wrote {names} and selection.json into {out}", highlight=False, soft_wrap=True)


def _differences(selection: "Selection") -> "object":
    from rich.table import Table

    table = Table(title="removed heads that two members share / divergence over layers", title_justify="left")
    table.add_column("")
    for m in range(len(selection)):
        table.add_column(f"member {m}", justify="right")
    shared, apart = selection.overlaps(), selection.divergences()
    for m, (row, distances) in enumerate(zip(shared, apart, strict=True)):
        cells = [f"{100 * a:.0f} % / {'–' if d is None else f'{d:.3f}'}" for a, d in zip(row, distances, strict=True)]
        table.add_row(f"member {m}", *cells)
    return table
