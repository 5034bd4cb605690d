"""`hydra-ens evaluate`: a model on known, shifted and unknown data."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydra_ensembles.cli.options import (
    DATA_HELP,
    BatchSize,
    Device,
    FirstSize,
    ImageColumn,
    LabelColumn,
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

    from hydra_ensembles.data import Batches


def evaluate(
    reference: Network,
    id_test: Annotated[str, typer.Option(help=f"Known inputs with labels: {DATA_HELP}")],
    near: Annotated[
        list[str] | None, typer.Option(metavar="NAME=DATA", help="Unknown inputs much like known ones.")
    ] = None,
    far: Annotated[list[str] | None, typer.Option(metavar="NAME=DATA", help="Unknown inputs of another kind.")] = None,
    shift: Annotated[list[str] | None, typer.Option(metavar="NAME/SEVERITY", help="Corrupt id-test, as fog/3.")] = None,
    id_val: Annotated[str | None, typer.Option(help="Known inputs that were used to choose; must be others.")] = None,
    ood_val: Annotated[
        str | None, typer.Option(help="Unknown inputs that were used to choose; never a test set.")
    ] = None,
    allow_seen: Annotated[bool, typer.Option("--allow-seen", help="Test also on what was used to choose.")] = False,
    detectors: Annotated[bool, typer.Option("--detectors", help="KNN, Mahalanobis, ViM, fitted on --id-val.")] = False,
    score: Annotated[str, typer.Option(help="The score that gets intervals.")] = "msp",
    resamples: Annotated[int, typer.Option(min=0, help="Of the bootstrap; 0 for no intervals.")] = 1000,
    against: Annotated[
        Path | None, typer.Option(help="An earlier evaluation to compare with, on the same rows.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the evaluation is written.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep answers here; a killed evaluation goes on behind the last set.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Where corrupted images are kept, if not in ~/.cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    text: TextColumns = None,
    image: ImageColumn = None,
    label: LabelColumn = None,
    device: Device = "cpu",
    batch_size: BatchSize = 64,
    first_size: FirstSize = None,
    max_tokens: MaxTokens = None,
) -> None:
    """Accuracy, calibration, selective risk and OOD detection of a hydra, a member or a model, with intervals.

    Example:  hydra-ens evaluate runs/hydra --id-test test.parquet --near yelp=yelp.parquet --far trec=trec.parquet
    """
    from rich.console import Console

    from hydra_ensembles.cli.figures import decisions_table, differences_table, figures_table
    from hydra_ensembles.data import batches_for, open_data
    from hydra_ensembles.data.fingerprints import rows_digest
    from hydra_ensembles.evaluation import Evaluation, Protocol, compare
    from hydra_ensembles.evaluation import evaluate as evaluate_model
    from hydra_ensembles.evaluation.loading import load_network
    from hydra_ensembles.evaluation.results import check_comparable, differences_json
    from hydra_ensembles.evaluation.shift import shifted_batches
    from hydra_ensembles.store import check_may_write

    check_device(device)
    near_sets, far_sets = _named("near", near), _named("far", far)
    console, aside = Console(), Console(stderr=True)
    columns = columns_of(text, image)
    prepared = _given(batch_size=batch_size, first_size=first_size, max_tokens=max_tokens)
    with aside.status("reading the model"):
        model = load_network(reference).to(device)
        say_if_random(reference)
        earlier = None if against is None else Evaluation.load(against)
        seed = 0 if earlier is None else earlier.seed
        if out is not None:
            check_may_write(out, "evaluation")
    clean = open_data(id_test, **columns, **_given(label=label))
    at = _cache() if cache is None else cache
    shifts = {name.replace("/", "-"): shifted_batches(model, clean, name, at, **prepared) for name in shift or ()}
    with aside.status("reading data"):
        unknown = {
            name: _unlabelled(data, model, columns, prepared)
            for name, data in {**near_sets, **far_sets, **_given(ood_val=ood_val)}.items()
        }
        val = None if id_val is None else open_data(id_val, **columns, **_given(label=label))
        protocol = Protocol(
            batches_for(model, clean, **prepared),
            {name: unknown[name] for name in near_sets},
            {name: unknown[name] for name in far_sets},
            shifts,
            id_val=None if val is None else batches_for(model, val, **prepared),
            ood_val=unknown.get("ood_val"),
            allow_seen=allow_seen,
        )
        if earlier is not None:
            rows = {name: rows_digest(batches) for name, batches in protocol.tests.items()}
            check_comparable(earlier, protocol.groups, rows, resamples=resamples, score=score, seed=seed)
    found = evaluate_model(model, protocol, detectors=detectors, keep=keep, score=score, resamples=resamples, seed=seed)
    if out is not None:
        found.save(out)
    differences = None if earlier is None else compare(found, earlier)
    told = found.to_json()
    if as_json:
        typer.echo(
            json.dumps({**told, "compared": None if differences is None else differences_json(differences)}, indent=1)
        )
        return
    console.print(figures_table({Path(reference).name or reference: told}))
    if told["about"]["decisions"]:
        console.print(decisions_table(told["about"]["decisions"]))
    if differences is not None:
        console.print(differences_table(differences, str(against)))
    for seen in told["about"]["seen"]:
        console.print(f"mind: {seen}", highlight=False, soft_wrap=True)
    if out is not None:
        console.print(f"wrote {out}  (figures in config.json, judged rows beside it)", highlight=False, soft_wrap=True)


def _named(group: str, sets: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in sets or ():
        name, _, data = one.partition("=")
        if not name or not data:
            raise OptionError(f"--{group} takes NAME=DATA, as in --{group} yelp=yelp.parquet; found '{one}'")
        if name in found:
            raise OptionError(f"--{group} names '{name}' twice; give each set its own name")
        found[name] = data
    return found


def _unlabelled(reference: str, model: "nn.Module", columns: dict[str, Any], prepared: dict[str, Any]) -> "Batches":
    """Unknown inputs; their labels mean nothing to the model, so they are not read, whatever they are."""
    from hydra_ensembles.data import batches_for, open_data

    # Opened twice: without being looked for, a column of labels could be taken for texts.
    seen = open_data(reference, **columns).columns
    inputs = {"image": seen.inputs[0]} if seen.kind == "image" else {"text": seen.inputs}
    return batches_for(model, open_data(reference, label=False, **inputs), labels=False, **prepared)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "hydra-ensembles" / "shifts"
