"""`hydra-ens serve`: a model behind HTTP, on Ray Serve."""

from typing import Annotated

import typer

from hydra_ensembles.cli.options import Network, OptionError


def serve(
    reference: Network,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of the model, at least.")] = 1,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="Copies under load; else as many as always.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs that a copy computes at once, at most.")] = 16,
    wait_ms: Annotated[float, typer.Option(min=0, help="How long a batch waits to be filled.")] = 5.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests at once; one more is answered 429.")] = 128,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Of a request.")] = 10.0,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Of an image.")] = 50.0,
    max_characters: Annotated[int, typer.Option(min=1, help="Of a text.")] = 100_000,
    name: Annotated[str, typer.Option(help="On Ray; a front joins what serves MODEL by this name.")] = "hydra",
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each request.")] = False,
) -> None:
    """Answer POST /predict with label, probabilities, uncertainty and decision; /docs describes it.

    A model directory that is replaced is taken over without a pause. Where the environment variable HYDRA_TOKEN is
    set, requests must bring it as bearer token, and /docs is switched off. Ends on SIGTERM or Ctrl-C, when all that
    was begun is answered.

    Example:  hydra-ens serve runs/hydra --threads 2 --port 8000
    """
    import logging
    import os

    from rich.console import Console

    from hydra_ensembles.scale.limits import Limits
    from hydra_ensembles.scale.logs import log_as_json
    from hydra_ensembles.scale.serving import TOKEN
    from hydra_ensembles.scale.serving import serve as serve_model

    if max_replicas is not None and max_replicas < replicas:
        raise OptionError(f"--max-replicas {max_replicas} is less than --replicas {replicas}")
    log_as_json(logging.WARNING if quiet else logging.INFO)
    limits = Limits(
        body_bytes=round(max_body_mb * 2**20),
        pixels=round(max_megapixels * 1e6),
        characters=max_characters,
        waiting=max_waiting,
    )
    console = Console(stderr=True)
    starting = console.status("starting replicas")
    starting.start()

    def say(address: str) -> None:
        starting.stop()
        described = "" if os.environ.get(TOKEN) else f"described at {address}/docs; "
        console.print(f"{address}/predict  ({described}Ctrl-C ends it)", highlight=False, soft_wrap=True)

    try:
        serve_model(
            reference,
            host=host,
            port=port,
            replicas=replicas,
            max_replicas=max_replicas,
            threads=threads,
            gpus=gpus,
            batch_size=batch_size,
            wait_ms=wait_ms,
            limits=limits,
            name=name,
            started=say,
        )
    finally:
        starting.stop()
