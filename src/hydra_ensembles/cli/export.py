"""`hydra-ens export`: a stored hydra as one file for another runtime."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    hydra: Annotated[Path, typer.Argument(metavar="HYDRA", help="A directory written by fuse or run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write to.")],
    format: Annotated[str, typer.Option(help="'onnx' or 'torch-export'.")] = "onnx",
    check: Annotated[bool, typer.Option(help="Compare the file's answers with the hydra's.")] = True,
    int8: Annotated[bool, typer.Option("--int8", help="Beside it, a file with int8 weights; ONNX only.")] = False,
) -> None:
    """Write a hydra as one graph: inputs of any batch size and length in, probabilities and uncertainty out.

    Beside the graph lie model.json (inputs, outputs, classes, thresholds) and preprocess.json.

    Example:  hydra-ens export runs/hydra runs/exported --format onnx
    """
    from rich.console import Console

    from hydra_ensembles.export import ExportError, to_int8
    from hydra_ensembles.export import export as export_hydra
    from hydra_ensembles.fusion import Hydra

    if int8 and format != "onnx":
        raise ExportError(f"--int8 makes an ONNX file smaller; the format is {format}")
    console = Console()
    with console.status("tracing, writing and checking"):
        path = export_hydra(Hydra.load(hydra), out, format, check)
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) / 1e6
    compared = "its answers are the hydra's" if check else "not checked"
    console.print(f"wrote {path}  ({size:.1f} MB, {compared})", highlight=False, soft_wrap=True)
    if int8:
        with console.status("weights to int8"):
            small = to_int8(out)
        size = small.stat().st_size / 1e6
        console.print(f"wrote {small}  ({size:.1f} MB; its answers differ: measure)", highlight=False, soft_wrap=True)
