"""A hydra where other libraries expect a model of theirs, with the real libraries."""

import numpy as np
import pytest
import torch
from PIL import Image

from families import BY_NAME, model_of
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.data import DataError, prepare
from hydra_ensembles.errors import HydraError
from hydra_ensembles.interop import HydraClassifier, HydraPostprocessor, MemberRows, as_pipeline
from hydra_ensembles.uncertainty import Fitted
from hydra_ensembles.uncertainty.temperature import Temperature
from tiny_sets import IMAGE, TEXTS, png, tiny_tokenizer

NAMES = ["zebra", "bee", "ant", "dog", "cat"]  # not in the order of the alphabet
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 20, 18, 3), dtype=np.uint8)
TEXT = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 16, "pad_id": 0, "token_types": True}


def hydra_of(name, preprocess, classes=NAMES):
    members = [prune(model_of(name), HeadSet.sample(model_of(name), keep=8, seed=seed)) for seed in range(3)]
    hydra = fuse(members)
    hydra.about(hydra.heads, classes, preprocess, {})
    return hydra


@pytest.fixture(scope="module")
def images():
    return hydra_of("timm", IMAGE)


@pytest.fixture(scope="module")
def texts():
    return hydra_of("bert", TEXT)


# torch-uncertainty


def test_torch_uncertaintys_routine_judges_a_hydra_as_we_do(images):
    from lightning import Trainer
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.routines import ClassificationRoutine

    inputs, labels = torch.randn(20, 3, 16, 16), torch.arange(20) % 5
    routine = ClassificationRoutine(model=MemberRows(images), num_classes=5, loss=None, is_ensemble=True)
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    (found,) = trainer.test(routine, DataLoader(TensorDataset(inputs, labels), batch_size=7), verbose=False)
    with torch.no_grad():
        probs = images.members(inputs).softmax(dim=-1).mean(dim=1)
    assert found["test/cls/Acc"] == pytest.approx((probs.argmax(1) == labels).float().mean().item())
    one_hot = torch.nn.functional.one_hot(labels, 5)
    assert found["test/cls/Brier"] == pytest.approx((probs - one_hot).square().sum(1).mean().item(), rel=1e-4)
    assert MemberRows(images)(inputs).shape == (60, 5)


# OpenOOD (not on PyPI): what its BasePostprocessor asks, as its evaluators call it


def test_the_postprocessor_is_one_of_openoods_where_that_is_installed(monkeypatch):
    import importlib
    import sys
    from types import ModuleType

    from hydra_ensembles.interop import openood

    library = ModuleType("openood.postprocessors")
    library.BasePostprocessor = type("BasePostprocessor", (), {})
    monkeypatch.setitem(sys.modules, "openood", ModuleType("openood"))
    monkeypatch.setitem(sys.modules, "openood.postprocessors", library)
    try:
        assert issubclass(importlib.reload(openood).HydraPostprocessor, library.BasePostprocessor)
    finally:
        monkeypatch.undo()
        importlib.reload(openood)


def test_the_postprocessor_gives_labels_and_confidences_that_are_high_for_known_inputs(images):
    inputs = torch.randn(6, 3, 16, 16)
    processor = HydraPostprocessor(images)
    processor.setup(images, {}, {})
    label, confidence = processor(inputs)
    said = images.predict(inputs)
    assert torch.equal(label, said.label)
    assert torch.equal(confidence.argsort(), said.confidence.argsort())
    torch.testing.assert_close(confidence, -said.ood_score, atol=1e-6, rtol=0)
    loader = [{"data": inputs[:4], "label": torch.arange(4)}, {"data": inputs[4:], "label": torch.arange(2)}]
    labels, confidences, true = processor.inference(images, loader, progress=False)
    assert labels.tolist() == said.label.tolist()
    np.testing.assert_allclose(confidences, confidence, atol=1e-6)
    assert true.tolist() == [0, 1, 2, 3, 0, 1]


def test_the_postprocessor_asks_its_own_hydra_and_knows_its_scores(images):
    with pytest.raises(HydraError, match="the same one"):
        HydraPostprocessor(images).postprocess(model_of("timm"), torch.randn(1, 3, 16, 16))
    with pytest.raises(HydraError, match="'loudness' is not known"):
        HydraPostprocessor(images, "loudness")


# scikit-learn


def test_scikit_learn_takes_it_for_a_classifier(images):
    from sklearn.base import clone, is_classifier
    from sklearn.metrics import log_loss
    from sklearn.model_selection import cross_val_score
    from sklearn.utils.validation import check_is_fitted

    classifier = HydraClassifier(images, batch_size=5)
    check_is_fitted(classifier)
    assert is_classifier(classifier)
    y = np.array(NAMES)[np.arange(12) % 5]
    probs = classifier.fit(PIXELS, y).predict_proba(PIXELS)
    assert probs.shape == (12, 5)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    with torch.no_grad():
        expected = images(prepare(images, PIXELS)).exp().numpy()
    order = [NAMES.index(name) for name in classifier.classes_]
    np.testing.assert_allclose(probs, expected[:, order], atol=1e-6)
    assert list(classifier.predict(PIXELS)) == [NAMES[label] for label in expected.argmax(axis=1)]
    assert classifier.score(PIXELS, y) == pytest.approx(np.mean(classifier.predict(PIXELS) == y))
    right = expected[np.arange(12), [NAMES.index(name) for name in y]]
    assert log_loss(y, probs) == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert len(cross_val_score(clone(classifier), PIXELS, y, cv=2)) == 2


def test_scikit_learn_calibrates_it(images):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    y = np.array(NAMES)[np.arange(12) % 5]
    calibrated = CalibratedClassifierCV(FrozenEstimator(HydraClassifier(images)), method="sigmoid", cv=2)
    probs = calibrated.fit(PIXELS, y).predict_proba(PIXELS)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_scikit_learn_reads_texts_and_numbers(texts):
    classifier = HydraClassifier(hydra_of("bert", TEXT, classes=None))
    assert classifier.classes_.tolist() == [0, 1, 2, 3, 4]
    assert classifier.predict(TEXTS).shape == (len(TEXTS),)
    prepared = HydraClassifier(hydra_of("timm", IMAGE)).predict_proba(np.zeros((2, 3, 16, 16), np.float64))
    assert prepared.shape == (2, 5)


def test_scikit_learn_prepares_pixels_that_come_as_a_tensor(images):
    classifier = HydraClassifier(images)
    np.testing.assert_allclose(classifier.predict_proba(torch.from_numpy(PIXELS)), classifier.predict_proba(PIXELS))


def test_scikit_learn_is_told_of_labels_and_hydras_that_are_missing(images):
    with pytest.raises(HydraError, match="label 'yak' is not one of the hydra's 5 classes"):
        HydraClassifier(images).fit(PIXELS, ["yak"] * 12)
    with pytest.raises(HydraError, match="give it one"):
        HydraClassifier().predict(PIXELS)


# transformers


def test_a_pipeline_of_images_says_what_the_hydra_says(images, tmp_path):
    (tmp_path / "a.png").write_bytes(png(PIXELS[0]))
    pipeline = as_pipeline(images, top_k=2)
    said = images.predict(prepare(images, PIXELS[:2]))
    found = pipeline([str(tmp_path / "a.png"), Image.fromarray(PIXELS[1])])
    for answers, label, confidence in zip(found, said.label, said.confidence, strict=True):
        assert len(answers) == 2
        assert answers[0]["label"] == NAMES[label]
        assert answers[0]["score"] == pytest.approx(confidence.item(), abs=1e-5)


def test_a_pipeline_of_texts_says_what_the_hydra_says_at_its_temperature(texts):
    texts.fitted = Fitted(temperature=Temperature(2.5))
    try:
        said = texts.predict(prepare(texts, TEXTS))
        found = as_pipeline(texts)(TEXTS, batch_size=3)
    finally:
        texts.fitted = Fitted()
    assert [answer["label"] for answer in found] == [NAMES[label] for label in said.label]
    np.testing.assert_allclose([answer["score"] for answer in found], said.confidence, atol=1e-5)


def test_a_pipeline_takes_pairs_of_texts(texts):
    found = as_pipeline(texts)({"text": "one two", "text_pair": "three"})
    expected = texts.predict(prepare(texts, [("one two", "three")]))
    assert found["label"] == NAMES[expected.label.item()]


# inputs in hand


def test_images_in_any_form_are_the_same_input(images, tmp_path):
    (tmp_path / "a.png").write_bytes(png(PIXELS[0]))
    forms = [PIXELS[0], png(PIXELS[0]), tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(PIXELS[0])]
    batch = prepare(images, forms)
    assert batch.shape == (5, 3, 16, 16)
    assert all(torch.equal(batch[0], one) for one in batch)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("images", "a.png", "give a list of one"),
        ("images", ["no/such.png"], "input 0 is not a readable image.*No such file"),
        ("images", PIXELS[0], r"pixels of uint8.*found ndarray of uint8 \(18, 3\)"),
        ("images", [np.zeros((4, 4, 3))], r"pixels of uint8.*found ndarray of float64 \(4, 4, 3\)"),
        ("images", [], "give a list"),
        ("texts", [3], "the model takes texts, found int"),
    ],
)
def test_what_is_no_input_is_said_to_be_none(name, given, message, request):
    with pytest.raises(DataError, match=message):
        prepare(request.getfixturevalue(name), given)


@pytest.mark.parametrize("name", ["timm", "bert", "hf-vit", "torchvision"])
def test_a_hydra_knows_its_number_of_classes(name):
    hydra = fuse([model_of(name)] * 2)
    assert hydra.num_classes == 5
    assert hydra.members(BY_NAME[name].inputs(2, 6, 0)).shape[-1] == 5


def test_two_towers_have_no_classes():
    hydra = fuse([model_of("open_clip")] * 2)
    assert hydra.num_classes is None
    with pytest.raises(HydraError, match="has no classes"):
        as_pipeline(hydra)
