"""`hydra-ens finetune`: train members, or a whole model, by a recipe."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hydra_ensembles.cli.options import (
    DATA_HELP,
    FirstSize,
    ImageColumn,
    LabelColumn,
    MaxTokens,
    OptionError,
    TextColumns,
    check_no_others,
    columns_of,
    read_data,
    say_if_random,
)


def finetune(
    references: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Members' directories, or one model as for 'rank'.")
    ],
    train: Annotated[str, typer.Option(help=f"Inputs with labels: {DATA_HELP}")],
    recipe: Annotated[
        str,
        typer.Option(help="A recipe's name, as cifar100, cifar100-base, sst2 or sst2-base; an unknown one lists all."),
    ],
    out: Annotated[Path, typer.Option(help="Where it is written; of several members, a directory of member-0, ...")],
    val: Annotated[str | None, typer.Option(help="For early stopping and the best weights.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's length.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's length.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    precision: Annotated[str | None, typer.Option(help="'fp32' or 'bf16', instead of the recipe's.")] = None,
    freeze_blocks: Annotated[
        int | None, typer.Option(min=0, help="Freeze the stem and so many blocks: a trunk that fuse will find.")
    ] = None,
    train_last_blocks: Annotated[
        int | None, typer.Option(min=0, help="Train only so many last blocks and what follows them.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=2, help="Classes of a model that has no classifier yet.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's; members count on from it.")] = None,
    parallel: Annotated[bool, typer.Option("--parallel", help="Members at once, each in its own process.")] = False,
    augment: Annotated[bool, typer.Option("--augment", help="Flip and shift training images.")] = False,
    text: TextColumns = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Fine-tune members or a whole model; a killed run goes on where it was.

    Example:  hydra-ens finetune runs/members/member-* --train 'sst2.parquet[3000:]' --recipe sst2 --out runs/tuned
    """
    from rich.console import Console

    from hydra_ensembles.backbones.references import settings_for_classes
    from hydra_ensembles.heads import HeadSet, Member, load_subject, name_classes, prune
    from hydra_ensembles.members import finetune_members
    from hydra_ensembles.members.checkpoint import own_randomness, seed_all
    from hydra_ensembles.members.recipes import recipe_named
    from hydra_ensembles.store import check_may_write

    out = out if out.name else out.resolve()
    settings = recipe_named(recipe)
    places = [out] if len(references) == 1 else [out / f"member-{m}" for m in range(len(references))]
    for place in places:
        check_may_write(place, "member")
    if len(places) > 1:
        check_no_others(out, len(places))
    if epochs is not None and steps is not None:
        raise OptionError("give --epochs or --steps, not both")
    changes = {
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "precision": precision,
        "seed": seed,
        "train_last_blocks": train_last_blocks,
    }
    if epochs is not None or steps is not None:
        settings = replace(settings, epochs=epochs, steps=steps)
    settings = replace(settings, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    with Console(stderr=True).status("reading models and data"):
        with own_randomness():
            seed_all(settings.seed)
            models = [load_subject(reference, **settings_for_classes(reference, classes)) for reference in references]
        for reference in references:
            say_if_random(reference)
        members = [model if isinstance(model, Member) else prune(model, HeadSet.all(model)) for model in models]
        prepared = {"batch_size": settings.batch_size, "first_size": first_size, "max_tokens": max_tokens}
        prepared |= columns_of(text, image, label)
        rows = read_data(train, members[0], shuffle=True, seed=settings.seed, augment=augment, **prepared)
        assert rows is not None
        for member in members:
            if rows.rows.labels_were_names:  # type: ignore[attr-defined]
                name_classes(member, rows.rows.classes)  # type: ignore[attr-defined]
        judged = read_data(val, members[0], **prepared)  # whose names are now those of the training set
    scratch = out.with_name(f".{out.name}.training")
    histories = finetune_members(
        members, rows, judged, settings, freeze_blocks=freeze_blocks, parallel=parallel, checkpoint=scratch
    )
    for place, member, history in zip(places, members, histories, strict=True):
        path = member.save(place)
        kept = history.kept
        told = "" if kept is None else f", validation accuracy {kept.accuracy:.4f}, NLL {kept.nll:.4f}"
        Console().print(f"wrote {path}  ({len(history.losses)} steps{told})", highlight=False, soft_wrap=True)
