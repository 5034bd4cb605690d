"""What README and docs show is run as written, and their numbers are those of the results files."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/own-model.md",
    "docs/deciding.md",
    "docs/sharing.md",
    "docs/backbones.md",
    "docs/adding-a-backbone.md",
    "docs/zero-shot.md",
    "docs/heads.md",
    "docs/fusion.md",
    "docs/data.md",
    "docs/finetuning.md",
    "docs/choosing-heads.md",
    "docs/evaluation.md",
    "docs/analyses.md",
    "docs/report.md",
    "docs/baselines.md",
    "docs/export.md",
    "docs/scale.md",
]


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_as_written(page, repository, tmp_path):
    snippets = blocks((repository / page).read_text(), "python")
    assert snippets
    for snippet in snippets:
        subprocess.run(
            [sys.executable, "-c", snippet], check=True, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S
        )


def test_the_reference_has_every_public_name_and_its_examples_run(repository, tmp_path):
    import hydra_ensembles

    page = (repository / "docs/reference.md").read_text()
    snippets = blocks(page, "python")
    code = "".join(snippets)
    for name in hydra_ensembles.__all__:
        assert f"\n::: hydra_ensembles.{name}\n" in page, name
        assert re.search(rf"\b{name}\b", code), name
        assert name in dir(hydra_ensembles)  # what an editor offers before anything is imported
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S)


def test_get_started_runs_as_written(repository, tmp_path):
    """Files are written under the names that the page gives them, commands run in its order; pip is left out."""
    page = (repository / "docs/get-started.md").read_text()
    for title, content in re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', page, flags=re.DOTALL):
        (tmp_path / title).write_text(content)
    bin_directory = os.path.dirname(sys.executable)
    environment = {**os.environ, "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}"}
    commands = [line for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [line for line in commands if not line.startswith("pip install ")]
    assert len(commands) >= 7
    for command in commands:
        done = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert (tmp_path / "runs/digits/report/report.html").is_file()
    assert done.stdout


def test_commands_run_as_written(repository, capsys):
    from hydra_ensembles.cli.main import main

    (console,) = blocks((repository / "README.md").read_text(), "console")
    commands = [line.removeprefix("$ ") for line in console.splitlines()]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "hydra-ens"
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 0, command
        assert capsys.readouterr().out


def test_the_tables_in_the_docs_are_those_of_the_results_files(repository):
    import deit_accuracy
    import first_steps
    import front_page
    import int8
    import latency
    import memory
    import onnx_latency
    import report
    import search
    import smoke
    import table7
    import trunk
    from scaling import summary

    readme = (repository / "README.md").read_text()
    start = (repository / "docs" / "get-started.md").read_text()
    assert f"<!-- first-steps -->\n{first_steps.as_markdown()}\n<!-- /first-steps -->" in start
    assert f"{front_page.START}{front_page.as_markdown()}{front_page.END}" in readme
    page, results = (repository / "docs" / "costs.md").read_text(), table7.read()
    assert f"<!-- table7 -->\n{table7.as_markdown(results)}\n<!-- /table7 -->" in page
    assert f"<!-- deit -->\n{deit_accuracy.as_markdown()}\n<!-- /deit -->" in page
    for row in results["rows"].values():
        assert row["counted"] == row["predicted"]
    speed = (repository / "docs" / "speed.md").read_text()
    assert f"<!-- latency -->\n{latency.as_markdown()}\n<!-- /latency -->" in speed
    assert f"<!-- memory -->\n{memory.as_markdown()}\n<!-- /memory -->" in speed
    assert f"<!-- trunk -->\n{trunk.as_markdown()}\n<!-- /trunk -->" in speed
    exporting = (repository / "docs" / "export.md").read_text()
    assert f"<!-- onnx-latency -->\n{onnx_latency.as_markdown()}\n<!-- /onnx-latency -->" in exporting
    assert f"<!-- int8 -->\n{int8.as_markdown()}\n<!-- /int8 -->" in exporting
    choosing = (repository / "docs" / "choosing-heads.md").read_text()
    assert f"<!-- search -->\n{search.as_markdown()}\n<!-- /search -->" in choosing
    reports = (repository / "docs" / "report.md").read_text()
    assert f"<!-- report -->\n{report.as_markdown()}\n<!-- /report -->" in reports
    recipes = (repository / "docs" / "recipes.md").read_text()
    assert f"<!-- smoke -->\n{smoke.as_markdown()}\n<!-- /smoke -->" in recipes
    scale = (repository / "docs" / "scale.md").read_text()
    assert f"<!-- scale -->\n{summary.as_markdown()}\n<!-- /scale -->" in scale
    assert f"<!-- simulated -->\n{summary.simulated_markdown()}\n<!-- /simulated -->" in scale
    notes = results["explained"]
    low, high = notes["mult_adds_gap_M"]
    assert f"between {low} and {high} M" in page
    for key in ("hydra_params_with_shared_norms", "and_without_cls_token_and_positions"):
        assert f"{notes[key]:,}" in page


@pytest.mark.parametrize("setting", ["text", "vision"])
def test_the_ledger_is_what_its_results_files_say(setting, repository):
    claims = importlib.import_module(f"{setting}.claims")
    ledger = (repository / "docs" / "evidence.md").read_text()
    assert f"<!-- {setting}-ledger -->\n{claims.as_markdown()}\n<!-- /{setting}-ledger -->" in ledger


@pytest.mark.parametrize("setting", ["text", "vision", "clip"])
def test_the_evidence_is_what_its_results_files_say(setting, repository):
    table = importlib.import_module(f"{setting}.table")
    assert table.README.read_text() == table.page()
    assert table.as_json() == (repository / "benchmarks" / "results" / setting / "summary.json").read_text()


def test_the_recipe_in_the_docs_can_be_read(repository):
    from hydra_ensembles.pipeline import parse_recipe

    (recipe,) = blocks((repository / "docs" / "recipes.md").read_text(), "yaml")
    assert parse_recipe(recipe).name == "my-run"


@pytest.mark.parametrize(
    "page", [*(f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))), "README.md", "CONTRIBUTING.md"]
)
def test_links_and_named_files_exist(page, repository):
    text = (repository / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    files = re.findall(r"`((?:src|tests|benchmarks|docs)/[\w./-]+\.\w+)`", text)
    for name in links:
        assert ((repository / page).parent / name).exists(), name
    for name in files:
        assert (repository / name).exists(), name
