"""`hydra-ens zero-shot`: a two-tower model and the names of classes become a classifier."""

from pathlib import Path
from typing import Annotated

import typer

from hydra_ensembles.cli.options import OptionError, say_if_random


def zero_shot(
    reference: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="open_clip:DIR, or hf:DIR with CLIP or SigLIP, tokeniser included."),
    ],
    classes: Annotated[str, typer.Option(help="A .txt with one name a line, or a data set that names its classes.")],
    out: Annotated[Path, typer.Option(help="A directory; every command that takes a model takes it.")],
    template: Annotated[
        list[str] | None,
        typer.Option(help="A prompt with {} for the name, 'a photo of a {}.' by default; several are averaged."),
    ] = None,
) -> None:
    """Write a classifier of images that is asked with prompts, to be ranked, pruned, fused and evaluated as any other.

    Example:  hydra-ens zero-shot open_clip:clip-b32 --classes pets.txt --template 'a photo of a {}, a pet.' --out pets
    """
    from rich.console import Console

    from hydra_ensembles.backbones import ZeroShotClassifier, save_model
    from hydra_ensembles.backbones.zero_shot import TEMPLATES

    names = _names(classes)
    templates = template or list(TEMPLATES)
    readable = [name.replace("_", " ") for name in names]
    with Console(stderr=True).status("reading the model and its prompts"):
        classifier = ZeroShotClassifier.of_reference(reference, readable, templates)
        say_if_random(reference)
        save_model(classifier, out, classes=names)
    prompts = ", ".join(one.replace("{}", readable[0]) for one in templates)
    told = f"{len(names)} classes; asked about the first: {prompts}"
    Console().print(f"wrote {out}  ({told})", highlight=False, soft_wrap=True, markup=False)


def _names(classes: str) -> list[str]:
    """The names of the classes, in their order."""
    from hydra_ensembles.backbones.references import expand
    from hydra_ensembles.data import open_data

    if classes.endswith(".txt"):
        file = Path(expand(classes))
        if not file.is_file():
            raise OptionError(f"--classes {classes}: no such file; it names the classes, one a line")
        lines = file.read_text(encoding="utf-8").splitlines()
        found = [line.strip() for line in lines if line.strip()]
    else:
        found = list(open_data(classes).classes or ())
    if len(found) < 2:
        what = "two are the fewest" if classes.endswith(".txt") else "write them into a .txt, one name a line"
        raise OptionError(f"--classes {classes} names {len(found)} classes; {what}")
    return found
