"""Curves say what the metrics say, and thinning them cannot be seen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydra_ensembles.evaluation.judged import judged
from hydra_ensembles.evaluation.metrics import answer_metrics, separation_metrics
from hydra_ensembles.report.curves import POINTS, Curve, histogram, reliability, risk_coverage, roc, thinned


def some_rows(seed, rows=500, digits=None):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (rows,), generator=generator)
    logits = torch.randn(rows, 2, 5, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 5)[:, None]
    return judged(logits if digits is None else logits.round(decimals=digits), labels)


def test_a_perfect_score_goes_up_and_then_across():
    curve = roc(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert curve.x.tolist() == [0, 0, 1]
    assert curve.y.tolist() == [0, 1, 1]


def test_a_score_that_says_nothing_is_the_diagonal():
    curve = roc(torch.ones(7), torch.ones(3))
    assert (curve.x.tolist(), curve.y.tolist()) == ([0, 1], [0, 1])


@given(st.integers(0, 10_000), st.sampled_from([None, 0, 1]))
def test_the_area_under_the_roc_is_auroc_ties_included(seed, digits):
    generator = torch.Generator().manual_seed(seed)
    known, unknown = torch.randn(40, generator=generator), torch.randn(30, generator=generator) + 0.5
    if digits is not None:
        known, unknown = known.round(decimals=digits), unknown.round(decimals=digits)
    curve = roc(known, unknown)
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(separation_metrics(known, unknown)["auroc"], abs=1e-3)


@pytest.mark.parametrize("digits", [None, 0])
def test_the_bins_of_the_reliability_diagram_give_ece(digits):
    rows = some_rows(0, digits=digits)
    found = reliability(rows)
    ece = (found.rows * abs(found.accuracy - found.confidence)).sum() / len(rows)
    assert ece == pytest.approx(answer_metrics(rows)["ece"], abs=1e-12)
    assert found.rows.sum() == len(rows)
    assert (found.rows > 0).all()


@pytest.mark.parametrize("digits", [None, 0])
def test_risk_and_coverage_end_at_the_error_rate_and_pass_the_risk_at_80(digits):
    rows = some_rows(1, digits=digits)
    metrics, curve = answer_metrics(rows), risk_coverage(rows)
    assert curve.x[-1] == 1
    assert curve.y[-1] == pytest.approx(1 - metrics["accuracy"])
    assert np.interp(0.8, curve.x, curve.y) == pytest.approx(metrics["risk_at_80"], abs=2e-3)
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(metrics["aurc"], abs=2e-3)


def test_thinned_curves_have_few_points_and_stay_where_they_were():
    x = np.linspace(0, 1, 50_000)
    y = np.cumsum(np.random.default_rng(0).random(50_000))
    curve = thinned(Curve(x, y))
    assert len(curve.x) <= POINTS
    assert (curve.x[0], curve.x[-1], curve.y[0], curve.y[-1]) == (x[0], x[-1], y[0], y[-1])
    assert np.abs(np.interp(x, curve.x, curve.y) - y).max() < 0.005 * np.ptp(y)


def test_histograms_count_every_row_and_are_not_stretched_by_one():
    known, unknown = torch.linspace(0, 1, 999), torch.linspace(0.5, 2, 500)
    found = histogram(torch.cat([known, torch.tensor([1e6])]), unknown)
    assert len(found.known) == len(found.unknown) == 40
    assert found.known.sum() == pytest.approx(1)
    assert found.unknown.sum() == pytest.approx(1)
    assert found.edges[-1] < 3


def test_scores_that_are_all_the_same_have_a_histogram():
    assert histogram(torch.zeros(5), torch.zeros(3)).known.sum() == 1
