"""A temperature: against scipy, torch-uncertainty, and answers drawn at a temperature that is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from hydra_ensembles.uncertainty import (
    Fitted,
    FittingError,
    Temperature,
    ensemble_log_probs,
    fit_temperature,
    predict,
    tempered_log_probs,
)

on_both = pytest.mark.parametrize("on", ["ensemble", "members"])


def rows(R, M, C, seed, scale=3.0, noise=1.0):
    """Member logits that are right more often than not, and surer than they should be."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (R,), generator=generator)
    logits = torch.nn.functional.one_hot(labels, C)[:, None] * 1.5 + noise * torch.randn(R, M, C, generator=generator)
    return scale * logits, labels


def nll_by_hand(logits, labels, temperature, on):
    """Written out with probabilities, not with our functions."""
    logits = logits.double()
    if on == "members":
        probs = (logits / temperature).softmax(-1).mean(1)
    else:
        powered = logits.softmax(-1).mean(1) ** (1 / temperature)
        probs = powered / powered.sum(-1, keepdim=True)
    return -probs[torch.arange(len(labels)), labels].log().mean().item()


@on_both
@given(M=st.integers(1, 3), C=st.integers(2, 6), seed=st.integers(0, 999), scale=st.sampled_from([0.2, 1.0, 4.0]))
def test_it_is_where_scipy_finds_the_lowest_nll(on, M, C, seed, scale):
    logits, labels = rows(200, M, C, seed, scale)
    report = fit_temperature(logits, labels, on)
    found = minimize_scalar(
        lambda log_t: nll_by_hand(logits, labels, math.exp(log_t), on),
        bounds=(math.log(0.01), math.log(100)),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert math.log(report.temperature.value) == pytest.approx(found.x, abs=1e-6)
    assert report.nll_after == pytest.approx(found.fun, abs=1e-8)
    assert report.nll_before == pytest.approx(nll_by_hand(logits, labels, 1.0, on), abs=1e-12)
    assert report.nll_after <= report.nll_before
    # Members that vote hard may be the best there is: averaged votes are never certain, so the NLL stays finite.
    assert report.at_border == (abs(found.x) > math.log(99.99))


def test_torch_uncertainty_finds_the_same():
    from torch_uncertainty.post_processing import TemperatureScaler

    logits, labels = rows(500, 3, 4, 0)
    theirs = TemperatureScaler()
    theirs.fit([(ensemble_log_probs(logits), labels)], progress=False)
    ours = fit_temperature(logits, labels).temperature.value
    assert ours == pytest.approx(theirs.temperature[0].item(), rel=1e-2)
    assert abs(ours - 1) > 0.1


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_a_known_temperature_is_recovered(true):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(50_000, 1, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits[:, 0] / true).softmax(-1), 1, generator=generator)[:, 0]
    for on in ("ensemble", "members"):  # of one network they are the same
        assert fit_temperature(logits, labels, on).temperature.value == pytest.approx(true, rel=0.02)


@given(seed=st.integers(0, 999), value=st.floats(0.01, 100), near=st.sampled_from([0.0, 1e-7, 1e-6, 1.0]))
def test_on_the_ensemble_labels_never_change(seed, value, near):
    """Near ties included: the second logit is the first one's neighbour."""
    logits = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(seed))
    logits[..., 1] = logits[..., 0] * (1 + near)
    assert torch.equal(predict(logits, Fitted(Temperature(value))).label, predict(logits).label)


def test_labels_changed_on_members_are_counted():
    """Two members that whisper outvote one that shouts, once voices are lowered."""
    shouting, whispering = [20.0, 0.0], [0.0, 1.0]
    logits = torch.tensor([[shouting, whispering, whispering]] * 4 + [[whispering] * 3] * 4)
    labels = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1])
    report = fit_temperature(logits, labels, on="members")
    before = logits.softmax(-1).mean(1).argmax(-1)
    after = (logits / report.temperature.value).softmax(-1).mean(1).argmax(-1)
    assert report.labels_changed == int((before != after).sum()) == 4
    assert fit_temperature(logits, labels).labels_changed == 0


def test_of_many_minima_on_members_the_deepest_is_taken():
    """On members the NLL need not be convex; a dense scan of the range finds nothing lower."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        # One member is loud and wrong, one quiet and right: at least two regimes.
        logits = torch.randn(6, 3, 3, generator=generator) * torch.tensor([30.0, 1.0, 0.1])[:, None]
        labels = torch.tensor([0, 1, 2, 0, 1, 2])
        report = fit_temperature(logits, labels, on="members")
        scan = {t: nll_by_hand(logits, labels, t, "members") for t in torch.logspace(-2, 2, 2001).tolist()}
        lowest = min(scan, key=lambda t: scan[t])
        if report.at_border:  # then it stays 1
            assert lowest < 0.0101 or lowest > 99
        else:
            assert report.nll_after <= scan[lowest] + 1e-9


@on_both
def test_what_has_no_finite_optimum_stops_at_the_border_and_says_so(on):
    labels = torch.tensor([0, 1, 0, 1])
    right = torch.nn.functional.one_hot(labels, 2)[:, None].float()
    all_right, all_wrong = fit_temperature(right, labels, on), fit_temperature(right, 1 - labels, on)
    assert (all_right.temperature.value, all_right.at_border) == (1, True)
    assert (all_wrong.temperature.value, all_wrong.at_border) == (1, True)
    assert all_right.nll_before == all_right.nll_after
    # Sure beyond float64 and right: nothing can be gained, so nothing is done.
    certain = fit_temperature(1e4 * right, labels, on)
    assert (certain.temperature.value, certain.at_border) == (1, False)
    uniform = fit_temperature(torch.zeros(4, 2, 2), labels, on)
    assert (uniform.temperature.value, uniform.at_border) == (1, False)


@on_both
def test_tempered_log_probs_are_those_of_the_definition(on):
    logits, labels = rows(30, 3, 4, 1)
    found = tempered_log_probs(logits.double(), Temperature(1.7, on))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(30, dtype=torch.float64))
    at_label = -found[torch.arange(30), labels].mean().item()
    assert at_label == pytest.approx(nll_by_hand(logits, labels, 1.7, on), abs=1e-12)
    assert tempered_log_probs(logits.bfloat16(), Temperature(1.7, on)).dtype == torch.float32
    assert torch.equal(tempered_log_probs(logits, None), ensemble_log_probs(logits))


LOGITS, LABELS = rows(10, 2, 3, 2)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda: fit_temperature(LOGITS * float("nan"), LABELS), "the logits of 10 of 10 rows are not finite"),
        (lambda: fit_temperature(LOGITS, torch.zeros(10).long()), "found 10 rows, all of class 0"),
        (lambda: fit_temperature(LOGITS[..., :1], torch.zeros(10).long()), "needs rows of two classes or more"),
        (lambda: fit_temperature(LOGITS, LABELS + 1), "whole numbers from 0 to 2, found 1 to 3"),
        (lambda: fit_temperature(LOGITS, LABELS[:4]), r"10 rows need labels of shape \(10,\), found \(4,\)"),
        (lambda: fit_temperature(LOGITS[:, 0], LABELS), r"\(rows, members, classes\), found \(10, 3\)"),
        (lambda: fit_temperature(LOGITS[:0], LABELS[:0]), r"\(rows, members, classes\), found \(0, 2, 3\)"),
        (lambda: fit_temperature(LOGITS, LABELS, on="heads"), "on 'ensemble' or on 'members', found 'heads'"),
        (lambda: Temperature(0.0), "a number above 0, found 0.0"),
        (lambda: Temperature(float("nan")), "a number above 0, found nan"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(fit, message):
    with pytest.raises(FittingError, match=message) as error:
        fit()
    assert "\n" not in str(error.value)
