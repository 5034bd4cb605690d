"""`hydra-ens run`: a recipe from a pre-trained model to an evaluated hydra."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydra_ensembles.cli.options import Device, OptionError, check_device

if TYPE_CHECKING:
    from rich.table import Table

    from hydra_ensembles.pipeline.plan import Estimate

ENGINES = ("here", "ray")


def run(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE.yaml]", help="What to do; see docs/recipes.md.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A directory instead of the recipe's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, its cost and time, and run no stage.")
    ] = False,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    device: Device = "cpu",
    engine: Annotated[
        str, typer.Option(help="'here', or 'ray': stages that do not wait for one another at once, on any machines.")
    ] = "here",
    workers: Annotated[int | None, typer.Option(min=1, help="With Ray: stages at once.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="With Ray: CPU threads of a stage, by default 1.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="With Ray: GPUs of a stage, by default none.")] = None,
) -> None:
    """Run a recipe; stages that are done are passed over, a killed run goes on where it was.

    Example:  hydra-ens run recipes/text-smoke.yaml --dry-run
    """
    from rich.console import Console

    from hydra_ensembles.pipeline import RunRecipe, planned, read_recipe
    from hydra_ensembles.pipeline import run as run_recipe

    console, aside = Console(), Console(stderr=True)
    if schema:
        typer.echo(json.dumps(RunRecipe.model_json_schema(), indent=1))
        return
    if recipe is None:
        raise OptionError("name a recipe: hydra-ens run RECIPE.yaml")
    if engine not in ENGINES:
        raise OptionError(f"--engine {engine} is not known; known: {', '.join(ENGINES)}")
    check_device(device)
    if device != "cpu" and engine == "ray":
        raise OptionError("--device is for --engine here; on Ray, --gpus 1 gives every stage a GPU")
    resources = {"workers": workers, "threads": threads, "gpus": gpus}
    given = [f"--{name}" for name, value in resources.items() if value is not None]
    if given and engine != "ray":
        raise OptionError(f"{' and '.join(given)} say what a stage gets on Ray; add --engine ray, or leave them out")
    settings = read_recipe(recipe)
    if dry_run:
        from hydra_ensembles.pipeline.plan import estimates
        from hydra_ensembles.pipeline.running import cut, output_of

        with aside.status("reading data and measuring one forward"):
            found = estimates(settings, cut(planned(settings, out), until), device)
        if as_json:
            typer.echo(json.dumps([vars(one) for one in found], indent=1))
        else:
            console.print(_plan(found, settings.name, str(output_of(settings, out))))
        return

    looking = aside.status("looking at data and model")

    def tell(name: str, what: str, seconds: float) -> None:
        looking.stop()  # a bar of the stage may come now
        taken = "" if what == "started" else f"  {seconds:.1f} s"
        aside.print(f"{name:<20} {what}{taken}", highlight=False)

    with looking:
        if engine == "ray":
            from hydra_ensembles import scale

            told = {name: value for name, value in resources.items() if value is not None}
            done = scale.run_recipe(settings, out, until=until, tell=tell, **told)  # type: ignore[arg-type]
        else:
            done = run_recipe(settings, out, until=until, tell=tell, device=device)
    if "results" not in done.stages:
        where = str(done.stages[until or ""])
        if as_json:
            typer.echo(json.dumps({"until": until, "directory": where}, indent=1))
        else:
            console.print(f"stopped after '{until}'; its files are in {where}", soft_wrap=True)
        return
    if as_json:
        typer.echo(json.dumps(done.results, indent=1))
        return
    from hydra_ensembles.cli.figures import decisions_table, figures_table

    console.print(figures_table(done.results["models"]))
    decisions = done.results["models"].get("hydra", {}).get("about", {}).get("decisions")
    if decisions:
        console.print(decisions_table(decisions))
    console.print(
        f"wrote {done.directory}  (hydra/, evaluations/, results.json, stages/)", highlight=False, soft_wrap=True
    )


def _plan(found: "list[Estimate]", name: str, output: str) -> "Table":
    from rich.table import Table

    table = Table(title=f"{name} -> {output}", title_justify="left")
    for column, justify in (
        ("stage", "left"),
        ("", "left"),
        ("reads", "left"),
        ("forwards", "right"),
        ("mult-adds", "right"),
        ("about", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for one in found:
        state = "done" if one.is_done else "to do"
        cost = (
            (f"{one.forwards:,.0f}", f"{one.mult_adds / 1e12:,.2f} T", _time(one.seconds))
            if one.forwards
            else ("", "", "")
        )
        table.add_row(one.name, state, _read(one.reads), *cost)
    left = [one for one in found if not one.is_done]
    total = sum(one.seconds for one in left)
    table.add_section()
    table.add_row(
        "left to do",
        "",
        "",
        f"{sum(o.forwards for o in left):,.0f}",
        f"{sum(o.mult_adds for o in left) / 1e12:,.2f} T",
        _time(total),
    )
    table.caption = "forwards of the whole backbone on one input; times from one measured forward on this machine"
    return table


def _read(splits: tuple[str, ...]) -> str:
    from hydra_ensembles.pipeline.splits import is_test

    names = [name for name in splits if not is_test(name)]
    return ", ".join([*names, "tests"] if len(names) < len(splits) else names)


def _time(seconds: float) -> str:
    """A time that a person reads.

    >>> _time(95), _time(4000)
    ('1 min 35 s', '1 h 6 min')
    """
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{seconds:.0f} s"
