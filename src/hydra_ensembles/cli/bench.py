"""`hydra-ens bench`: how fast is a hydra of this model, on this machine?"""

import json
from typing import Annotated

import typer

from hydra_ensembles.cli.options import Device, check_device


def bench(
    reference: Annotated[str, typer.Argument(metavar="REF", help="A whole model, as for inspect.")],
    keep: Annotated[int, typer.Option(help="Heads kept in every layer.")],
    members: Annotated[int, typer.Option(min=1, help="Members.")] = 3,
    trunk: Annotated[int, typer.Option(min=0, help="Leading blocks that the members share.")] = 0,
    last_block: Annotated[str, typer.Option(help="'read' or 'full'.")] = "read",
    batch: Annotated[int, typer.Option(min=1, help="Inputs at once.")] = 4,
    tokens: Annotated[int, typer.Option(min=1, help="Of a text; a model that takes fewer gets those.")] = 128,
    dtype: Annotated[str, typer.Option(help="'fp32' or 'bf16'.")] = "fp32",
    device: Device = "cpu",
    compiled: Annotated[bool, typer.Option("--compiled", help="By torch.compile; the first round compiles.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which every contestant runs once.")] = 9,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; torch's choice unless said.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Time one network, M whole ones, M pruned members and the hydra against each other, with random weights.

    For plain vision transformers also the hydra's arithmetic alone, bare, without a module around it.
    Every contestant runs once in every round, in turn; medians of one run are compared.

    Example:  hydra-ens bench timm:vit_base_patch16_224 --keep 8 --batch 4 --dtype bf16 --threads 2
    """
    import torch
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from hydra_ensembles.backbones import load_model
    from hydra_ensembles.errors import HydraError
    from hydra_ensembles.evaluation import contest, interleaved, sample_inputs

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in dtypes:
        raise HydraError(f"--dtype {dtype} is not known; it is fp32 or bf16")
    check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=as_json)
    with console.status("building models"):
        torch.manual_seed(0)
        model = load_model(reference).to(device, dtypes[dtype])
        inputs = sample_inputs(model, batch, tokens)
        runs = contest(model, inputs, keep, members, trunk, last_block, compiled, tokens)
    timings = {}
    with torch.inference_mode(), Progress(console=console, transient=True) as progress:
        task = progress.add_task("rounds", total=rounds)
        for timings in interleaved(runs.contestants, rounds):
            ratio = timings["hydra"].median_ms / timings["single"].median_ms
            progress.update(task, advance=1, description=f"rounds  hydra / single {ratio:.2f}")
    mode = "compiled" if compiled else "eager"
    settings = {"mode": mode, "device": device, "dtype": dtype, "batch": batch, "trunk": trunk}
    if isinstance(inputs, torch.Tensor) and not inputs.is_floating_point():
        settings["tokens"] = inputs.shape[1]
    settings |= {
        "last_block": last_block,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "arithmetic_ratio": runs.arithmetic_ratio,
    }
    if as_json:
        medians = {f"{name}_ms": t.median_ms for name, t in timings.items()}
        quartiles = {f"{name}_quartiles_ms": [t.low_ms, t.high_ms] for name, t in timings.items()}
        typer.echo(json.dumps(settings | medians | quartiles))
        return
    unusual = "".join(f"{name}, " for name in (device, mode) if name not in ("cpu", "eager"))
    table = Table(
        title=f"{unusual}{dtype}, batch {batch}, {torch.get_num_threads()} threads, {rounds} interleaved rounds",
        caption=f"multiply-adds of the hydra: {runs.arithmetic_ratio:.2f} of the single network's",
        title_justify="left",
    )
    table.add_column("")
    for column in ("median ms", "quartiles", "of single"):
        table.add_column(column, justify="right")
    for name, t in timings.items():
        ratio = t.median_ms / timings["single"].median_ms
        table.add_row(name, f"{t.median_ms:.1f}", f"{t.low_ms:.1f}–{t.high_ms:.1f}", f"{ratio:.2f}")
    console.print(table)
