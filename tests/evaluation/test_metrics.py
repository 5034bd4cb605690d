"""Metrics: against scikit-learn, torch-uncertainty's own classes on probabilities, and numbers worked out on paper."""

import itertools
import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score, roc_curve
from torch_uncertainty.metrics.classification import (
    AURC,
    FPR95,
    AdaptiveCalibrationError,
    BrierScore,
    CalibrationError,
    CategoricalNLL,
    Disagreement,
    MutualInformation,
    RiskAt80Cov,
)

from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.metrics import MetricError, answer_metrics, separation_metrics
from hydra_ensembles.uncertainty import auroc


def close(value):
    return pytest.approx(value, abs=1e-6, rel=0)


def exactly(value):
    return pytest.approx(value, abs=1e-12, rel=0)


def answers(R, M, C, seed, scale=2.0):
    """Member logits and labels that the logits know something about."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(R, M, C, generator=generator, dtype=torch.float64)
    labels = torch.randint(C, (R,), generator=generator)
    logits[torch.arange(R), :, labels] += scale
    return logits, labels


def by_hand(confidence, right):
    """Judged rows of which only confidence and rightness matter."""
    columns = [torch.tensor(values, dtype=torch.float64) for values in (confidence, right)]
    nothing = torch.zeros(len(confidence), dtype=torch.float64)
    return Judged({}, columns[0], nothing, nothing, nothing, right=columns[1], brier=nothing, nll=nothing)


def updated(metric, *inputs):
    metric.update(*inputs)
    return metric.compute().item()


@given(R=st.integers(15, 300), M=st.integers(2, 4), C=st.integers(2, 6), seed=st.integers(0, 999))
def test_metrics_of_answers_are_those_of_torch_uncertainty_on_probabilities(R, M, C, seed):
    logits, labels = answers(R, M, C, seed)
    member_probs = logits.softmax(-1)
    probs = member_probs.mean(1)
    found = answer_metrics(judged(logits, labels))
    assert found["brier"] == close(updated(BrierScore(num_classes=C), probs, labels))
    assert found["nll"] == close(updated(CategoricalNLL(), probs, labels))
    assert found["ece"] == close(
        updated(CalibrationError(task="multiclass", num_bins=15, num_classes=C), probs, labels)
    )
    assert found["aece"] == close(
        updated(AdaptiveCalibrationError(task="multiclass", num_bins=15, num_classes=C), probs, labels)
    )
    assert found["aurc"] == close(updated(AURC(), probs, labels))
    assert found["risk_at_80"] == close(updated(RiskAt80Cov(), probs, labels))
    assert found["mutual_information"] == close(updated(MutualInformation(), member_probs))
    assert found["disagreement"] == close(updated(Disagreement(), member_probs))


@given(R=st.integers(1, 100), M=st.integers(1, 4), C=st.integers(2, 6), seed=st.integers(0, 999))
def test_accuracy_brier_and_likelihood_are_those_of_scikit_learn(R, M, C, seed):
    logits, labels = answers(R, M, C, seed)
    probs = logits.softmax(-1).mean(1)
    found = answer_metrics(judged(logits, labels))
    assert found["accuracy"] == close(accuracy_score(labels, probs.argmax(-1)))
    assert found["nll"] == close(log_loss(labels, probs, labels=range(C)))
    rows = probs.tolist(), labels.tolist()
    distances = [sum((p - (c == y)) ** 2 for c, p in enumerate(row)) for row, y in zip(*rows, strict=True)]
    assert found["brier"] == close(fmean(distances))


def test_metrics_of_four_answers_worked_out_on_paper():
    """Bins of ECE: 0.65 in the tenth, 0.75 and 0.77 in the twelfth, 0.95 in the last; risks 0, 1/2, 1/3, 1/2."""
    found = answer_metrics(by_hand([0.95, 0.77, 0.75, 0.65], [1, 0, 1, 0]))
    assert found["ece"] == exactly((0.05 + abs(1 - 1.52) + 0.65) / 4)
    assert found["aece"] == exactly((0.05 + 0.77 + 0.25 + 0.65) / 4)
    assert found["aurc"] == exactly((0 / 2 + 1 / 2 + 1 / 3 + 1 / 2 / 2) / 3)
    assert found["risk_at_80"] == exactly(1 / 2)
    assert found["accuracy"] == 0.5


def tied(values):
    return st.lists(st.tuples(st.sampled_from(values), st.integers(0, 1)), min_size=1, max_size=6)


@settings(max_examples=60)
@given(rows=tied([0.5, 0.6, 0.9]))
def test_risk_and_coverage_are_expected_values_over_all_orders_of_tied_rows(rows):
    """Every order of the rows that descends in confidence is gone through, in plain Python."""
    R = len(rows)
    orders = [order for order in itertools.permutations(rows) if list(order) == sorted(order, key=lambda row: -row[0])]
    areas, risks = [], []
    for order in orders:
        curve = [fmean(1 - right for _, right in order[:k]) for k in range(1, R + 1)]
        steps = [(a + b) / 2 for a, b in itertools.pairwise(curve)]
        areas.append(fmean(steps) if steps else curve[0])
        risks.append(curve[math.ceil(R * 4 / 5) - 1])
    found = answer_metrics(by_hand(*zip(*rows, strict=True)))
    assert found["aurc"] == close(fmean(areas))
    assert found["risk_at_80"] == close(fmean(risks))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter_where_confidences_are_equal(seed):
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randint(5, 10, (200,), generator=generator) / 10
    right = (torch.rand(200, generator=generator) < confidence).double()
    values = [
        answer_metrics(by_hand(confidence[order].tolist(), right[order].tolist()))
        for order in (confidence.argsort(), confidence.argsort().flip(0), torch.randperm(200, generator=generator))
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-14)
    assert values[0] == pytest.approx(values[2], abs=1e-14)


def test_adaptive_bins_of_tied_rows_share_their_accuracy():
    """30 rows of one confidence, 15 of them right: each bin of two rows is half right, in whatever order they come."""
    rightness = [1] * 15 + [0] * 15
    assert answer_metrics(by_hand([0.7] * 30, rightness))["aece"] == exactly(0.2)


@given(confidence=st.lists(st.floats(0.1, 1), min_size=1, max_size=14, unique=True), data=st.data())
def test_fewer_rows_than_bins_have_a_bin_each(confidence, data):
    right = [data.draw(st.integers(0, 1)) for _ in confidence]
    expected = fmean(abs(r - c) for r, c in zip(right, confidence, strict=True))
    assert answer_metrics(by_hand(confidence, right))["aece"] == close(expected)


def test_the_last_bin_of_ece_is_closed():
    """A certain and wrong row shares its bin with a right one of 0.95; torchmetrics alone would give 0.525."""
    assert answer_metrics(by_hand([1.0, 0.95], [0, 1]))["ece"] == exactly((1.95 - 1) / 2)
    # A confidence above 1 by rounding would make torchmetrics take all of them for logits.
    assert answer_metrics(by_hand([1.0 + 2**-52, 0.95], [0, 1]))["ece"] == exactly((1.95 - 1) / 2)


@pytest.mark.parametrize("rightness", [0, 1])
def test_one_row(rightness):
    found = answer_metrics(by_hand([0.7], [rightness]))
    assert found["aurc"] == found["risk_at_80"] == 1 - rightness
    assert found["ece"] == found["aece"] == exactly(abs(rightness - 0.7))


@pytest.mark.parametrize("rightness", [0, 1])
def test_all_right_or_all_wrong(rightness):
    confidence = torch.linspace(0.4, 0.99, 50).tolist()
    found = answer_metrics(by_hand(confidence, [rightness] * 50))
    assert found["accuracy"] == rightness
    assert found["aurc"] == found["risk_at_80"] == exactly(1 - rightness)
    assert found["ece"] == exactly(abs(rightness - fmean(confidence)))
    assert found["aece"] == exactly(abs(rightness - fmean(confidence)))


def test_one_class_only():
    logits, _ = answers(40, 2, 3, seed=0)
    labels = torch.zeros(40).long()
    found = answer_metrics(judged(logits, labels))
    assert found["nll"] == close(log_loss(labels, logits.softmax(-1).mean(1), labels=range(3)))
    assert all(math.isfinite(value) for value in found.values())
    alone = answer_metrics(judged(logits[..., :1], labels))
    assert alone.pop("accuracy") == 1
    assert alone == pytest.approx(dict.fromkeys(alone, 0), abs=1e-12)


def test_without_labels_there_is_only_what_members_say_of_each_other():
    logits, labels = answers(20, 3, 4, seed=1)
    alone, whole = answer_metrics(judged(logits)), answer_metrics(judged(logits, labels))
    assert set(alone) == {"mutual_information", "disagreement"}
    assert alone == {name: whole[name] for name in alone}


def normal(rows, seed, shift=0.0):
    return torch.randn(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


SETS = {
    "random": (normal(200, 0), normal(150, 1, 1.0)),
    "worse than chance": (normal(200, 0, 1.0), normal(150, 1)),
    "many ties": (normal(300, 2).round(), normal(200, 3, 1.0).round()),
    "all equal": (torch.full((20,), 3.5), torch.full((30,), 3.5)),
    "large and negative": (100 * normal(50, 4) - 5000, 100 * normal(50, 5) - 4950),
    "large and tied": (torch.tensor([-130.0, -101.0, -120.0]), torch.tensor([-120.0, -100.0])),
    "tiny differences": (1 + 1e-15 * normal(50, 6).round(), 1 + 1e-15 * normal(50, 7, 1.0).round()),
    "perfect": (normal(100, 8, -50.0), normal(100, 9, 50.0)),
    "perfectly wrong": (normal(100, 8, 50.0), normal(100, 9, -50.0)),
    "one row a side": (torch.tensor([0.3]), torch.tensor([0.2])),
    "one row a side, tied": (torch.tensor([0.3]), torch.tensor([0.3])),
    "few known": (normal(3, 10), normal(5000, 11, 0.5)),
    "few unknown": (normal(5000, 12), normal(3, 13, 0.5)),
    "recall of 19 in 20": (torch.arange(20.0), torch.arange(20.0) + 0.5),
}


def reference(known, unknown):
    """By scikit-learn, on scores as they are."""
    scores = torch.cat([known, unknown]).double().numpy()
    is_unknown = [0] * len(known) + [1] * len(unknown)
    false, true, _ = roc_curve(is_unknown, scores, drop_intermediate=False)
    return {
        "auroc": roc_auc_score(is_unknown, scores),
        "fpr95": next(f for f, t in zip(false, true, strict=True) if t >= 0.95),
        "aupr": average_precision_score(is_unknown, scores),
    }


@pytest.mark.parametrize("name", SETS)
def test_separation_is_what_scikit_learn_says(name):
    known, unknown = SETS[name]
    assert separation_metrics(known, unknown) == pytest.approx(reference(known, unknown), abs=1e-12)


scores = st.lists(st.integers(-200, 200).map(lambda n: n * 0.75), min_size=1, max_size=60).map(torch.tensor)


@settings(max_examples=60)
@given(known=scores, unknown=scores)
def test_separation_of_any_sets_is_what_scikit_learn_says(known, unknown):
    found = separation_metrics(known, unknown)
    assert found == pytest.approx(reference(known, unknown), abs=1e-12)
    assert found["auroc"] == pytest.approx(auroc(-known, -unknown).item(), abs=1e-12)


@pytest.mark.filterwarnings("ignore:Metric `FPR95` will save:UserWarning")
@pytest.mark.parametrize("name", SETS)
def test_fpr95_is_that_of_torch_uncertainty_s_class(name):
    known, unknown = SETS[name]
    labels = torch.tensor([0] * len(known) + [1] * len(unknown))
    expected = updated(FPR95(pos_label=1), torch.cat([known, unknown]), labels)
    assert separation_metrics(known, unknown)["fpr95"] == close(expected)


def test_scores_where_a_sigmoid_would_saturate_by_hand():
    """From the highest: unknown, known, unknown, known. Three of four pairs are in order."""
    found = separation_metrics(torch.tensor([-130.0, -101.0]), torch.tensor([-120.0, -100.0]))
    assert found == pytest.approx({"auroc": 0.75, "fpr95": 0.5, "aupr": (1 + 2 / 3) / 2})


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_logits_are_refused_in_one_line(broken):
    logits, labels = answers(5, 2, 3, seed=0)
    logits[3, 1, 2] = broken
    with pytest.raises(MetricError, match=r"mutual_information, brier, nll, confidence: .* 1 of 5 rows, .* row 3") as e:
        answer_metrics(judged(logits, labels))
    assert "\n" not in str(e.value)
    energies = judged(logits).scores["energy"]
    with pytest.raises(MetricError, match="scores of unknown rows: NaN or infinite in 1 of 5 rows") as e:
        separation_metrics(torch.zeros(4), energies)
    assert "\n" not in str(e.value)
    with pytest.raises(MetricError, match="scores of known rows"):
        separation_metrics(energies, torch.zeros(4))


def test_one_broken_column_is_named():
    rows = by_hand([0.7, 0.8], [1, 0])
    with pytest.raises(MetricError, match=r"^nll: NaN or infinite in 1 of 2 rows, the first is row 1"):
        answer_metrics(replace(rows, nll=torch.tensor([0.1, math.inf])))


def test_empty_sets_are_refused():
    with pytest.raises(MetricError, match="scores of known rows: there are no rows"):
        separation_metrics(torch.empty(0), torch.zeros(3))
    with pytest.raises(MetricError, match="scores of unknown rows: there are no rows"):
        separation_metrics(torch.zeros(3), torch.empty(0))
    with pytest.raises(MetricError, match="there are no rows"):
        answer_metrics(judged(torch.empty(0, 2, 3), torch.empty(0)))


def test_the_default_dtype_is_not_touched(monkeypatch):
    """It belongs to every thread of the process."""
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: pytest.fail("touched"))
    separation_metrics(*SETS["random"])
    answer_metrics(judged(*answers(20, 3, 4, seed=1)))
