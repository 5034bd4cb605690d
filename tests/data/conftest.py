"""Small sets of images and texts, written in every format, and the models that take them."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from families import model_of
from hydra_ensembles.backbones import preprocessing
from tiny_sets import CLASSES, LABELS, TEXTS, png, tiny_tokenizer


@pytest.fixture(scope="session")
def pictures():
    """Pixels `(12, 20, 20, 3)` and labels, in the order of classes, as folders have them."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), dtype=np.uint8)
    return pixels, [row // 4 for row in range(12)]


@pytest.fixture(scope="session")
def picture_sets(pictures, tmp_path_factory):
    """The same labelled images in every format, by name."""
    pixels, labels = pictures
    root = tmp_path_factory.mktemp("pictures")
    files, encoded = [], [png(image) for image in pixels]
    for row, (data, label) in enumerate(zip(encoded, labels, strict=True)):
        file = root / "folder" / CLASSES[label] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        files.append(str(file.relative_to(root)))
    names = [CLASSES[label] for label in labels]

    def parquet(name, images, rows_a_group=5, **more):
        pq.write_table(pa.table({"image": images, **more}), root / name, row_group_size=rows_a_group)

    parquet("structs.parquet", [{"bytes": data, "path": None} for data in encoded], label=labels, **{"class": names})
    parquet("bytes.parquet", encoded, label=labels)
    parquet("paths.parquet", files, label=labels)
    (root / "parts").mkdir()
    parquet("parts/0.parquet", encoded[:7], label=labels[:7])
    parquet("parts/1.parquet", encoded[7:], label=labels[7:])
    with (root / "paths.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *zip(files, names, strict=True)])
    lines = [json.dumps({"file_name": name, "label": label}) for name, label in zip(files, labels, strict=True)]
    (root / "paths.jsonl").write_text("\n".join(lines) + "\n")
    np.savez(root / "stored.npz", images=pixels, labels=np.array(labels)[:, None])
    np.savez_compressed(root / "compressed.npz", x=pixels, y=labels)
    sets = ("structs.parquet", "bytes.parquet", "paths.parquet", "parts", "paths.csv", "paths.jsonl", "folder")
    return {name: root / name for name in (*sets, "stored.npz", "compressed.npz")}


@pytest.fixture(scope="session")
def text_sets(tmp_path_factory):
    """The same labelled texts in every format, by name."""
    root = tmp_path_factory.mktemp("texts")
    rows = list(zip(TEXTS, LABELS, strict=True))
    pq.write_table(pa.table({"text": TEXTS, "label": LABELS}), root / "t.parquet", row_group_size=2)
    (root / "t.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    with (root / "t.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("label", "text"), *((label, text) for text, label in rows)])
    lines = [json.dumps({"content": text, "label": label}) for text, label in rows]
    (root / "t.jsonl").write_text("\n".join(lines))
    np.savez(root / "t.npz", texts=np.array(TEXTS), labels=LABELS)
    return {name: root / name for name in ("t.parquet", "t.tsv", "t.csv", "t.jsonl", "t.npz")}


@pytest.fixture(scope="session")
def text_model_directory(tmp_path_factory):
    """A small BERT with its tokeniser, as transformers saves it; the tokeniser's file asks for padding."""
    directory = tmp_path_factory.mktemp("bert")
    model_of("bert").save_pretrained(directory)
    tokenizer = tiny_tokenizer()
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(20)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def text_preprocess(text_model_directory):
    return preprocessing.text_preprocess(text_model_directory, token_types=True)
