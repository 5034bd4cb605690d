"""`hydra-ens predict`: files in, a table with decisions out."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from hydra_ensembles.cli.options import (
    DATA_HELP,
    BatchSize,
    Device,
    FirstSize,
    ImageColumn,
    MaxTokens,
    Network,
    OptionError,
    TextColumns,
    check_device,
    columns_of,
    say_if_random,
)

if TYPE_CHECKING:
    from torch import nn

    from hydra_ensembles.data import Rows
    from hydra_ensembles.uncertainty import Prediction

Lines: TypeAlias = list[dict[str, Any]]

_SHOWN = 20
_AT_ONCE = 4096  # rows whose logits are in memory; a table of any length is written as it comes


def predict(
    reference: Network,
    data: Annotated[str, typer.Argument(metavar="INPUT", help=f"What to predict: {DATA_HELP}")],
    out: Annotated[
        Path | None, typer.Option(help="A .csv, .jsonl or .parquet file; without it the first rows are shown.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a row.")] = False,
    text: TextColumns = None,
    image: ImageColumn = None,
    device: Device = "cpu",
    batch_size: BatchSize = 64,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Label, confidence, uncertainty and, of a hydra that was fitted, a decision for each input.

    Example:  hydra-ens predict runs/hydra photos/ --out predictions.csv
    """
    from rich.console import Console

    from hydra_ensembles.backbones.references import expand
    from hydra_ensembles.data import open_data
    from hydra_ensembles.data.opening import split_range
    from hydra_ensembles.evaluation.loading import load_network

    check_device(device)
    if out is not None and out.suffix not in _WRITERS:
        raise OptionError(f"--out {out}: a table ends in {', '.join(_WRITERS)}")
    source = Path(split_range(expand(data))[0])
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise OptionError(f"--out {out} is the input itself; name another file")
    columns = columns_of(text, image)
    prepared = {"batch_size": batch_size, "first_size": first_size, "max_tokens": max_tokens}
    with Console(stderr=True).status("reading the model and the data"):
        model = load_network(reference).to(device)
        say_if_random(reference)
        rows = open_data(data, **columns)
    decided: Counter[str] = Counter()
    first: Lines = []
    with nullcontext() if out is None else _written(out) as write:
        for lines in _predicted(model, rows, {name: of for name, of in prepared.items() if of is not None}):
            decided.update(line["decision"] for line in lines if "decision" in line)
            first += lines[: _SHOWN - len(first)]
            if write is not None:
                write(lines)
            for line in lines if as_json else ():
                typer.echo(json.dumps(line, ensure_ascii=False))
    if as_json:
        return
    console = Console()
    if out is None:
        console.print(_shown(first, len(rows)))
    shares = ", ".join(f"{name} {100 * number / len(rows):.1f} %" for name, number in sorted(decided.items()))
    told = f"{len(rows):,} rows{'; ' if shares else ''}{shares}"
    console.print(f"{'' if out is None else f'wrote {out}  '}({told})", highlight=False, soft_wrap=True)


def _predicted(model: "nn.Module", rows: "Rows", prepared: dict[str, Any]) -> Iterator[Lines]:
    """The lines of the table, some rows at a time, in the order of the rows."""
    from hydra_ensembles.data import batches_for
    from hydra_ensembles.data.loading import classes_of
    from hydra_ensembles.evaluation import AnswerError, answers
    from hydra_ensembles.fusion import Hydra
    from hydra_ensembles.uncertainty import Fitted
    from hydra_ensembles.uncertainty import predict as predict_from

    fitted = model.fitted if isinstance(model, Hydra) else Fitted()
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        title = f"predicting rows {start:,} to {start + len(some) - 1:,} of {len(rows):,}"
        try:
            found = answers(model, batches_for(model, some, labels=False, **prepared), digest=False, title=title)
        except AnswerError as error:
            raise AnswerError(f"{rows.where}{f', counted from row {start}' if start else ''}: {error}") from None
        yield list(_lines(predict_from(found.logits, fitted), classes_of(model), some.names(), start))


def _lines(
    found: "Prediction", classes: list[str] | None, names: list[str] | None, start: int
) -> Iterator[dict[str, Any]]:
    of = ("confidence", "entropy", "aleatoric", "epistemic", "disagreement", "ood_score")
    numbers = {name: getattr(found, name).tolist() for name in of}
    for row, label in enumerate(found.label.tolist()):
        line: dict[str, Any] = {"row": start + row} | ({} if names is None else {"input": names[row]})
        line |= {"label": label} | ({} if classes is None else {"class": classes[label]})
        line |= {name: values[row] for name, values in numbers.items()}
        if found.prediction_set is not None:
            held = found.prediction_set[row].nonzero()[:, 0].tolist()
            line["prediction_set"] = " ".join(str(one) for one in held)
        if found.decision is not None:
            line["decision"] = found.decision[row]
        yield line


@contextmanager
def _written(out: Path) -> Iterator[Callable[[Lines], None]]:
    """What writes lines to a file; the file appears when all are there."""
    from hydra_ensembles.store import whole

    @contextmanager
    def told() -> Iterator[None]:
        """Not around the caller's own work, whose errors are others."""
        try:
            yield
        except OSError as error:
            raise OptionError(f"--out {out} cannot be written: {error.strerror or error}") from None

    with ExitStack() as opened:
        with told():
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.is_dir():
                raise OptionError(f"--out {out} is a directory; name a file")
            write = opened.enter_context(_WRITERS[out.suffix](opened.enter_context(whole(out))))

        def written(lines: Lines) -> None:
            with told():
                write(lines)

        yield written


@contextmanager
def _csv(path: Path) -> Iterator[Callable[[Lines], None]]:
    with path.open("w", encoding="utf-8", newline="") as file:

        def write(lines: Lines) -> None:
            writer = csv.DictWriter(file, list(lines[0]))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerows(lines)

        yield write


@contextmanager
def _jsonl(path: Path) -> Iterator[Callable[[Lines], None]]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda lines: file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Lines], None]]:
    from hydra_ensembles.optional import import_extra

    arrow = import_extra("pyarrow", "data", "writing parquet")
    parquet = import_extra("pyarrow.parquet", "data", "writing parquet")
    writer: Any = None

    def write(lines: Lines) -> None:
        nonlocal writer
        table = arrow.Table.from_pylist(lines)
        if writer is None:
            writer = parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


_WRITERS: dict[str, Any] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def _shown(first: Lines, total: int) -> Any:
    from rich.table import Table

    shown = Table()
    columns = [column for column in first[0] if column not in ("entropy", "aleatoric", "disagreement")]
    for column in columns:
        shown.add_column(column)
    for line in first:
        values = [line[column] for column in columns]
        shown.add_row(*(f"{value:.4f}" if isinstance(value, float) else str(value) for value in values))
    shown.caption = f"{len(first)} of {total:,} rows; --out writes all, with entropy, aleatoric and disagreement"
    return shown
