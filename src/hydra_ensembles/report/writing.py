"""`write_report`: from runs to a page, figures and tables on disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra_ensembles.report.drawing import styled, svg, write_files
from hydra_ensembles.report.first_screen import first_screen
from hydra_ensembles.report.looks import looks_of
from hydra_ensembles.report.page import page
from hydra_ensembles.report.run_tables import summaries_by_recipe, tables_of
from hydra_ensembles.report.runs import Run, drawn, read_runs, series_of
from hydra_ensembles.report.sections import sections_of
from hydra_ensembles.report.table import Table
from hydra_ensembles.store import whole

Tell = Callable[[str, int, int], None]
"""Takes what is being done, how many steps are done, and how many there are."""


@dataclass(frozen=True)
class Report:
    """What was written."""

    page: Path
    figures: list[Path]
    tables: list[Path]


def write_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    examples: bool = True,
    files: bool = True,
    tell: Tell | None = None,
) -> Report:
    """Write `report.html`, `figures/*.png|pdf` and `tables/*.md|tex` of runs or evaluations side by side.

    Args:
        runs: one or several directories that `hydra-ens run` or `hydra-ens evaluate --out` wrote.
        out: where to; without it, `report` in the first run, or beside the first evaluation.
        examples: show a few inputs, as pictures or text; they are then part of the page.
        files: write figures and tables as files too, beside the page.
        tell: is told of every step.
    """
    told = tell or (lambda what, done, total: None)
    told("reading", 0, 1)
    found = read_runs(runs)
    directory = _place(found[0]) if out is None else Path(out).expanduser()
    series, tables = series_of(found), tables_of(found)
    looks = looks_of(drawn(series))
    written_figures: list[Path] = []
    written_tables: list[Path] = []
    with styled():
        sections = sections_of(found, looks, series, tables, examples)
        plates = [plate for section in sections for part in section.parts for plate in part.plates]
        drawings = {}
        for place, plate in enumerate(plates):
            told(plate.title, place, len(plates))
            drawings[plate.key] = svg(plate)
            if files:
                written_figures += write_files(plate, directory / "figures")
    for section in sections if files else ():
        for part in section.parts:
            for key, table in {**part.tables, **part.folded}.items():
                written_tables += _write_table(directory / "tables", key, table)
    title = found[0].name if len(found) == 1 else f"{len(found)} runs side by side"
    recipes = [run.recipe.get("name") for run in found]
    seeds = {name: recipes.count(name) for name in summaries_by_recipe(found)}
    screens = [
        first_screen(
            run,
            {one.model: one.label for one in series if one.run is run},
            seeds.get(str(run.recipe.get("name")), 1),
        )
        for run in found
    ]
    text = page(title, screens, {one.label: look for one, look in looks.items()}, sections, drawings, found, files)
    directory.mkdir(parents=True, exist_ok=True)
    with whole(directory / "report.html") as draft:
        draft.write_text(text, encoding="utf-8")
    told("done", 1, 1)
    return Report(directory / "report.html", written_figures, written_tables)


def _place(run: Run) -> Path:
    """Where the report of a run goes; a store holds nothing but itself, so that of an evaluation lies beside it."""
    whole_path = run.directory.resolve()
    return run.directory / "report" if run.recipe else whole_path.with_name(f"{whole_path.name}-report")


def _write_table(directory: Path, key: str, table: Table) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{key}.md", directory / f"{key}.tex"]
    for path, text in zip(paths, (table.markdown(), table.latex()), strict=True):
        with whole(path) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
    return paths
