"""`hydra-ens report`, as a person calls it."""

import json

import pytest

from constructed_runs import constructed_run
from kitchen import Kitchen, stocked


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return constructed_run(tmp_path_factory.mktemp("made") / "run", rows=40, resamples=10, unknown=1)


def test_a_run_is_reported_into_its_own_directory(made, run):
    done = run("report", str(made), "--page-only")
    assert done.returncode == 0
    assert f"wrote {made}/report/report.html" in done.stdout
    assert (made / "report" / "report.html").is_file()


def test_what_was_written_can_be_had_as_json(made, run, tmp_path):
    done = run("report", str(made), str(made), "--out", str(tmp_path / "out"), "--json", "--page-only")
    assert json.loads(done.stdout)["page"] == str(tmp_path / "out" / "report.html")


def test_help_says_that_inputs_may_be_private_and_gives_an_example(run):
    done = run("report", "--help")
    assert "private" in done.stdout
    assert "hydra-ens report runs/text-smoke runs/vision-smoke" in done.stdout


def test_what_is_no_run_ends_in_one_line(run, tmp_path):
    done = run("report", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "ReportError" in done.stderr


def test_what_a_recipe_leaves_can_be_reported(run, tmp_path, monkeypatch):
    (tmp_path / "kitchen").mkdir()
    monkeypatch.chdir(stocked(tmp_path / "kitchen"))
    assert run("run", str(Kitchen(tmp_path / "kitchen").recipe())).returncode == 0
    assert run("report", "runs/tiny").returncode == 0
    page = (tmp_path / "kitchen" / "runs" / "tiny" / "report" / "report.html").read_text()
    for section in ("tables", "confidence", "silence", "unknown", "heads", "costs", "inputs"):
        assert f'id="{section}"' in page
    assert "Not shown" not in page
    assert "data:image/webp" in page
