"""Thresholds, decisions and what is stored of them: by counting, and by hand."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydra_ensembles.uncertainty import (
    DECISIONS,
    SCORES,
    ConformalQuantile,
    Fitted,
    FittingError,
    OODThreshold,
    Temperature,
    decided,
    fit_ood_threshold,
    ood_scores,
    predict,
)


@given(
    values=st.lists(st.sampled_from([-2.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=30),
    percent=st.integers(1, 100),
)
def test_the_threshold_is_the_lowest_that_accepts_the_share(values, percent):
    """Ties included: of all thresholds that are scores, counted in whole numbers."""
    found = fit_ood_threshold(torch.tensor(values), "energy", percent / 100).threshold
    enough = [t for t in sorted(set(values)) if 100 * sum(v <= t for v in values) >= percent * len(values)]
    assert found == enough[0]


def test_a_share_is_the_decimal_that_was_written():
    """In floats 0.07 * 100 is a little above 7."""
    assert fit_ood_threshold(torch.arange(1.0, 101.0), "energy", 0.07).threshold == 7


def test_constant_scores_are_all_accepted():
    """As mutual information of one network: nothing lies above what all have."""
    ood = fit_ood_threshold(torch.zeros(20), "mutual_information")
    assert ood == OODThreshold("mutual_information", 0.0, 0.95)
    assert decided(torch.zeros(3), ood, None).tolist() == [0, 0, 0]


CONFORMAL = ConformalQuantile("thr", 0.6, 0.9)
LOGITS = torch.randn(40, 3, 5, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("score", list(SCORES))
def test_scores_at_a_temperature_are_those_of_what_it_changes(score):
    raw = SCORES[score](LOGITS)
    torch.testing.assert_close(ood_scores(score, LOGITS), raw)
    torch.testing.assert_close(ood_scores(score, LOGITS, Temperature(2.0, "members")), SCORES[score](LOGITS / 2))
    found = ood_scores(score, LOGITS, Temperature(2.0))
    probs = LOGITS.softmax(-1).mean(1).sqrt()
    probs = probs / probs.sum(-1, keepdim=True)
    expected = {
        "msp": ((1 - probs.amax(-1)) / probs.amax(-1)).log(),
        "entropy": torch.distributions.Categorical(probs).entropy(),
    }
    torch.testing.assert_close(found, expected.get(score, raw))


def test_a_decision_by_hand():
    """Out of distribution comes first, then doubt between labels, then acceptance; what is not fitted is not asked."""
    scores = torch.tensor([0.0, 2.0, 0.0, 2.0, 1.0, math.nan])
    sets = torch.tensor([[1, 0], [1, 0], [1, 1], [1, 1], [0, 1], [1, 0]]).bool()
    ood = OODThreshold("msp", 1.0, 0.95)

    def names(*what):
        return [DECISIONS[i] for i in decided(scores, *what).tolist()]

    far, unsure, yes = "out-of-distribution", "abstain", "accept"
    assert names(ood, sets) == [yes, far, unsure, far, yes, far]
    assert names(ood, None) == [yes, far, yes, far, yes, far]
    assert names(None, sets) == [yes, yes, unsure, unsure, yes, unsure]


@pytest.mark.parametrize("score", list(SCORES))
@pytest.mark.parametrize("what", ["ood", "conformal"])
def test_what_overflowed_is_never_accepted(score, what):
    """One infinite logit: by energy it looks as familiar as can be."""
    logits = LOGITS[:2].clone()
    logits[1, 0, 0] = math.inf
    fitted = Fitted(ood=OODThreshold(score, 1e6, 0.95)) if what == "ood" else Fitted(None, None, CONFORMAL)
    known, overflowed = predict(logits, fitted).decision
    assert known != "out-of-distribution"
    assert overflowed == ("out-of-distribution" if what == "ood" else "abstain")


@pytest.mark.parametrize("temperature", [None, Temperature(1.5), Temperature(1.5, "members")])
def test_a_prediction_decides_by_its_own_score_and_set(temperature):
    known = LOGITS.double()
    ood = fit_ood_threshold(ood_scores("entropy", known, temperature), "entropy", 0.75)
    found = predict(LOGITS, Fitted(temperature, ood, ConformalQuantile("thr", 0.6, 0.9)))
    torch.testing.assert_close(found.ood_score, ood_scores("entropy", known, temperature))
    assert torch.equal(found.prediction_set.sum(-1) > 1, (found.probs >= 0.4).sum(-1) > 1)
    expected = [
        "out-of-distribution" if score > ood.threshold else "abstain" if size > 1 else "accept"
        for score, size in zip(found.ood_score.tolist(), found.prediction_set.sum(-1).tolist(), strict=True)
    ]
    assert found.decision == expected
    assert set(expected) == set(DECISIONS)
    # The rows that it was fitted on are decided as they were then: 30 of 40 lie at or below.
    assert expected.count("out-of-distribution") == 10


def test_without_anything_fitted_there_is_nothing_to_decide_by():
    found = predict(LOGITS)
    assert found.decision is None
    assert found.prediction_set is None
    confidence = found.confidence.double()
    torch.testing.assert_close(found.ood_score, ((1 - confidence) / confidence).log(), rtol=1e-4, atol=1e-4)
    assert predict(LOGITS, Fitted(Temperature(2.0))).decision is None


def test_a_temperature_changes_what_is_said_of_the_ensemble_or_of_all():
    plain, ensemble = predict(LOGITS), predict(LOGITS, Fitted(Temperature(2.0)))
    for field in ("label", "aleatoric", "epistemic", "disagreement"):
        assert torch.equal(getattr(ensemble, field), getattr(plain, field))
    assert (ensemble.entropy > plain.entropy).all()
    assert (ensemble.confidence < plain.confidence).all()
    members, halved = predict(LOGITS, Fitted(Temperature(2.0, "members"))), predict(LOGITS / 2)
    for field in ("label", "probs", "confidence", "entropy", "aleatoric", "epistemic", "disagreement", "ood_score"):
        torch.testing.assert_close(getattr(members, field), getattr(halved, field))
    torch.testing.assert_close(members.entropy, members.aleatoric + members.epistemic)


@given(
    temperature=st.none() | st.builds(Temperature, st.floats(0.01, 100), st.sampled_from(["ensemble", "members"])),
    ood=st.none() | st.builds(OODThreshold, st.sampled_from(list(SCORES)), st.floats(-50, 50), st.floats(0.01, 1)),
    conformal=st.none()
    | st.builds(ConformalQuantile, st.sampled_from(["thr", "aps"]), st.floats(0, 1), st.floats(0.01, 0.99)),
)
def test_what_is_fitted_returns_from_json(temperature, ood, conformal):
    fitted = Fitted(temperature, ood, conformal)
    assert Fitted.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    assert Fitted.from_json({}) == Fitted()


OOD = {"score": "msp", "threshold": 1.0, "accept": 0.95}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "an object with temperature, ood, conformal, found"),
        ({"ood_threshold": -0.5}, "'ood_threshold' is not something that is fitted"),
        ({"temperature": 1.25}, "the fitted 'temperature' is 1.25, which cannot be read"),
        ({"temperature": {"on": "ensemble"}}, "the fitted 'temperature' is .* missing 1 required"),
        ({"temperature": {"value": "hot"}}, "a temperature is a number above 0, found 'hot'"),
        ({"temperature": {"value": True}}, "a temperature is a number above 0, found True"),
        ({"ood": {**OOD, "score": "luck"}}, "OOD score 'luck' is not known; it is one of msp, entropy"),
        ({"ood": {**OOD, "threshold": float("nan")}}, "an OOD threshold is a finite number, found nan"),
        ({"ood": {**OOD, "accept": 2}}, "lies above 0 and up to 1, found 2"),
        ({"conformal": {"method": "thr", "quantile": 7, "coverage": 0.9}}, "a number from 0 to 1, found 7"),
    ],
)
def test_what_was_not_fitted_by_us_is_refused_in_one_line(data, message):
    with pytest.raises(FittingError, match=message) as error:
        Fitted.from_json(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda: fit_ood_threshold(torch.tensor([0.0, math.nan]), "msp"), "1 of 2 rows are not finite, first in row 1"),
        (lambda: fit_ood_threshold(torch.zeros(0), "msp"), r"have shape \(rows,\), found \(0,\)"),
        (lambda: fit_ood_threshold(torch.zeros(3), "msp", accept=95), "lies above 0 and up to 1, found 95"),
    ],
)
def test_scores_that_no_threshold_can_be_set_on_are_refused(fit, message):
    with pytest.raises(FittingError, match=message):
        fit()


def test_msp_tells_sure_answers_apart_where_probabilities_are_1_to_the_last_bit():
    gaps = torch.tensor([70.0, 90.0, 150.0, 600.0], dtype=torch.float64)
    logits = torch.stack([gaps, torch.zeros(4), torch.zeros(4)], dim=-1)[:, None]
    assert (predict(logits).confidence == 1).all()
    torch.testing.assert_close(ood_scores("msp", logits), math.log(2) - gaps)
