"""Every format gives the same rows, and says in one line what is wrong with a file."""

import csv
import json
import math
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hydra_ensembles.backbones import UnknownReference
from hydra_ensembles.data import DataError, as_batches, batches_for, load_data, open_data
from hydra_ensembles.data.lines import csv_fields
from hydra_ensembles.optional import MissingExtra
from tiny_sets import CLASSES, IMAGE, LABELS, TEXTS, png

PICTURES = [
    *("structs.parquet", "bytes.parquet", "paths.parquet", "parts", "paths.csv", "paths.jsonl", "folder"),
    *("stored.npz", "compressed.npz"),
]


@pytest.mark.parametrize("name", PICTURES)
def test_the_same_images_come_out_of_every_format(name, picture_sets, pictures):
    rows = open_data(picture_sets[name])
    assert (rows.kind, len(rows)) == ("image", 12)
    assert rows.labels.tolist() == pictures[1]
    batches = batches_for(IMAGE, rows, batch_size=5)
    assert as_batches(batches) is batches
    found, expected = list(batches), list(load_data(picture_sets["structs.parquet"], IMAGE, batch_size=5))
    assert [len(batch) for batch in found] == [5, 5, 2]
    for batch, other in zip(found, expected, strict=True):
        assert torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.labels, other.labels)


@pytest.mark.parametrize("name", PICTURES)
def test_batches_can_be_sent_to_a_process_and_take_along_nothing_that_was_read(name, picture_sets):
    batches = load_data(picture_sets[name], IMAGE, batch_size=5, shuffle=True, augment="flip")
    unread = len(pickle.dumps(batches))
    expected = list(batches)
    if name != "compressed.npz":  # which is held in memory
        assert len(pickle.dumps(batches)) == unread
    for batch, other in zip(pickle.loads(pickle.dumps(batches)), expected, strict=True):
        assert torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.labels, other.labels)


@pytest.mark.parametrize("name", ["t.parquet", "t.tsv", "t.csv", "t.jsonl", "t.npz"])
def test_batches_of_texts_can_be_sent_to_a_process(name, text_sets, text_preprocess):
    batches = load_data(text_sets[name], text_preprocess, batch_size=3, shuffle=True)
    for batch, other in zip(pickle.loads(pickle.dumps(batches)), batches, strict=True):
        assert torch.equal(batch.inputs["input_ids"], other.inputs["input_ids"])
        assert torch.equal(batch.labels, other.labels)


@pytest.mark.parametrize("name", PICTURES[1:7])
def test_the_same_encoded_images_have_the_same_digest_in_every_format(name, picture_sets):
    rows, reference = open_data(picture_sets[name]), open_data(picture_sets["structs.parquet"])
    assert rows.digest == reference.digest
    assert rows[:5].digest == reference[:5].digest != rows.digest
    assert batches_for(IMAGE, rows).digest == batches_for(IMAGE, reference).digest


@pytest.mark.parametrize("name", ["structs.parquet", "paths.csv", "folder"])
def test_classes_come_from_a_column_beside_the_labels_from_names_and_from_folders(name, picture_sets):
    assert open_data(picture_sets[name]).classes == CLASSES


@pytest.mark.parametrize("name", ["t.parquet", "t.tsv", "t.csv", "t.jsonl", "t.npz"])
def test_the_same_texts_come_out_of_every_format(name, text_sets):
    rows = open_data(text_sets[name])
    assert (rows.kind, rows.classes) == ("text", None)
    assert [row.input for row in rows] == TEXTS
    assert [row.label for row in rows] == rows.labels.tolist() == LABELS
    assert rows.digest == open_data(text_sets["t.parquet"]).digest
    assert rows[-2].input == TEXTS[-2]
    assert [row.input for row in rows.read([5, 0, 3])] == [TEXTS[5], TEXTS[0], TEXTS[3]]


@pytest.mark.parametrize("name", ["t.parquet", "t.tsv", "t.csv", "t.jsonl", "t.npz"])
@pytest.mark.parametrize(("text", "chosen"), [("[:3]", slice(3)), ("[3:]", slice(3, None)), ("[-4:-1]", slice(-4, -1))])
def test_a_range_behind_a_reference_chooses_rows_as_in_python(name, text, chosen, text_sets):
    assert [row.input for row in open_data(f"{text_sets[name]}{text}")] == TEXTS[chosen]


def test_slices_of_slices_and_samples_keep_their_rows_and_order(text_sets):
    rows = open_data(text_sets["t.parquet"])
    assert [row.input for row in rows[1:6][1:3]] == TEXTS[2:4]
    sample = rows.sample(4, seed=1)
    again = [row.input for row in rows.sample(4, seed=1)]
    assert [row.input for row in sample] == again == [text for text in TEXTS if text in again]
    assert {rows.sample(4, seed=seed).digest for seed in range(5)} != {sample.digest}
    assert [row.input for row in rows[1:6].at(np.array([3, 0]))] == [TEXTS[1], TEXTS[4]]


def test_a_csv_field_may_hold_line_breaks_and_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\r\n"one\r\ntwo ""three"", four",1\r\n\r\nfive,0\r\n')
    rows = open_data(path)
    assert [row.input for row in rows] == ['one\r\ntwo "three", four', "five"]
    assert rows.labels.tolist() == [1, 0]


def test_columns_can_be_named_and_texts_be_pairs(tmp_path):
    table = pa.table({"a": ["x", "y"], "b": ["u", "v"], "answer": ["no", "yes"], "gold": [3, 4]})
    pq.write_table(table, path := tmp_path / "pairs.parquet")
    rows = open_data(path, text=("a", "b"), label="answer")
    assert [tuple(row) for row in rows] == [(("x", "u"), 0), (("y", "v"), 1)]
    assert rows.classes == ["no", "yes"]
    assert open_data(path, text="a", label="answer", classes=["yes", "no"]).labels.tolist() == [1, 0]
    assert open_data(path, text="b").labels is None
    (tmp_path / "cut.tsv").write_text("a\tb\nxy\tz\n")
    (tmp_path / "elsewhere.tsv").write_text("a\tb\nx\tyz\n")
    assert len({open_data(tmp_path / f"{name}.tsv", text=("a", "b")).digest for name in ("cut", "elsewhere")}) == 2
    pq.write_table(pa.table({"premise": ["p"], "hypothesis": ["h"], "label": [0]}), path)
    assert open_data(path)[0].input == ("p", "h")


def test_a_file_without_header_has_numbered_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("good\t1\nbad\t0\n")
    rows = open_data(tmp_path / "a.tsv", header=False, text="0", label="1")
    assert [tuple(row) for row in rows] == [("good", 1), ("bad", 0)]


def test_labels_that_are_all_minus_one_are_no_labels(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], "label": [-1, -1]}), path := tmp_path / "a.parquet")
    assert open_data(path).labels is None
    assert open_data(path)[0].label is None


def test_class_names_are_those_that_hugging_face_writes_beside_the_schema(tmp_path):
    features = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    table = pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path := tmp_path / "a.parquet")
    assert open_data(path).classes == ["neg", "pos"]


def test_names_of_a_whole_file_are_numbered_alike_in_each_part_of_it(tmp_path):
    pq.write_table(pa.table({"text": list("abc"), "label": ["x", "y", "z"]}), path := tmp_path / "a.parquet")
    part = open_data(f"{path}[1:]")
    assert part.labels.tolist() == [1, 2]
    assert part.classes == ["x", "y", "z"]


def test_parquet_files_of_several_splits_are_not_put_together(tmp_path):
    for name in ("train-0", "train-1", "test-0"):
        pq.write_table(pa.table({"text": [name]}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"holds the splits test, train; name one, e\.g\. '.*train\*\.parquet'"):
        open_data(tmp_path)
    assert [row.input for row in open_data(f"{tmp_path}/train*.parquet")] == ["train-0", "train-1"]
    assert [row.input for row in open_data(f"{tmp_path}/train*.parquet[1:]")] == ["train-1"]
    pq.write_table(pa.table({"words": ["x"]}), tmp_path / "train-2.parquet")
    with pytest.raises(DataError, match=r"train-2\.parquet and train-0\.parquet have different columns"):
        open_data(f"{tmp_path}/train*.parquet")


def test_images_without_folders_have_no_labels(tmp_path, pictures):
    for row in range(3):
        (tmp_path / f"{row}.PNG").write_bytes(png(pictures[0][row]))
    rows = open_data(tmp_path)
    assert (len(rows), rows.labels, rows.classes) == (3, None, None)
    (batch,) = batches_for(IMAGE, rows)
    assert batch.labels is None


def test_gray_images_and_images_with_alpha_become_rgb(tmp_path, pictures):
    pixels = pictures[0]
    np.savez(tmp_path / "gray.npz", images=pixels[..., 0])
    np.savez(tmp_path / "rgb.npz", images=np.repeat(pixels[..., :1], 3, axis=-1))
    (gray,), (rgb,) = (load_data(tmp_path / name, IMAGE) for name in ("gray.npz", "rgb.npz"))
    assert torch.equal(gray.inputs, rgb.inputs)
    alpha = np.concatenate([pixels, np.full((12, 20, 20, 1), 255, np.uint8)], axis=-1)
    pq.write_table(pa.table({"img": [png(image) for image in alpha]}), path := tmp_path / "alpha.parquet")
    (batch,) = load_data(path, IMAGE)
    np.savez(tmp_path / "same.npz", images=pixels)
    (same,) = load_data(tmp_path / "same.npz", IMAGE)
    assert torch.equal(batch.inputs, same.inputs)


def test_arrays_of_several_splits_are_told_apart_by_name(tmp_path, pictures):
    pixels, labels = pictures
    np.savez(
        tmp_path / "a.npz",
        train_images=pixels[:9],
        train_labels=labels[:9],
        val_images=pixels[9:],
        val_labels=labels[9:],
    )
    rows = open_data(tmp_path / "a.npz", image="val_images", label="val_labels")
    assert rows.labels.tolist() == labels[9:]
    with pytest.raises(DataError, match="no column 'train_labels'"):
        open_data(tmp_path / "a.npz", image="val_images", label="train_labels")


def test_variables_in_a_reference_expand(text_sets, monkeypatch):
    monkeypatch.setenv("TEXTS", str(text_sets["t.tsv"].parent))
    assert len(open_data("${TEXTS}/t.tsv[:2]")) == 2
    with pytest.raises(UnknownReference, match="NO_SUCH_VARIABLE"):
        open_data("${NO_SUCH_VARIABLE}/t.tsv")


def test_torchvision_sets_are_read_from_disk_and_never_fetched(tmp_path, pictures, monkeypatch):
    pytest.importorskip("torchvision")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    gray, labels = pictures[0][:, :, :, 0], pictures[1]
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(
            b"".join(n.to_bytes(4, "big") for n in (0x803, 12, 20, 20)) + gray.tobytes()
        )
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(
            b"".join(n.to_bytes(4, "big") for n in (0x801, 12)) + bytes(labels)
        )
    rows = open_data("torchvision:MNIST:test[4:]", root=tmp_path)
    assert rows.labels.tolist() == labels[4:]
    assert rows.classes[7] == "7 - seven"
    np.savez(tmp_path / "same.npz", images=gray[4:])
    (batch,), (same,) = batches_for(IMAGE, rows), load_data(tmp_path / "same.npz", IMAGE)
    assert torch.equal(batch.inputs, same.inputs)
    with pytest.raises(DataError, match=r"cannot be read from .* download it there"):
        open_data("torchvision:CIFAR10:test", root=tmp_path)
    for split in ("middle", "val"):  # what is not the training set is not for choosing
        with pytest.raises(DataError, match=f"does not know the split '{split}'"):
            open_data(f"torchvision:MNIST:{split}", root=tmp_path)
    with pytest.raises(DataError, match="name one, as torchvision:MNIST:train or torchvision:MNIST:test"):
        open_data("torchvision:MNIST", root=tmp_path)
    with pytest.raises(DataError, match="torchvision has no data set 'NOPE'"):
        open_data("torchvision:NOPE:test", root=tmp_path)
    monkeypatch.delenv("TORCHVISION_DATA", raising=False)
    with pytest.raises(DataError, match="set TORCHVISION_DATA"):
        open_data("torchvision:MNIST:test")


def test_sets_of_the_hub_need_the_datasets_library_and_say_so():
    with pytest.raises(DataError, match="expected hf:NAME:SPLIT"):
        open_data("hf:glue")
    try:
        import datasets  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(MissingExtra, match="pip install datasets"):
            open_data("hf:glue:sst2:train")


def test_sets_of_the_hub_are_the_rows_they_hold(picture_sets, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.parquet").write_bytes(picture_sets["structs.parquet"].read_bytes())
    assert open_data(f"hf:{tmp_path / 'set'}:train").digest == open_data(picture_sets["structs.parquet"]).digest


@pytest.mark.parametrize(
    ("folders", "classes", "labels"),
    [
        (range(12), [str(n) for n in range(12)], list(range(12))),
        ([0, 2, 10], ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"], [0, 2, 10]),
        (range(1, 12), [str(n) for n in range(1, 12)], list(range(11))),
        (["00", "01", "02"], ["00", "01", "02"], [0, 1, 2]),
    ],
)
def test_folders_called_by_numbers_are_numbered_by_them(folders, classes, labels, tmp_path, pictures):
    """Sorted as texts, 10 would come before 2."""
    for name in folders:
        (tmp_path / str(name)).mkdir()
        (tmp_path / str(name) / "x.png").write_bytes(png(pictures[0][0]))
    rows = open_data(tmp_path)
    assert rows.classes == classes
    names = [name.split("/")[0] for name in rows.names()]
    found = dict(zip(names, rows.labels.tolist(), strict=True))
    assert found == {str(name): label for name, label in zip(folders, labels, strict=True)}
    assert all(rows.classes[label] == name for name, label in found.items())


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('a pipe of 5" width,1', ['a pipe of 5" width', "1"]),
        ('"a ""b"", c",1', ['a "b", c', "1"]),
        ('"a"b,', ["ab", ""]),
        ('x"y,"z"', ['x"y', "z"]),
        ('"",', ["", ""]),
        (",,", ["", "", ""]),
    ],
)
def test_csv_is_read_as_the_standard_library_does(line, fields):
    assert csv_fields(line) == fields == next(csv.reader([line]))


def test_a_quotation_mark_inside_a_field_of_csv_loses_no_row(tmp_path):
    long = "x" * 200_000  # longer than the standard library's reader allows
    lines = ['a pipe of 5" width,1', "fine film,0", 'another 6" one,0', '"goes, on', 'here",1', f"{long},0"]
    (tmp_path / "q.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    rows = open_data(tmp_path / "q.csv")
    texts = ['a pipe of 5" width', "fine film", 'another 6" one', "goes, on\nhere", long]
    assert [row.input for row in rows] == texts
    assert rows.labels.tolist() == [1, 0, 0, 1, 0]


def test_a_line_of_plain_text_and_one_image_file_are_rows(tmp_path, picture_sets):
    (tmp_path / "lines.txt").write_text('text, with a comma\n\n"quoted\ta tab\r\nno end of line', newline="")
    rows = open_data(tmp_path / "lines.txt")
    assert [row.input for row in rows] == [
        "text, with a comma",
        "",
        '"quoted\ta tab',
        "no end of line",
    ]  # as many as lines
    assert rows.labels is None
    file = next(one for one in sorted(picture_sets["folder"].rglob("*")) if one.is_file())
    (row,) = open_data(file)
    assert row.input == file.read_bytes()
    assert open_data(file).names() == [file.name]


def _table(**columns):
    return lambda path: pq.write_table(pa.table(columns), path)


def _text(content):
    return lambda path: path.write_text(content)


@pytest.mark.parametrize(
    ("name", "write", "options", "message"),
    [
        ("a.parquet", None, {}, "does not exist"),
        ("a.pkl", _text("x"), {}, r"ends in '\.pkl'; known are \.parquet"),
        ("a.parquet", _text("text"), {}, "truncated or not a parquet file"),
        ("a.parquet", _table(text=pa.array([], pa.string())), {}, "has no rows"),
        (
            "a.parquet",
            _table(text=["a"], label=[0]),
            {"text": "txt"},
            r"no column 'txt'; it has 'text' \(text\), 'label'",
        ),
        ("a.parquet", _table(u=["a"], v=["b"]), {}, "which column is the input.*'u' .text., 'v'"),
        ("a.parquet", _table(front=[b"a"], back=[b"b"]), {}, r"several columns of images \(front, back\)"),
        ("a.parquet", _table(text=["a", "b"], label=[0, None]), {}, "row 1 of .* has no 'label'"),
        ("a.parquet", _table(text=["a", "b"], label=[0.0, math.nan]), {}, "row 1 of .* has no 'label'"),
        ("a.parquet", _table(text=["a", "b"], label=[1.0, 0.5]), {}, "row 1 of .* has label 0.5; expected whole"),
        ("a.parquet", _table(text=["a", "b"], label=[0, -2]), {}, "row 1 of .* has label -2; labels count from 0"),
        ("a.parquet", _table(text=["a"], label=[2]), {"classes": "ab"}, "label 2; there are 2 classes"),
        ("a.parquet", _table(text=["a"], label=["c"]), {"classes": "ab"}, "label 'c', which is none of the 2 classes"),
        ("a.parquet", _table(text=["a", None], label=[0, 1]), {}, "row 1 of .*: 'text' is NoneType, expected a text"),
        ("a.tsv", _text(""), {}, "is empty"),
        ("a.tsv", _text("text\tlabel\n"), {}, "has no rows"),
        ("a.tsv", _text("text\tlabel\na\t0\nb\n"), {}, "row 1 of .* has 1 fields, expected 2"),
        ("a.csv", _text('text,label\n"a,0\n'), {}, "never closed"),
        ("a.jsonl", _text('{"text": "a"}\n{"text": \n'), {}, "row 1 of .* is not JSON"),
        ("a.jsonl", _text('{"text": "a"}\n{"other": 3}\n'), {}, "row 1 of .* has no 'text'; it has other"),
        ("a.jsonl", _text('{"text": "a"}\n[1]\n'), {}, "row 1 of .* is a list, expected an object"),
        ("a.jsonl", lambda path: path.write_bytes(b'{"text": "\xff"}'), {}, "row 0 of .* is not UTF-8"),
        ("a.npz", _text("x"), {}, "not an npz file of plain arrays"),
        ("a.npz", lambda p: np.savez(p, x=np.array([{}], dtype=object)), {}, "not an npz file of plain arrays"),
        ("a.npz", lambda p: np.savez(p, images=np.zeros((2, 4, 4, 3))), {}, "which column is the input"),
        (
            "a.npz",
            lambda p: np.savez(p, images=np.zeros((2, 4, 4, 3))),
            {"image": "images"},
            "float64.*expected texts, or",
        ),
        ("a", lambda path: path.mkdir(), {}, "holds neither images, nor folders"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(name, write, options, message, tmp_path):
    path = tmp_path / name
    if write is not None:
        write(path)
    with pytest.raises(DataError, match=message) as error:
        list(open_data(path, **options))
    assert "\n" not in str(error.value)


def test_a_folder_with_images_and_folders_is_ambiguous(picture_sets, tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"holds images \('a.png'\) and folders \('class'\)"):
        open_data(tmp_path)


def test_an_unreadable_image_is_named_by_its_row(tmp_path, pictures):
    good = png(pictures[0][0])
    pq.write_table(pa.table({"image": [good, good[:60], good]}), path := tmp_path / "a.parquet")
    for workers in (0, 2):
        with pytest.raises(DataError, match=r"row 1 of .*a\.parquet: not a readable image") as error:
            list(load_data(path, IMAGE, batch_size=2, workers=workers))
        assert "\n" not in str(error.value)
    (tmp_path / "b.csv").write_text("image\nlost.png\n")
    with pytest.raises(DataError, match=r"row 0 of .*: image 'lost.png' cannot be read: No such file"):
        open_data(tmp_path / "b.csv")[0]
    pq.write_table(pa.table({"image": pa.array([None, good], pa.binary())}), path)
    with pytest.raises(DataError, match=r"row 0 of .*: 'image' is NoneType, expected an image"):
        open_data(path)[0]


def test_rows_out_of_range_and_empty_choices_are_refused(text_sets):
    rows = open_data(text_sets["t.parquet"])
    with pytest.raises(IndexError):
        rows[7]
    with pytest.raises(DataError, match=r"no row of .* is left"):
        rows[7:]
    with pytest.raises(DataError, match="a sample of 8 out of 7 rows"):
        rows.sample(8)


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("table.csv", "text;label", "separated by semicolons; a .csv file has commas"),
        ("table.csv", "text\tlabel", "separated by tabs; a .csv file has commas"),
        ("table.tsv", "text,label", "separated by commas; a .tsv file has tabs"),
    ],
)
def test_a_table_with_another_separator_is_refused(name, header, message, tmp_path):
    (tmp_path / name).write_text(f"{header}\n{header.replace('text', 'good').replace('label', '1')}\n")
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / name)


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path):
    (tmp_path / "twice.csv").write_text("text,text,label\na,b,1\n")
    with pytest.raises(DataError, match="two columns called 'text'"):
        open_data(tmp_path / "twice.csv")


def test_hidden_files_are_no_data_and_links_are_followed_once(tmp_path, pictures):
    for place in ("set/cat", "set/cat/.ipynb_checkpoints", "set/dog", "elsewhere"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("set/cat/a", "set/cat/.ipynb_checkpoints/a", "set/dog/._b", "set/dog/b", "elsewhere/c"):
        (tmp_path / f"{place}.png").write_bytes(png(pictures[0][0]))
    (tmp_path / "set/dog/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/dog/round").symlink_to(tmp_path / "set/dog")
    assert open_data(tmp_path / "set").names() == ["cat/a.png", "dog/b.png", "dog/more/c.png"]


def test_a_first_row_without_a_label_does_not_make_a_set_unlabelled(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": null}\n{"text": "b", "label": 1}\n')
    with pytest.raises(DataError, match=r"row 0 of .* has no 'label'"):
        open_data(tmp_path / "a.jsonl").labels  # noqa: B018
    assert open_data(tmp_path / "a.jsonl", label=False).labels is None
    (tmp_path / "b.jsonl").write_text('{"text": "a", "label": null}\n{"text": "b", "label": null}\n')
    assert open_data(tmp_path / "b.jsonl").labels is None


def test_a_question_and_its_sentence_are_a_pair_and_other_texts_are_asked_for(tmp_path):
    (tmp_path / "qnli.tsv").write_text("question\tsentence\tlabel\nWhat?\tThis.\t1\n")
    assert open_data(tmp_path / "qnli.tsv")[0].input == ("What?", "This.")
    (tmp_path / "two.tsv").write_text("review\tdocument\nfine\tlong\n")
    with pytest.raises(DataError, match=r"several columns of texts \(document, review\)|\(review, document\)"):
        open_data(tmp_path / "two.tsv")


def test_a_mark_before_a_quoted_first_field_that_goes_on_is_read(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"first\nline",1\nb,2\n')
    rows = open_data(tmp_path / "a.csv", header=False, text="0", label="1")
    assert [row.input for row in rows] == ["first\nline", "b"]


def test_a_damaged_page_behind_a_whole_footer_names_its_file(tmp_path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"text": ["text"] * 400}), path, compression="NONE", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged\.parquet is damaged"):
        list(open_data(path))


def test_labels_of_another_length_than_the_images_are_refused(tmp_path):
    np.savez(tmp_path / "t.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(3))
    with pytest.raises(DataError, match="'images' has 4 rows, 'labels' 3"):
        open_data(tmp_path / "t.npz")
