"""Conformal sets: against torch-uncertainty's, by counting all orders of a small case, and over many draws."""

from fractions import Fraction
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydra_ensembles.uncertainty import ConformalQuantile, FittingError, fit_conformal, prediction_sets

both = pytest.mark.parametrize("method", ["thr", "aps"])


def theirs(method, quantile):
    """The library's predictor at a given quantile, asked about probabilities."""
    from torch_uncertainty.post_processing import ConformalClsAPS, ConformalClsTHR

    kind = (
        ConformalClsTHR(0.1, enable_ts=False)
        if method == "thr"
        else ConformalClsAPS(0.1, randomized=False, enable_ts=False)
    )
    kind.q_hat = torch.tensor(quantile, dtype=torch.float64)
    kind.model_forward = lambda probs: probs
    return kind


def probabilities(R, C, seed, scale=2.0):
    return (scale * torch.randn(R, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(-1)


@both
@given(C=st.integers(2, 8), seed=st.integers(0, 999), quantile=st.floats(0, 1))
def test_sets_are_those_of_torch_uncertainty(method, C, seed, quantile):
    probs = probabilities(60, C, seed)
    found = prediction_sets(probs, ConformalQuantile(method, quantile, 0.9))
    assert torch.equal(found, theirs(method, quantile).conformal(probs) > 0)


# Eighths, so that no sum rounds; equal probabilities, certain ones, and scores equal to the quantile.
TIED = (
    torch.tensor(
        [[4, 4, 0, 0], [2, 2, 2, 2], [8, 0, 0, 0], [0, 0, 8, 0], [0, 5, 3, 0], [1, 1, 3, 3], [3, 1, 3, 1]],
        dtype=torch.float64,
    )
    / 8
)


@both
@pytest.mark.parametrize("eighths", range(9))
def test_ties_and_certain_answers_are_handled_as_there(method, eighths):
    quantile = eighths / 8
    found = prediction_sets(TIED, ConformalQuantile(method, quantile, 0.9))
    expected = theirs(method, quantile).conformal(TIED) > 0
    if method == "aps" and quantile < 1:
        # There the set of a certain answer is filled with its first label, whatever its probability.
        assert expected[3].tolist() == [True, False, False, False]
        expected[3] = torch.tensor([False, False, True, False])
    assert torch.equal(found, expected)
    assert found.any(dim=-1).all()
    assert found.gather(-1, TIED.argmax(-1, keepdim=True)).all()


@both
def test_a_row_that_ties_with_the_quantile_is_covered(method):
    """0.1, 0.7 and their differences from 1 round; as scores they are what they were when fitted."""
    probs = torch.tensor([[0.7, 0.2, 0.1]] * 20, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2] * 6 + [2, 2])
    fitted = fit_conformal(probs, labels, 0.9, method)
    assert prediction_sets(probs, fitted).gather(-1, labels[:, None]).all()


@both
def test_the_promise_holds_in_every_order_of_a_small_case(method):
    """Exchangeable rows: of all ways to leave one out, at least 1 - alpha cover it; counted, not sampled."""
    probs, labels = probabilities(7, 4, 3), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    for coverage in (0.5, 0.75, 0.8):
        covered = []
        for test in range(7):
            rest = [row for row in range(7) if row != test]
            fitted = fit_conformal(probs[rest], labels[rest], coverage, method)
            covered.append(bool(prediction_sets(probs[[test]], fitted)[0, labels[test]]))
        assert sum(covered) >= coverage * 7
    shuffled = {
        fit_conformal(probs[list(order)], labels[list(order)], 0.5, method).quantile
        for order in list(permutations(range(7)))[::500]
    }
    assert len(shuffled) == 1


@both
def test_the_promise_holds_over_many_draws(method):
    """The answers are far from calibrated; the sets keep the promise all the same, and not by much more."""
    generator = torch.Generator().manual_seed(0)
    coverage, rows, draws = 0.8, 24, 3000
    latent = torch.randn(draws, rows + 1, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(latent.softmax(-1).flatten(0, 1), 1, generator=generator).view(draws, rows + 1)
    probs = (4 * latent + torch.randn(latent.shape, generator=generator)).softmax(-1)
    covered = 0
    for draw in range(draws):
        fitted = fit_conformal(probs[draw, :-1], labels[draw, :-1], coverage, method)
        covered += int(prediction_sets(probs[draw, -1:], fitted)[0, labels[draw, -1]])
    error = (coverage * (1 - coverage) / draws) ** 0.5
    assert covered / draws >= coverage - 3 * error
    if method == "thr":  # rank 20 of 24 promises exactly 20 / 25, but for the label that no set goes without
        assert covered / draws <= Fraction(20, 25) + 0.06


@both
def test_the_quantile_is_the_order_statistic_of_the_finite_sample(method):
    probs, labels = probabilities(19, 3, 1), torch.randint(0, 3, (19,), generator=torch.Generator().manual_seed(1))
    by_hand = []
    for p, label in zip(probs.tolist(), labels.tolist(), strict=True):
        by_hand.append(1 - p[label] if method == "thr" else sum(q for q in p if q >= p[label]))
    for coverage, rank in ((0.9, 18), (0.95, 19), (0.5, 10)):  # ceil(20 * coverage), of 19
        found = fit_conformal(probs, labels, coverage, method)
        assert found.quantile == pytest.approx(sorted(by_hand)[rank - 1], abs=1e-15)
        assert (found.method, found.coverage) == (method, coverage)


@pytest.mark.parametrize(("coverage", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)])
def test_too_few_rows_are_refused_with_the_number_needed(coverage, needed):
    probs, labels = probabilities(needed, 3, 0), torch.zeros(needed).long()
    assert fit_conformal(probs, labels, coverage).coverage == coverage
    with pytest.raises(FittingError, match=f"needs {needed} rows or more, found {needed - 1}"):
        fit_conformal(probs[1:], labels[1:], coverage)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda: fit_conformal(TIED, torch.zeros(7).long(), 0.5, "raps"), "by 'thr' or 'aps', found 'raps'"),
        (lambda: fit_conformal(TIED, torch.zeros(7).long(), 1.0), "a coverage lies between 0 and 1, found 1.0"),
        (lambda: ConformalQuantile("thr", float("nan"), 0.9), "a number from 0 to 1, found nan"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(fit, message):
    with pytest.raises(FittingError, match=message) as error:
        fit()
    assert "\n" not in str(error.value)
