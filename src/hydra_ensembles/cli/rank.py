"""`hydra-ens rank`: heads in the order in which they can go."""

from pathlib import Path
from typing import Annotated

import typer

from hydra_ensembles.cli.options import (
    DATA_HELP,
    BatchSize,
    Device,
    FirstSize,
    ImageColumn,
    LabelColumn,
    Layers,
    MaxTokens,
    OptionError,
    Reference,
    TextColumns,
    check_device,
    columns_of,
    layers_of,
    read_data,
    say_if_random,
)


def rank(
    reference: Reference,
    data: Annotated[str, typer.Option(help=f"Known inputs with labels: {DATA_HELP}")],
    remove: Annotated[int, typer.Option(min=1, help="Heads to remove; with --method taylor, in every layer.")],
    out: Annotated[Path, typer.Option(help="Where the ranking is written (JSON).")],
    ood: Annotated[str | None, typer.Option(help="Unknown inputs, for the objectives ood and avg.")] = None,
    objective: Annotated[str, typer.Option(help="'acc', 'ood' or 'avg': what must stay good.")] = "avg",
    method: Annotated[
        str, typer.Option(help="'circuit' (search), 'taylor' or 'taylor-global' (gradients).")
    ] = "circuit",
    search: Annotated[str, typer.Option(help="'fast' (exact), 'lazy' (a fraction of the work) or 'plain'.")] = "fast",
    layers: Layers = None,
    towers: Annotated[
        str, typer.Option(help="Of a zero-shot classifier: take heads from 'both', 'vision' or 'text'.")
    ] = "both",
    text: TextColumns = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    device: Device = "cpu",
    batch_size: BatchSize = 32,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Rank attention heads by how little they are missed; a killed search goes on from its journal.

    Example:  hydra-ens rank runs/sst2 --data 'sst2.parquet[:256]' --ood 'news.parquet[:256]' --remove 36 --out avg.json
    """
    from rich.console import Console

    from hydra_ensembles.heads import load_subject
    from hydra_ensembles.scoring import circuit_ranking, taylor_ranking

    if out.is_dir():
        raise OptionError(f"--out {out} is a directory; name a file, as {out / 'avg.json'}")
    check_device(device)
    console = Console(stderr=True)
    with console.status("reading the model and the data"):
        model = load_subject(reference).to(device)
        say_if_random(reference)
        how = {"batch_size": batch_size, "first_size": first_size, "max_tokens": max_tokens}
        known = read_data(data, model, **columns_of(text, image, label), **how)
        unknown = read_data(ood, model, labels=False, **columns_of(text, image), **how)
        where = layers_of(layers, model)
    assert known is not None
    journal = out.with_name(f"{out.stem}.journal.jsonl")
    if method == "circuit":
        ranking = circuit_ranking(
            model, known, unknown, objective, remove, search=search, layers=where, towers=towers, journal=journal
        )
    elif method in ("taylor", "taylor-global"):
        scope = "layer" if method == "taylor" else "global"
        with console.status("computing gradients"):
            ranking = taylor_ranking(model, known, remove, scope=scope, layers=where, towers=towers)
    else:
        raise OptionError(f"--method {method} is not known; known: circuit, taylor, taylor-global")
    ranking.save(out)
    told = f"{len(ranking)} heads"
    if ranking.start_score is not None:
        told += f", S {ranking.start_score:.4f} -> {ranking.scores[-1]:.4f}, {ranking.how['seconds']:.0f} s"
        told += f", journal {journal.name} beside it"
    if search == "lazy" and method == "circuit":
        told += f"; passed over at most {100 * ranking.how['regret']:.2f} points a removal on average"
    Console().print(f"wrote {out}  ({told})", highlight=False, soft_wrap=True)
