"""Detectors of formatting see how a text is written, and nothing of what it says."""

import random

import pytest
import torch

from hydra_ensembles.baselines import FormattingClassifier, FormattingDetector
from hydra_ensembles.baselines.formatting import FEATURES, formatting
from hydra_ensembles.uncertainty import auroc

WORDS = ["a", "film", "of", "quiet", "beauty", "and", "dull", "talk"]


def sentences(seed, rows, words=8, **change):
    rng = random.Random(seed)
    made = [" ".join(rng.choice(WORDS) for _ in range(words + rng.randrange(3))) for _ in range(rows)]
    if change.get("capitals"):
        made = [text.title() for text in made]
    if change.get("dots"):
        made = [text + " . ." for text in made]
    return made


def test_features_are_counted_by_hand():
    (row,) = formatting(["Ab 1 ."]).tolist()
    assert dict(zip(FEATURES, row, strict=True)) == pytest.approx(
        {
            "log words": 1.3862944,  # log(1 + 3)
            "log characters": 1.9459101,  # log(1 + 6)
            "capitals": 1 / 6,
            "digits": 1 / 6,
            "marks": 1 / 6,
            "spaced marks": 1 / 3,
        }
    )


def test_a_pair_of_texts_is_written_like_both_together():
    assert torch.equal(formatting([("a b", "c")]), formatting(["a b c"]))


@pytest.mark.parametrize("change", [{"capitals": True}, {"dots": True}, {"words": 30}])
def test_texts_written_otherwise_are_told_and_texts_written_alike_are_not(change):
    known, unknown = sentences(0, 300), sentences(1, 300, **change)
    for detector in (
        FormattingDetector.fit(known),
        FormattingClassifier.fit(known, unknown),
    ):
        same = sentences(2, 300)
        others = sentences(3, 300, **change)
        assert auroc(-detector.scores(same), -detector.scores(others)) > 0.95
    unseen = FormattingDetector.fit(known)
    assert 0.4 < auroc(-unseen.scores(sentences(4, 300)), -unseen.scores(same)) < 0.6


def test_an_empty_text_has_finite_features():
    assert formatting(["", "  "]).isfinite().all()
