"""`hydra-ens`: one file a sub-command; errors and warnings in one line, a traceback only with --debug."""

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from hydra_ensembles import __version__
from hydra_ensembles.cli.bench import bench
from hydra_ensembles.cli.evaluate import evaluate
from hydra_ensembles.cli.export import export
from hydra_ensembles.cli.finetune import finetune
from hydra_ensembles.cli.fuse import fuse
from hydra_ensembles.cli.inspect import inspect
from hydra_ensembles.cli.predict import predict
from hydra_ensembles.cli.prune import prune
from hydra_ensembles.cli.rank import rank
from hydra_ensembles.cli.report import report
from hydra_ensembles.cli.run import run
from hydra_ensembles.cli.score import score
from hydra_ensembles.cli.serve import serve
from hydra_ensembles.cli.zero_shot import zero_shot
from hydra_ensembles.errors import HydraError, HydraWarning

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="One pre-trained transformer in, one calibrated ensemble out.",
    epilog="Example:  hydra-ens inspect timm:vit_base_patch16_224 --keep 8 --members 3",
)
MAKING = (run, inspect, zero_shot, rank, prune, finetune, fuse)
USING = (evaluate, report, predict, score, serve, export, bench)
for command in (*MAKING, *USING):
    app.command()(command)


_CALLED = {"id_data": "data", "ood_data": "ood"}
"""What the library calls otherwise than the commands."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hydra-ens {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command; what a person must act on ends in one line and exit code 1."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    if debug:  # wherever it stands
        arguments = ["--debug", *(one for one in arguments if one != "--debug")]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _telling(warnings.showwarning, arguments)
            app(arguments)
    except HydraError as error:
        if debug:
            raise
        told = in_options(str(error), arguments)
        typer.secho(f"{type(error).__name__}: {told}", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except OSError as error:  # a file that may not be read or written, a full disk
        if debug:
            raise
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        typer.secho(f"{type(error).__name__}: {told}", fg=typer.colors.RED, err=True)
        sys.exit(1)


def _telling(show: Callable[..., None], arguments: Sequence[str]) -> Callable[..., None]:
    """Our own warnings as our errors are told, without a file and a line; those of other libraries as they are."""

    def told(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, HydraWarning):
            typer.secho(f"Warning: {in_options(str(message), arguments)}", fg=typer.colors.YELLOW, err=True)
        else:
            show(message, category, *where)

    return told


def in_options(told: str, arguments: Sequence[str]) -> str:
    """What the library says of arguments, said of options, where the command that was called has them.

    >>> in_options("take other data, or say allow_seen=True", ["evaluate", "hydra"])
    'take other data, or say --allow-seen'
    >>> in_options("keep each its own with mlp='grouped'", ["fuse", "run"])
    'keep each its own with --mlp grouped'
    >>> in_options("search with ood_data=, with one model, or detectors=False", ["evaluate"])
    'search with ood_data=, with one model, or no --detectors'
    """
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    called = next((commands[word] for word in arguments if word in commands), None)
    options = {} if called is None else {one.name: one for one in called.params if one.opts[0].startswith("--")}
    options |= {name: options[other] for name, other in _CALLED.items() if other in options}

    def said(found: re.Match[str]) -> str:
        option = options.get(found["name"])
        if option is not None and found["word"]:
            return f"{option.opts[0]} {found['word']}"
        if option is not None and found["value"] == "False":
            return option.secondary_opts[0] if option.secondary_opts else f"no {option.opts[0]}"
        return found[0] if option is None else option.opts[0]

    return re.sub(r"\b(?P<name>[a-z_]+)=(?:'(?P<word>[\w-]+)'|(?P<value>True\b|False\b|(?![\w\"'({\[])))", said, told)
