"""`hydra-ens report`: runs side by side as one page, figures and tables."""

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Directories that `run` or `evaluate --out` wrote; any number."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; unless said, RUN/report of the first run, or beside an evaluation."),
    ] = None,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples/--no-examples",
            help="Show some inputs, as small pictures or the beginnings of texts. They are then part of the page: "
            "leave them out where inputs are private.",
        ),
    ] = True,
    files: Annotated[
        bool, typer.Option("--files/--page-only", help="Figures as PNG and PDF, tables as Markdown and LaTeX too.")
    ] = True,
    card: Annotated[
        Path | None,
        typer.Option(help="Write also the model card of the (one) run's hydra here, as Markdown, for a hub."),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="For the card: the licence of the backbone's weights, e.g. apache-2.0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write report.html, one page that needs no network: a summary in plain words, figures, tables, inputs.

    Example:  hydra-ens report runs/text-smoke runs/vision-smoke --out report
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from hydra_ensembles.errors import HydraError
    from hydra_ensembles.report import model_card, write_report

    if card is not None and len(runs) != 1:
        raise HydraError(f"a card speaks of the hydra of one run, {len(runs)} were given")
    if licence is not None and card is None:
        raise HydraError("--licence is for the card; say where to write it with --card")
    if card is not None:  # before the page, which takes longer
        card.parent.mkdir(parents=True, exist_ok=True)
        card.write_text(model_card(runs[0], licence), encoding="utf-8")
    console, aside = Console(), Console(stderr=True)
    columns = (TextColumn("  drawing"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal) as progress:
        task = progress.add_task("", total=None)
        written = write_report(
            runs,
            out,
            examples=examples,
            files=files,
            tell=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    if as_json:
        paths = {name: [str(path) for path in found] for name, found in vars(written).items() if name != "page"}
        typer.echo(json.dumps({"page": str(written.page), **paths, **({"card": str(card)} if card else {})}, indent=1))
        return
    size = f"{written.page.stat().st_size / 1e6:.1f} MB"
    figures, tables = (len({path.stem for path in found}) for found in (written.figures, written.tables))
    beside = f"; {figures} figures and {tables} tables beside it" if files else ""
    console.print(f"wrote {written.page}  ({size}{beside})", highlight=False, soft_wrap=True)
    if card is not None:
        console.print(f"wrote {card}", highlight=False, soft_wrap=True)
