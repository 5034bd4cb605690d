"""`hydra-ens score`: any number of inputs, on Ray Data."""

from typing import Annotated, Any

import typer

from hydra_ensembles.cli.options import FirstSize, ImageColumn, MaxTokens, Network, TextColumns, columns_of


def score(
    reference: Network,
    address: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="Parquet or jsonl files, or folders of images: a path, pattern or URL."),
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="A directory, or the URL of one.")],
    id_column: Annotated[str | None, typer.Option("--id", help="A column of the tables, carried over as 'id'.")] = None,
    text: TextColumns = None,
    image: ImageColumn = None,
    rows_a_block: Annotated[int, typer.Option(min=1, help="Rows of one output file.")] = 4096,
    workers: Annotated[int | None, typer.Option(min=1, help="How many; as many as there is room for.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each worker.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each worker.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs that a worker computes at once.")] = 64,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Label, probability, uncertainty and decision of every row, as parquet; a killed run goes on where it was.

    Rows that cannot be read go to OUTPUT/_quarantine, with the reason. For fewer than about a million inputs on one
    machine, 'predict' says the same, and more of each row, in one process.

    Example:  hydra-ens score runs/hydra 's3://bucket/reviews/*.parquet' s3://bucket/scored --id review_id
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from hydra_ensembles import scale

    given: dict[str, Any] = {"batch_size": batch_size, "first_size": first_size, "max_tokens": max_tokens}
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        found = scale.score(
            reference,
            address,
            output,
            id_column=id_column,
            rows_a_block=rows_a_block,
            workers=workers,
            threads=threads,
            gpus=gpus,
            show=lambda rows, of: bar.update(task, completed=rows, total=of),
            **columns_of(text, image),
            **{name: value for name, value in given.items() if value is not None},
        )
    taken = "".join(f", {name} {100 * number / found['scored']:.1f} %" for name, number in found["decisions"].items())
    told = f"{found['scored']:,} of {found['rows']:,} rows scored, {found['quarantined']:,} quarantined{taken}"
    Console().print(f"wrote {output}  ({told})", highlight=False, soft_wrap=True)
