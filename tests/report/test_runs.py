"""What can be reported, what is left out and said so, and what is refused."""

import json
import shutil

import pytest

from constructed_runs import CLASSES, constructed_run
from hydra_ensembles.errors import HydraError
from hydra_ensembles.report import ReportError, write_report
from hydra_ensembles.report.runs import SHOWN, drawn, read_run, read_runs, series_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return constructed_run(tmp_path_factory.mktemp("made") / "run", rows=60, resamples=20)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def changed(run, **parts):
    path = run / "results.json"
    results = json.loads(path.read_text()) | parts
    path.write_text(json.dumps({name: part for name, part in results.items() if part is not None}))
    return run


def test_a_run_is_read_whole(run):
    found = read_run(run)
    assert (found.name, found.subject, found.base) == ("constructed", "hydra", "base")
    assert list(found.models) == list(found.evaluations) == ["base", "members", "hydra"]
    assert list(found.heads.members) == ["acc", "ood", "avg"]
    assert found.classes == list(CLASSES)
    assert "answers" in found.against_base
    assert not found.notes


def test_an_evaluation_by_itself_can_be_reported_and_its_store_stays_alone(run):
    page = write_report([run / "evaluations" / "hydra"], files=False).page
    assert page == run / "evaluations" / "hydra-report" / "report.html"  # a store can be written again
    text = page.read_text()
    assert "There is no other model to hold it against" in text
    assert "An evaluation by itself has no costs" in text
    assert 'id="confidence"' in text
    assert 'id="costs"' not in text


def test_a_run_of_an_older_version_has_figures_but_no_curves_and_says_what_to_do(run, tmp_path):
    shutil.rmtree(run / "evaluations")
    changed(run, costs=None, heads=None, seconds=None)
    text = write_report([run], tmp_path / "out", files=False).page.read_text()
    assert "No judged rows of base, members, hydra" in text
    assert "run the recipe again" in text
    assert 'id="tables"' in text
    for lacking in ("confidence", "heads", "costs", "inputs"):
        assert f'id="{lacking}"' not in text


def test_without_times_costs_are_counted_only(run, tmp_path):
    costs = json.loads((run / "results.json").read_text())["costs"]
    for one in costs["models"].values():
        one["latency_ms"] = None
    text = write_report([changed(run, costs=costs)], tmp_path / "out", files=False).page.read_text()
    assert "Counted, not timed" in text
    assert "cost-latency-ms" not in text


def test_inputs_that_are_gone_or_changed_are_not_shown(run, tmp_path):
    path = next((run / "data").glob("id_test*"))
    recipe = json.loads((run / "results.json").read_text())["recipe"]
    recipe["data"]["id_test"] = str(path)
    changed(run, recipe=recipe)
    path.write_text(path.read_text().replace("sentence 3", "sentence three"))
    text = write_report([run], tmp_path / "out", files=False).page.read_text()
    assert "have changed since they were judged" in text
    path.unlink()
    text = write_report([run], tmp_path / "out", files=False).page.read_text()
    assert "cannot be read here" in text
    assert str(run) not in text
    assert "<blockquote>" not in text


def test_runs_of_one_name_are_told_apart_by_seed_or_number(tmp_path):
    small = {"rows": 30, "resamples": 10, "unknown": 1, "models": ("base", "hydra"), "inputs": tmp_path / "data"}
    first, second = (constructed_run(tmp_path / str(seed), seed=seed, **small) for seed in (0, 1))
    assert [one.name for one in read_runs([first, second])] == ["constructed, seed 0", "constructed, seed 1"]
    assert [one.name for one in read_runs([first, first])] == ["constructed (1)", "constructed (2)"]
    report = write_report([first, second], tmp_path / "out", examples=False)
    seeds = (tmp_path / "out" / "tables" / "seeds.md").read_text()
    assert "± standard deviation over 2 seeds" in seeds
    assert "2 runs side by side" in report.page.read_text()
    assert "One of 2 runs of this recipe" in report.page.read_text()


def test_too_many_series_leave_hydras_and_bases_in_figures_and_all_in_tables(run):
    runs = read_runs([run] * 4)
    series = series_of(runs)
    assert len(series) == 12
    assert {one.model for one in drawn(series)} == {"base", "hydra"}
    assert len(drawn(series)) == SHOWN
    assert len(drawn(series_of(read_runs([run] * 9)))) == SHOWN


def test_a_run_without_unknown_sets_or_resamples_is_reported_without_what_they_would_tell(tmp_path):
    run = constructed_run(tmp_path / "run", rows=30, resamples=0, unknown=0, models=("base", "hydra"))
    text = write_report([run], tmp_path / "out", files=False).page.read_text()
    assert "no verdict is given" in text
    assert "No intervals were computed" in text
    assert 'id="unknown"' not in text
    assert 'id="confidence"' in text


def test_one_seed_twice_is_no_spread_over_seeds(run, tmp_path):
    write_report([run, run], tmp_path / "out", examples=False, files=False)
    assert "One of 2 runs" not in (tmp_path / "out" / "report.html").read_text()


def test_heads_that_are_not_written_as_agreed_are_refused_in_one_line(run):
    with pytest.raises(ReportError, match="not that of a run"):
        read_run(changed(run, heads={"members": []}))


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not that of a run"), ("[]", "not that of a run"), ('{"models": {}, "recipe": {}}', "holds no model")],
)
def test_a_broken_results_file_is_refused_in_one_line(tmp_path, content, said):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ReportError, match=said) as error:
        read_run(tmp_path)
    assert "\n" not in str(error.value)


def test_what_is_no_run_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(ReportError, match=r"neither a run .* nor an evaluation .*hydra-ens run"):
        read_run(tmp_path)
    with pytest.raises(ReportError, match="neither a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ReportError, match="needs a run"):
        write_report([])


def test_a_truncated_evaluation_is_refused(run):
    (run / "evaluations" / "hydra" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(HydraError, match="truncated"):
        read_run(run)
