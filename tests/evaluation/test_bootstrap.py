"""The bootstrap: against rows that are really repeated, the normal approximation, and DeLong's standard error."""

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydra_ensembles.evaluation.bootstrap import (
    Difference,
    difference,
    draws,
    interval,
    resampled_answers,
    resampled_separation,
)
from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.metrics import MetricError, answer_metrics, separation_metrics
from hydra_ensembles.uncertainty import placements


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def answers(R, seed, levels=None, skill=2.0):
    """Judged rows; with `levels`, confidence takes only so many values, and many rows are tied."""
    generator = generator_of(seed)
    logits = 2 * torch.randn(R, 3, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (R,), generator=generator)
    logits[torch.arange(R), :, labels] += skill
    rows = judged(logits, labels)
    return rows if levels is None else replace(rows, confidence=(rows.confidence * levels).ceil() / levels)


def scores(R, seed, levels=None, shift=0.0):
    values = torch.randn(R, generator=generator_of(seed), dtype=torch.float64) + shift
    return values if levels is None else (values * levels).round() / levels


def repeated(rows, counts_R):
    """The rows of a resample, each as often as it is drawn."""
    index = torch.arange(len(rows)).repeat_interleave(counts_R.long())
    columns = {field.name: getattr(rows, field.name) for field in fields(rows) if field.name != "scores"}
    return Judged({}, **{name: column[index] for name, column in columns.items()})


def drawn(values_R, counts_R):
    return values_R.repeat_interleave(counts_R.long())


def the_same(values, point, resample=0):
    assert set(values) == set(point)
    assert {name: column[resample].item() for name, column in values.items()} == pytest.approx(point, abs=1e-9, rel=0)


levels = st.sampled_from([None, 1, 3, 10])


@settings(max_examples=40)
@given(R=st.integers(1, 120), levels=levels, seed=st.integers(0, 999))
def test_with_every_row_drawn_once_answers_have_their_point_metrics(R, levels, seed):
    rows = answers(R, seed, levels)
    the_same(resampled_answers(rows, torch.ones(1, R, dtype=torch.int16)), answer_metrics(rows))


@settings(max_examples=40)
@given(N=st.integers(1, 120), U=st.integers(1, 120), levels=levels, seed=st.integers(0, 999))
def test_with_every_row_drawn_once_sets_have_their_point_separation(N, U, levels, seed):
    known, unknown = scores(N, seed, levels), scores(U, seed + 1, levels, shift=0.5)
    found = resampled_separation(known, unknown, torch.ones(1, N).short(), torch.ones(1, U).short())
    the_same(found, separation_metrics(known, unknown))


@settings(max_examples=30)
@given(R=st.integers(1, 80), levels=levels, seed=st.integers(0, 999))
def test_resampled_answers_are_the_metrics_of_repeated_rows(R, levels, seed):
    rows, counts = answers(R, seed, levels), draws(R, 6, seed)
    found = resampled_answers(rows, counts)
    for resample, counts_R in enumerate(counts):
        the_same(found, answer_metrics(repeated(rows, counts_R)), resample)


@settings(max_examples=30)
@given(N=st.integers(1, 80), U=st.integers(1, 80), levels=levels, seed=st.integers(0, 999))
def test_resampled_separation_is_that_of_repeated_rows(N, U, levels, seed):
    known, unknown = scores(N, seed, levels), scores(U, seed + 1, levels, shift=0.5)
    known_counts, unknown_counts = draws(N, 6, seed), draws(U, 6, seed + 1)
    found = resampled_separation(known, unknown, known_counts, unknown_counts)
    for resample, (counts_N, counts_U) in enumerate(zip(known_counts, unknown_counts, strict=True)):
        the_same(found, separation_metrics(drawn(known, counts_N), drawn(unknown, counts_U)), resample)


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        (torch.full((7,), 2.0), torch.full((5,), 2.0)),
        (torch.tensor([-130.0, -101.0]), torch.tensor([-120.0, -100.0])),
        (scores(30, 0, shift=-50), scores(40, 1, shift=50)),
        (scores(30, 0, shift=50), scores(40, 1, shift=-50)),
        (scores(2, 0), scores(900, 1)),
        (scores(900, 0), scores(2, 1)),
    ],
    ids=["all equal", "large and negative", "perfect", "perfectly wrong", "few known", "few unknown"],
)
def test_resampled_separation_at_the_edges(known, unknown):
    known_counts, unknown_counts = draws(len(known), 8, 0), draws(len(unknown), 8, 1)
    found = resampled_separation(known, unknown, known_counts, unknown_counts)
    for resample, (counts_N, counts_U) in enumerate(zip(known_counts, unknown_counts, strict=True)):
        the_same(found, separation_metrics(drawn(known, counts_N), drawn(unknown, counts_U)), resample)


@pytest.mark.parametrize("rightness", [0.0, 1.0])
def test_all_right_or_all_wrong_stays_so_in_every_resample(rightness):
    rows = answers(50, 0)
    rows = replace(rows, right=torch.full_like(rows.confidence, rightness))
    found = resampled_answers(rows, draws(50, 20, 0))
    for name in ("aurc", "risk_at_80"):
        torch.testing.assert_close(found[name], torch.full_like(found[name], 1 - rightness), atol=1e-12, rtol=0)


def test_many_resamples_of_many_rows_are_each_their_own():
    """So many that they are worked on in several slices."""
    rows, counts = answers(3000, 1), draws(3000, 500, 2)
    known, unknown, other_counts = scores(3000, 3), scores(2000, 4, shift=1), draws(2000, 500, 5)
    found, separation = resampled_answers(rows, counts), resampled_separation(known, unknown, counts, other_counts)
    for resample in (0, 103, 104, 173, 174, 499):
        the_same(found, answer_metrics(repeated(rows, counts[resample])), resample)
        sets = drawn(known, counts[resample]), drawn(unknown, other_counts[resample])
        the_same(separation, separation_metrics(*sets), resample)


def test_resamples_need_not_have_as_many_rows_as_the_set():
    rows = answers(40, 0, levels=10)
    counts = torch.randint(0, 4, (5, 40), generator=generator_of(0))
    for resample, counts_R in enumerate(counts):
        the_same(resampled_answers(rows, counts), answer_metrics(repeated(rows, counts_R)), resample)


def test_without_labels_only_what_members_say_of_each_other_is_resampled():
    rows, counts = answers(40, 0), draws(40, 3, 0)
    unlabelled = replace(rows, right=None, brier=None, nll=None)
    found, whole = resampled_answers(unlabelled, counts), resampled_answers(rows, counts)
    assert set(found) == {"mutual_information", "disagreement"}
    for name, values in found.items():
        torch.testing.assert_close(values, whole[name])


def test_draws_are_with_replacement_and_the_same_for_the_same_seed():
    counts = draws(2000, 300, seed=7)
    assert torch.equal(counts.sum(1), torch.full((300,), 2000))
    assert torch.equal(counts, draws(2000, 300, seed=7))
    assert not torch.equal(counts, draws(2000, 300, seed=8))
    # Counts of one row are nearly Poisson(1): 0 with probability 1/e, 1 with 1/e, 2 with 1/2e.
    for times, share in ((0, 1 / math.e), (1, 1 / math.e), (2, 1 / (2 * math.e))):
        assert (counts == times).double().mean().item() == pytest.approx(share, abs=0.003)
    # Every row, the first and the last too, is drawn once a resample on average.
    assert (counts.double().mean(0) - 1).abs().max() < 5 / math.sqrt(300)


def bernoulli(R, p, seed):
    right = (torch.rand(R, generator=generator_of(seed)) < p).double()
    nothing = torch.zeros(R, dtype=torch.float64)
    return Judged({}, nothing + 0.5, nothing, nothing, nothing, right=right, brier=nothing, nll=nothing)


def test_the_interval_of_accuracy_is_the_normal_approximation():
    rows = bernoulli(2000, 0.7, seed=0)
    accuracy = answer_metrics(rows)["accuracy"]
    low, high = interval(resampled_answers(rows, draws(2000, 2000, 1))["accuracy"])
    half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / 2000)
    assert low == pytest.approx(accuracy - half, abs=0.1 * half)
    assert high == pytest.approx(accuracy + half, abs=0.1 * half)


def test_intervals_cover_the_true_accuracy_as_often_as_they_say():
    """Of 400 experiments, 95 % +- 3 standard errors, less the little that percentiles of 200 rows fall short."""
    inside = 0
    for experiment in range(400):
        values = resampled_answers(bernoulli(200, 0.7, seed=experiment), draws(200, 400, 1000 + experiment))
        low, high = interval(values["accuracy"])
        inside += low <= 0.7 <= high
    assert 0.91 <= inside / 400 <= 0.98


def test_the_spread_of_auroc_is_delong_s_standard_error():
    known, unknown = scores(800, 0), scores(500, 1, shift=1)
    values = resampled_separation(known, unknown, draws(800, 2000, 2), draws(500, 2000, 3))["auroc"]
    known_placements, unknown_placements = placements(-known, -unknown)
    delong = math.sqrt(known_placements.var() / 800 + unknown_placements.var() / 500)
    assert values.std().item() == pytest.approx(delong, rel=0.06)


@given(level=st.sampled_from([0.5, 0.9, 0.95]), seed=st.integers(0, 99))
def test_an_interval_leaves_out_as_much_below_as_above(level, seed):
    values = torch.rand(1000, generator=generator_of(seed))
    low, high = interval(values, level)
    for tail in ((values < low), (values > high)):
        assert tail.double().mean().item() == pytest.approx((1 - level) / 2, abs=0.0011)


def test_a_model_does_not_differ_from_itself():
    rows, counts = answers(100, 0), draws(100, 200, 0)
    point, values = answer_metrics(rows), resampled_answers(rows, counts)
    for name, value in point.items():
        assert difference(value, value, values[name], values[name].clone()) == Difference(0, 0, 0, 1)


def test_a_clearly_better_model_differs_and_the_sign_says_which():
    better, worse = answers(500, 0, skill=4.0), answers(500, 0, skill=1.0)
    counts = draws(500, 1000, 1)
    point_a, point_b = answer_metrics(better)["accuracy"], answer_metrics(worse)["accuracy"]
    a, b = resampled_answers(better, counts)["accuracy"], resampled_answers(worse, counts)["accuracy"]
    found, turned = difference(point_a, point_b, a, b), difference(point_b, point_a, b, a)
    assert found.value == point_a - point_b
    assert 0 < found.low < found.value < found.high
    assert found.p == turned.p == pytest.approx(2 / 1001)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))


def test_p_by_hand():
    """Of nine differences two are not above 0 and eight not below: 2 * (2 + 1) / (9 + 1)."""
    differences = torch.tensor([-1.0, 0, 1, 1, 2, 2, 3, 3, 4])
    assert difference(1.5, 0, differences, torch.zeros(9)).p == pytest.approx(0.6)


def test_models_that_err_on_the_same_rows_are_told_apart_by_their_own_draws_only():
    """Wrong on 300 rows together, and one of them on 10 more: paired, that is clear; unpaired, it is noise."""
    right = torch.ones(1000, dtype=torch.float64)
    right[:300] = 0
    rows = replace(bernoulli(1000, 0, seed=0), right=right)
    more = right.clone()
    more[300:310] = 0
    counts = draws(1000, 1000, 0)
    a, b = (resampled_answers(replace(rows, right=column), counts)["accuracy"] for column in (right, more))
    unpaired = resampled_answers(replace(rows, right=more), draws(1000, 1000, 1))["accuracy"]
    assert difference(0.7, 0.69, a, b).p < 0.01
    assert difference(0.7, 0.69, a, unpaired).p > 0.2


def test_what_does_not_fit_is_refused_in_one_line():
    rows = answers(10, 0)
    with pytest.raises(MetricError, match=r"10 rows, but draws of shape \(3, 11\); expected \(resamples, 10\)"):
        resampled_answers(rows, draws(11, 3, 0))
    with pytest.raises(MetricError, match="known rows have 3 resamples, unknown rows 4; draw both as often"):
        resampled_separation(scores(10, 0), scores(10, 1), draws(10, 3, 0), draws(10, 4, 0))
    with pytest.raises(MetricError, match="nll: NaN or infinite in 1 of 10 rows"):
        resampled_answers(replace(rows, nll=torch.where(torch.arange(10) == 4, math.nan, rows.nll)), draws(10, 3, 0))
    with pytest.raises(MetricError, match="scores of unknown rows: NaN or infinite in 2 of 2 rows"):
        resampled_separation(scores(3, 0), torch.tensor([math.inf, math.nan]), draws(3, 2, 0), draws(2, 2, 0))
    with pytest.raises(MetricError, match="found 0 rows and 5 resamples"):
        draws(0, 5, 0)
    with pytest.raises(MetricError, match="the models have 4 and 5 resampled values; compare them on the same draws"):
        difference(1, 1, torch.ones(4), torch.ones(5))
