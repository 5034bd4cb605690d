"""The examples run as they are; notebooks are kept without what they printed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The examples elsewhere, and what `digits.py` leaves: notebooks then need not train."""
    found = tmp_path_factory.mktemp("examples") / "here"
    shutil.copytree(EXAMPLES, found, ignore=shutil.ignore_patterns("hydra-digits", "__pycache__"))
    done = run(found, "digits.py", "--out", "hydra-digits")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "wrote hydra-digits" in done.stdout
    assert "photos" in done.stdout
    return found


def run(place, script, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("script", ["own_model.py", "zero_shot.py"])
def test_a_script_runs_as_it_is(script, tmp_path):
    shutil.copy(EXAMPLES / script, tmp_path)
    done = run(tmp_path, script)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "heads a member" in done.stdout


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_as_it_is(name, place):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(place / name, as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=PATIENCE_S, resources={"metadata": {"path": str(place)}}).execute()
    printed = [out["text"] for cell in book.cells for out in cell.get("outputs", ()) if out["output_type"] == "stream"]
    assert printed


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_what_it_printed(name):
    for cell in json.loads((EXAMPLES / name).read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
