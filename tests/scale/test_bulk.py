"""Bulk scoring: every row once, whatever is killed; unreadable rows aside; the figures of `predict`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from deciding import NAMES, TEXT, hydra_of
from hydra_ensembles import Hydra
from hydra_ensembles.cli.main import main
from hydra_ensembles.data import DataError, load_data
from hydra_ensembles.evaluation import answers
from hydra_ensembles.scale import bulk, score
from hydra_ensembles.scale.cluster import ScaleError
from hydra_ensembles.scale.inputs import Block, list_input
from hydra_ensembles.scale.lines import open_lines
from hydra_ensembles.uncertainty import predict
from tiny_sets import IMAGE, png


def sentences(seed, rows):
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(list("abcdefgh"), chance.integers(1, 16))) for _ in range(rows)]


def write_table(path, rows, seed=0, start=0, **more):
    columns = {"id": [f"id-{start + row}" for row in range(rows)], "sentence": sentences(seed, rows), **more}
    pq.write_table(pa.table(columns), path, row_group_size=7)


def read(output):
    return pa.concat_tables([pq.read_table(file) for file in sorted(Path(output).glob("part-*.parquet"))])


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    root = tmp_path_factory.mktemp("reviews")
    (root / "known").mkdir()
    write_table(root / "known" / "k.parquet", 20, 9, label=[NAMES[row % 5] for row in range(20)])
    hydra_of("bert", TEXT, root / "known" / "k.parquet").save(root / "hydra")
    (root / "in").mkdir()
    write_table(root / "in" / "a.parquet", 23, 0)
    write_table(root / "in" / "b.parquet", 12, 1, start=23)
    return root


@pytest.fixture(scope="module")
def scored(reviews, two_cpus):
    """One undisturbed run."""
    told = []
    options = {"id_column": "id", "rows_a_block": 10, "workers": 2, "batch_size": 4}
    summary = score(
        str(reviews / "hydra"),
        str(reviews / "in"),
        str(reviews / "out"),
        show=lambda rows, of: told.append((rows, of)),
        **options,
    )
    return summary, told, options


def test_every_row_is_scored_as_predict_would(reviews, scored):
    summary, told, _ = scored
    assert (summary["rows"], summary["scored"], summary["quarantined"]) == (35, 35, 0)
    assert (told[0], told[-1]) == ((0, 35), (35, 35))
    found = read(reviews / "out")
    assert len(list((reviews / "out").glob("part-*.parquet"))) == 3 + 2  # no block spans two files
    assert found["id"].to_pylist() == [f"id-{row}" for row in range(35)]
    assert found["file"].to_pylist() == ["a.parquet"] * 23 + ["b.parquet"] * 12
    assert found["row"].to_pylist() == [*range(23), *range(12)]
    hydra = Hydra.load(reviews / "hydra")
    expected = predict(answers(hydra, load_data(reviews / "in", hydra)).logits, hydra.fitted)
    assert found["label"].to_pylist() == expected.label.tolist()
    assert found["class"].to_pylist() == [NAMES[label] for label in expected.label]
    assert found["decision"].to_pylist() == expected.decision
    assert summary["decisions"] == {name: expected.decision.count(name) for name in sorted(set(expected.decision))}
    for name, of in (("probability", "confidence"), ("entropy", "entropy"), ("mutual_information", "epistemic")):
        assert found[name].to_pylist() == pytest.approx(getattr(expected, of).tolist(), abs=1e-5)
    assert json.loads((reviews / "out" / "_summary.json").read_text()) == summary
    assert pq.read_table(reviews / "out").num_rows == 35


def test_what_is_there_is_passed_over_and_another_run_refused(reviews, scored, monkeypatch):
    _, _, options = scored
    asked = [str(reviews / name) for name in ("hydra", "in", "out")]
    before = {file.name: file.stat().st_mtime_ns for file in (reviews / "out").glob("part-*")}
    monkeypatch.setattr(bulk, "cluster", None)  # nothing is left to do
    assert score(*asked, **options)["scored"] == 35
    assert {file.name: file.stat().st_mtime_ns for file in (reviews / "out").glob("part-*")} == before
    with pytest.raises(ScaleError, match="was begun with another rows_a_block"):
        score(*asked, **{**options, "rows_a_block": 11})
    shutil.copytree(reviews / "in", reviews / "strange", ignore=shutil.ignore_patterns("*.jsonl"))
    with pytest.raises(ScaleError, match="holds parquet files but no _manifest"):
        score(asked[0], asked[1], str(reviews / "strange"))


class BeganScoring(Exception):
    """In place of Ray: what was asked for is not refused."""


@pytest.fixture
def begins(monkeypatch):
    """Scores until there is work for Ray."""

    def no_cluster(*_):
        raise BeganScoring

    def begin(*asked, **options):
        with pytest.raises(BeganScoring):
            score(*map(str, asked), **options)

    monkeypatch.setattr(bulk, "cluster", no_cluster)
    return begin


def test_another_input_in_the_same_output_is_refused(reviews, begins, tmp_path, monkeypatch):
    for name in ("in", "same"):
        shutil.copytree(reviews / "in", tmp_path / name)
    asked = (reviews / "hydra", tmp_path / "in", tmp_path / "out")
    begins(*asked)
    begins(*asked)
    monkeypatch.chdir(tmp_path)
    begins(asked[0], "in/", "out")
    with pytest.raises(ScaleError, match="was begun with another input"):
        score(str(asked[0]), "same", "out")
    shutil.copyfile(tmp_path / "same" / "a.parquet", tmp_path / "in" / "a.parquet")  # as long as before
    with pytest.raises(ScaleError, match="was begun with another input"):
        score(*map(str, asked))


def test_an_archive_is_known_again_in_another_process(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    packed = shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path, "x.jsonl")
    found = list_input(f"zip://x.jsonl::{packed}").digest
    code = f"from hydra_ensembles.scale.inputs import list_input; print(list_input('zip://x.jsonl::{packed}').digest)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == found


@pytest.mark.parametrize(
    ("field", "value"), [("classes", [*NAMES[1:], NAMES[0]]), ("preprocess", {**TEXT, "max_tokens": 12})]
)
def test_a_model_that_says_otherwise_is_refused(reviews, begins, tmp_path, field, value):
    """Weights and thresholds are the same; what they are asked about, or what their answers are called, is not."""
    begins(reviews / "hydra", reviews / "in", tmp_path / "out")
    other = Hydra.load(reviews / "hydra")
    setattr(other, field, value)
    other.save(tmp_path / "hydra")
    with pytest.raises(ScaleError, match=f"was begun with another {field}"):
        score(str(tmp_path / "hydra"), str(reviews / "in"), str(tmp_path / "out"))


class KeepsListings(LocalFileSystem):
    """As object stores' file systems do: what was listed once is all there is, for this process."""

    protocol = "kept"

    def __init__(self, **options):
        super().__init__(**options)
        self.listed = {}

    @classmethod
    def _strip_protocol(cls, path):
        return os.fspath(path).removeprefix("kept://").rstrip("/")

    def ls(self, path, detail=False, **options):
        path = self._strip_protocol(path)
        if path not in self.listed:
            self.listed[path] = super().ls(path, detail=True)
        return self.listed[path] if detail else [one["name"] for one in self.listed[path]]

    def info(self, path, **options):
        path = self._strip_protocol(path)
        listed = self.listed.get(path.rpartition("/")[0])
        if listed is not None and path not in [one["name"] for one in listed]:
            raise FileNotFoundError(path)
        return super().info(path)

    def exists(self, path, **options):
        try:
            return bool(self.info(path))
        except FileNotFoundError:
            return False

    def _open(self, path, mode="rb", **options):
        if mode == "rb":
            self.info(path)
        return super()._open(path, mode=mode, **options)

    def invalidate_cache(self, path=None):
        self.listed.clear()


def test_what_other_processes_wrote_is_seen(tmp_path):
    fsspec.register_implementation("kept", KeepsListings, clobber=True)
    assert bulk._existing(f"kept://{tmp_path}") == set()
    names = ("file", "row", "label", "probability", "entropy", "mutual_information", "decision")
    part = bulk.as_parquet({name: [] for name in names}, 1.5)
    (tmp_path / "part-000000.parquet").write_bytes(part)
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("kept").open(f"{tmp_path}/part-000000.parquet")
    found = bulk._summary(f"kept://{tmp_path}", [Block("part-000000", ("a.jsonl",), 0, 2)], 1.0)
    assert (found["rows"], found["quarantined"], found["worker_seconds"]) == (2, 2, 1.5)
    assert bulk._existing(f"kept://{tmp_path}") == {"part-000000.parquet", "_summary.json"}


def test_unreadable_rows_go_to_quarantine(reviews, two_cpus, tmp_path):
    """Wherever they stand, in the first row as in any other, and where a block has no others."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": row, "text": text}) for row, text in enumerate(sentences(3, 12))]
    lines[2], lines[5], lines[11] = '{"id": 2, "te', json.dumps({"id": 5, "text": None}), json.dumps({"id": 11})
    (tmp_path / "in" / "x.jsonl").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "in" / "y.jsonl").write_text('{"id": "a"}\n{"id": "b", "text": "a"}\n{"id": [1], "text": "b"}\n')
    (tmp_path / "in" / "z.jsonl").write_text("{\n[]\n" + "[" * 5000 + '\n{"text": "a \\ud800", "id": 0}\n')
    summary = score(
        str(reviews / "hydra"), f"file://{tmp_path}/in", f"{tmp_path}/out", id_column="id", rows_a_block=3, workers=1
    )
    assert (summary["rows"], summary["scored"], summary["quarantined"]) == (19, 11, 8)
    found = read(tmp_path / "out")
    assert found["row"].to_pylist() == [0, 1, 3, 4, 6, 7, 8, 9, 10, 1, 2]
    assert found["id"].to_pylist() == ["0", "1", "3", "4", "6", "7", "8", "9", "10", "b", "[1]"]
    broken = [
        json.loads(line)
        for file in sorted((tmp_path / "out" / "_quarantine").iterdir())
        for line in file.read_text().splitlines()
    ]
    reasons = {
        "x.jsonl 2": "is not JSON",
        "x.jsonl 5": "expected a text",
        "x.jsonl 11": "has no 'text'",
        "y.jsonl 0": "has no 'text'",
        "z.jsonl 0": "is not JSON",
        "z.jsonl 1": "is a list, expected an object",
        "z.jsonl 2": "is not JSON: maximum recursion depth",
        "z.jsonl 3": "half of a surrogate pair",
    }
    assert [f"{one['file']} {one['row']}" for one in broken] == list(reasons)
    for one, words in zip(broken, reasons.values(), strict=True):
        assert words in one["reason"]


@pytest.mark.parametrize("first", ['{"id": "x", "te', '{"id": "x"}', '{"id": "x", "text": null}', '["a"]'])
def test_the_first_line_of_jsonl_is_no_more_than_any_other(tmp_path, first):
    (tmp_path / "x.jsonl").write_text(f'{first}\n{{"id": "y", "text": "a b"}}\n')
    rows = open_lines(tmp_path / "x.jsonl", "text", "id")
    assert (len(rows), rows.columns.inputs, rows[1].input) == (2, ("text",), "a b")
    with pytest.raises(DataError, match=r"^row 0 of "):
        rows[0]
    (tmp_path / "x.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(DataError, match="which column is the input"):
        open_lines(tmp_path / "x.jsonl", "text", "id")


def test_an_id_that_no_table_has_is_refused_before_work(reviews, tmp_path):
    with pytest.raises(DataError, match=r"a\.parquet has no column 'idd'; it has id, sentence"):
        list_input(str(reviews / "in"), "idd")
    (tmp_path / "x.jsonl").write_text('{"i\n{"text": "a"}\n{"id": 3, "text": "b"}\n')
    assert list_input(str(tmp_path), "id").rows == 3
    with pytest.raises(DataError, match=r"x\.jsonl has no column 'idd'; it has text, id"):
        list_input(str(tmp_path), "idd")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="holds images, which have no column 'id'"):
        list_input(str(tmp_path / "photos"), "id")


def test_an_id_has_one_type_in_all_output_files(tmp_path):
    for name, kind in (("a", pa.int32()), ("b", pa.int32())):
        pq.write_table(pa.table({"id": pa.array([1], kind), "text": ["a"]}), tmp_path / f"{name}.parquet")
    assert list_input(str(tmp_path), "id").id_type == pa.int32()
    part = bulk.as_parquet({"id": [], "decision": []}, 0.0, pa.int32())
    assert pq.read_schema(pa.BufferReader(part)).field("id").type == pa.int32()
    (tmp_path / "c.jsonl").write_text('{"id": 1, "text": "a"}\n')
    assert list_input(str(tmp_path), "id").id_type == pa.string()
    assert list_input(str(tmp_path / "c.jsonl"), "id").id_type == pa.string()


def test_what_no_row_is_to_blame_for_ends_the_run(reviews, two_cpus, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png(np.zeros((20, 20, 3), dtype=np.uint8)))
    with pytest.raises(ScaleError, match=r"^the model takes texts, but .* holds images"):
        score(str(reviews / "hydra"), str(tmp_path / "in"), str(tmp_path / "out"), workers=1)
    assert not list((tmp_path / "out").glob("part-*"))


def test_images_of_a_folder_and_of_an_address(two_cpus, tmp_path):
    """Folders here, and the same inside an archive, which fsspec reads as it reads a bucket."""
    chance = np.random.default_rng(0)
    for row in range(15):
        file = tmp_path / "photos" / NAMES[row % 5] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)))
    hydra_of("timm", IMAGE, tmp_path / "photos").save(tmp_path / "hydra")
    (tmp_path / "photos" / "ant" / "00.png").write_bytes(b"not an image")
    summary = score(str(tmp_path / "hydra"), str(tmp_path / "photos"), str(tmp_path / "out"), rows_a_block=4, workers=1)
    assert (summary["scored"], summary["quarantined"]) == (14, 1)
    files = read(tmp_path / "out")["file"].to_pylist()
    assert files == sorted(f"{NAMES[row % 5]}/{row:02}.png" for row in range(1, 15))
    packed = shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    again = score(str(tmp_path / "hydra"), f"zip://::{packed}", str(tmp_path / "again"), rows_a_block=4, workers=1)
    assert (again["scored"], again["quarantined"]) == (14, 1)
    assert read(tmp_path / "again") == read(tmp_path / "out")


def test_what_cannot_be_listed_says_so(tmp_path, reviews):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.parquet, \.jsonl files and no images are there"):
        list_input(str(tmp_path / "empty"))
    for name in ("x.csv", "x.pdf"):
        (tmp_path / "empty" / name).write_text("text\nfine\n")
    with pytest.raises(
        DataError, match=r"no images are there \(but \.csv; write them as parquet, or ask with predict\)"
    ):
        list_input(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="cannot be opened"):
        list_input("nosuch://bucket/x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"cannot be listed"):
        list_input(str(tmp_path / "x.parquet"))
    assert [file.path for file in list_input(str(reviews / "in" / "b*.parquet")).files] == ["b.parquet"]


@pytest.mark.slow
def test_killed_again_and_again_no_row_is_lost_or_doubled(reviews, tmp_path):
    command = [sys.executable, "-c", "from hydra_ensembles.cli.main import main; main()", "score"]
    command += [*(str(reviews / name) for name in ("hydra", "in")), str(tmp_path / "out")]
    command += ["--id", "id", "--rows-a-block", "1", "--workers", "1"]
    for kills in range(4):
        driver = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        wanted = 8 * (kills + 1)
        while kills < 3 and driver.poll() is None and len(list((tmp_path / "out").glob("part-*.parquet"))) < wanted:
            time.sleep(0.02)
        if kills < 3:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert driver.returncode == 0
    assert sorted(read(tmp_path / "out")["id"].to_pylist()) == sorted(f"id-{row}" for row in range(35))


def test_the_command_tells_what_it_wrote(reviews, scored, capsys):
    asked = [str(reviews / name) for name in ("hydra", "in", "out")]
    with pytest.raises(SystemExit, match="0"):
        main(["score", *asked, "--id", "id", "--rows-a-block", "10", "--batch-size", "4", "--workers", "2"])
    assert "35 of 35 rows scored, 0 quarantined, " in capsys.readouterr().out


def test_images_behind_linked_folders_are_scored_too(tmp_path):
    for place in ("elsewhere/cat", "photos/dog"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").write_bytes(b"")
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    assert [file.path for file in list_input(str(tmp_path / "photos")).files] == ["cat/1.png", "dog/1.png"]


def test_an_output_inside_the_input_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    for inside in ("photos", "photos/scored"):
        with pytest.raises(ScaleError, match="lies in the input"):
            score("timm:test_vit", str(tmp_path / "photos"), str(tmp_path / inside))
