"""Fitting on known data: what the functions on logits find, written into the model that is asked."""

import warnings

import pytest
import torch
from torch import nn

from families import BY_NAME, model_of, perturbed
from hydra_ensembles import ConformalSets, HeadSet, Hydra, OODDetector, TemperatureScaler, fuse, prune
from hydra_ensembles.evaluation.answers import Answers
from hydra_ensembles.uncertainty import (
    Fitted,
    FittingError,
    OODThreshold,
    Temperature,
    fit_temperature,
    tempered_log_probs,
)

INPUTS = BY_NAME["timm"].inputs(80, 0, 0)
LABELS = torch.randint(0, 5, (80,), generator=torch.Generator().manual_seed(0))


def members_of():
    members = [prune(model_of("timm"), HeadSet.sample(model_of("timm"), 6, m)) for m in range(2)]
    for m, member in enumerate(members):
        perturbed(member.model, m)
    return [member.eval() for member in members]


def hydra_of():
    return fuse(members_of(), mlp="grouped")


def logits_of(members):
    with torch.no_grad():
        return torch.stack([member(INPUTS) for member in members], dim=1)


def test_all_that_is_fitted_on_a_hydra_is_saved_with_it_and_decides(tmp_path):
    hydra = hydra_of()
    scaler = TemperatureScaler(hydra).fit((INPUTS, LABELS))
    detector = OODDetector(hydra, score="entropy").fit(INPUTS, accept=0.9)
    sets = ConformalSets(hydra, "aps").fit((INPUTS, LABELS), coverage=0.8)
    assert hydra.fitted.temperature == scaler.report.temperature
    assert hydra.fitted.ood == OODThreshold("entropy", detector.threshold, 0.9)
    assert (hydra.fitted.conformal.method, hydra.fitted.conformal.coverage) == ("aps", 0.8)
    again = Hydra.load(hydra.save(tmp_path / "h"))
    assert again.fitted == hydra.fitted
    with torch.no_grad():
        found = again.predict(INPUTS)
    assert found.decision.count("out-of-distribution") == 8
    torch.testing.assert_close(found.ood_score, detector(INPUTS), rtol=1e-5, atol=1e-6)
    assert [decision == "out-of-distribution" for decision in found.decision] == detector.is_ood(INPUTS).tolist()
    assert torch.equal(found.prediction_set, sets(INPUTS))
    assert found.prediction_set.gather(1, LABELS[:, None]).sum() >= 0.8 * 80
    torch.testing.assert_close(found.probs, scaler(INPUTS).exp(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("on", ["ensemble", "members"])
@pytest.mark.parametrize("kind", ["hydra", "members", "member", "model", "classifier", "answers"])
def test_any_model_can_be_fitted_and_keeps_its_own_numbers(kind, on):
    members = members_of()
    head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5)).eval()
    model, logits = {
        "hydra": (hydra_of(), logits_of(members)),
        "members": (members, logits_of(members)),
        "member": (members[0], logits_of(members[:1])),
        "model": (members[0].model, logits_of(members[:1])),
        "classifier": (head, logits_of([head])),
        "answers": (None, logits_of(members)),
    }[kind]
    data = Answers(logits, LABELS) if kind == "answers" else (INPUTS, LABELS)
    scaler = TemperatureScaler(model, on=on)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random answers may be best at no temperature at all
        scaler.fit(data)
    expected = fit_temperature(logits, LABELS, on)
    assert scaler.fitted.temperature.on == on
    assert scaler.fitted.temperature.value == pytest.approx(expected.temperature.value, rel=1e-3)
    assert scaler.report.labels_changed == expected.labels_changed
    rows = data if kind == "answers" else INPUTS
    torch.testing.assert_close(
        scaler(rows), tempered_log_probs(logits, scaler.fitted.temperature), rtol=1e-4, atol=1e-4
    )
    handed_on = None if kind == "hydra" else scaler.fitted
    detector = OODDetector(model, fitted=handed_on).fit(rows)
    assert detector.is_ood(rows).sum() == 4  # 76 of 80 is 95 %
    highest = scaler(rows).amax(-1).double().exp()
    torch.testing.assert_close(detector(rows), ((1 - highest) / highest).log(), rtol=1e-4, atol=1e-5)
    sets = ConformalSets(model, fitted=None if kind == "hydra" else detector.fitted).fit(data)
    assert sets(rows).gather(1, LABELS[:, None]).sum() >= 73  # rank ceil(81 * 0.9), but for rounding
    assert sets.fitted.ood == detector.fitted.ood


def test_labels_of_unknown_rows_are_not_looked_at():
    """Unknown rows have labels of another task: a detector asks for none, nor do sets that were fitted."""
    hydra = hydra_of()
    detector = OODDetector(hydra).fit((INPUTS, LABELS + 90))
    sets = ConformalSets(hydra).fit((INPUTS, LABELS))
    assert torch.equal(detector((INPUTS, LABELS + 90)), detector(INPUTS))
    assert torch.equal(sets((INPUTS, LABELS + 90)), sets(INPUTS))


def test_a_new_temperature_drops_what_was_fitted_at_the_old_one_and_says_so():
    hydra = hydra_of()
    OODDetector(hydra).fit(INPUTS)
    ConformalSets(hydra).fit((INPUTS, LABELS))
    with pytest.warns(UserWarning, match="ood and conformal fitted before were dropped"):
        scaler = TemperatureScaler(hydra).fit((INPUTS, LABELS))
    assert hydra.fitted == Fitted(temperature=scaler.report.temperature)


def test_a_temperature_at_the_border_is_reported():
    always_right = Answers(nn.functional.one_hot(LABELS, 5)[:, None].float(), LABELS)
    with pytest.warns(UserWarning, match="do not determine a temperature, and it stays 1"):
        scaler = TemperatureScaler().fit(always_right)
    assert scaler.fitted.temperature.value == 1


def test_training_mode_is_left_as_it_was_and_does_not_disturb_the_fit():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 16 * 16, 5)).train()
    first = OODDetector(model).fit(INPUTS).threshold
    assert OODDetector(model).fit(INPUTS).threshold == first
    assert model.training


LOGITS = torch.randn(8, 2, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: TemperatureScaler().fit(Answers(LOGITS)), "the data has no labels"),
        (lambda: TemperatureScaler()(Answers(LOGITS)), "no temperature is fitted"),
        (lambda: TemperatureScaler().fit((INPUTS, LABELS)), "without a model only answers can be looked at"),
        (lambda: OODDetector().is_ood(Answers(LOGITS)), "no threshold on msp is fitted"),
        (lambda: OODDetector(score="luck"), "OOD score 'luck' is not known"),
        (
            lambda: OODDetector(score="energy", fitted=OODDetector().fit(Answers(LOGITS)).fitted).threshold,
            "no threshold on energy is fitted",
        ),
        (lambda: OODDetector(hydra_of(), fitted=Fitted(Temperature(2.0))), "a hydra keeps what is fitted on it itself"),
        (lambda: ConformalSets()(Answers(LOGITS)), "no quantile by 'thr' is fitted"),
        (lambda: ConformalSets(method="raps"), "by 'thr' or 'aps', found 'raps'"),
        (
            lambda: ConformalSets().fit(Answers(LOGITS, torch.arange(8) % 5), coverage=0.95),
            "a coverage of 0.95 needs 19 rows or more, found 8",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(ask, message):
    with pytest.raises(FittingError, match=message) as error:
        ask()
    assert "\n" not in str(error.value)
