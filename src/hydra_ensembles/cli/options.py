"""What several commands ask for in the same words."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydra_ensembles.errors import HydraError

if TYPE_CHECKING:
    from torch import nn

    from hydra_ensembles.data import Batches


class OptionError(HydraError):
    """An option that cannot be understood."""


_MODELS = (
    "timm:NAME, torchvision:NAME, hf:DIR, hf:pkg:IMPORT/SUBDIR, or a directory with model.safetensors and config.json. "
    "${VAR} expands."
)
Reference = Annotated[str, typer.Argument(metavar="MODEL", help=f"A member's directory, or {_MODELS}")]
Network = Annotated[str, typer.Argument(metavar="MODEL", help=f"A hydra's or a member's directory, or {_MODELS}")]
DATA_HELP = "images in a folder, an image, .parquet, .tsv, .csv, .jsonl, .txt or .npz; [:3000] behind it chooses rows."
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs at a time.")]
FirstSize = Annotated[
    int | None, typer.Option(min=1, help="Bring every image to this size first, then to the model's.")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Cut texts at so many tokens.")]
Device = Annotated[str, typer.Option(help="'cpu' or 'cuda': where the model computes.")]
TextColumns = Annotated[list[str] | None, typer.Option("--text", help="The column with texts; twice for pairs.")]
ImageColumn = Annotated[str | None, typer.Option("--image", help="The column with images.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column with labels.")]
Layers = Annotated[
    str | None, typer.Option(metavar="A:B", help="Remove heads only in layers A to B-1; 6: means from 6 on.")
]


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is read."""
    import torch

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise OptionError(f"--device {device} is not there; it is cpu, or cuda where torch sees a GPU")


def say_if_random(reference: str) -> None:
    """A word where the model is an architecture alone: what is ranked or measured of it means nothing."""
    from rich.console import Console

    from hydra_ensembles.backbones.references import files_of

    if not files_of(reference):
        told = f"{reference} has random weights; write a trained model with save_model, and name its directory"
        Console(stderr=True).print(told, style="yellow", highlight=False, soft_wrap=True)


def check_no_others(out: Path, members: int) -> None:
    """Refuse a directory with members of an earlier choice beside the new ones: `member-*` would fuse them all."""
    later = sorted(
        path.name
        for path in out.glob("member-*")
        if path.name.removeprefix("member-").isdigit() and int(path.name.removeprefix("member-")) >= members
    )
    if later:
        raise OptionError(f"--out {out} holds {later[0]} of an earlier choice; delete it, or name another directory")


def layers_of(layers: str | None, model: "nn.Module") -> range | None:
    """The layers that A:B names."""
    if layers is None:
        return None
    from hydra_ensembles.backbones import Backbone
    from hydra_ensembles.heads import Member

    backbone = model.backbone if isinstance(model, Member) else Backbone.of(model)
    deepest = max(len(tower.blocks) for tower in backbone.towers.values())
    try:
        start, end = (int(part) if part else None for part in layers.split(":"))
    except ValueError:
        raise OptionError(f"--layers {layers}: expected A:B, as in 6: or 0:4") from None
    found = range(deepest)[start:end]
    if not found:
        raise OptionError(f"--layers {layers} names none: the model's layers are 0 to {deepest - 1}")
    return found


def columns_of(text: list[str] | None, image: str | None, label: str | None = None) -> dict[str, Any]:
    """The columns that were named, as `open_data` takes them.

    >>> columns_of(["question", "answer"], None)
    {'text': ('question', 'answer')}
    """
    named = {"text": tuple(text) if text and len(text) > 1 else next(iter(text or ()), None)}
    named |= {"image": image, "label": label}
    return {name: column for name, column in named.items() if column is not None}


def read_data(reference: str | None, model: "nn.Module", **options: Any) -> "Batches | None":
    """The batches that a reference names, prepared for a model."""
    if reference is None:
        return None
    from hydra_ensembles.data import load_data

    return load_data(reference, model, **{name: value for name, value in options.items() if value is not None})
