"""One call gives every figure: the same for a hydra, its members and their kept answers, and those of scikit-learn."""

import copy
import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score, roc_curve
from torch import nn

from families import BY_NAME, _timm, edit_config, model_of, perturbed
from hydra_ensembles import HeadSet, Hydra, fuse, prune
from hydra_ensembles.baselines import McDropout
from hydra_ensembles.data import TensorBatches, as_batches, batches_for, open_data
from hydra_ensembles.evaluation import (
    AnswerError,
    Answers,
    ConformalSets,
    Evaluation,
    EvaluationError,
    OODDetector,
    Protocol,
    ProtocolError,
    TemperatureScaler,
    answers,
    compare,
    evaluate,
    load_answers,
)
from hydra_ensembles.evaluation import judged as judging
from hydra_ensembles.evaluation.answers import model_digest
from hydra_ensembles.evaluation.judged import judged
from hydra_ensembles.evaluation.loading import load_network
from hydra_ensembles.uncertainty import SCORES, FittingError, Temperature
from tiny_sets import tiny_tokenizer

CLASSES = 5


def images(rows, seed, scale=1.0):
    return scale * BY_NAME["timm"].inputs(rows, 0, seed)


def labels(rows, seed=0):
    return torch.randint(0, CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))


def members_of(name="timm", number=2):
    model = model_of(name)
    members = [prune(model, HeadSet.sample(model, 6, m)) for m in range(number)]
    for m, member in enumerate(members):
        perturbed(member.model, m)
    return [member.eval() for member in members]


def hydra_of(name="timm"):
    return fuse(members_of(name), mlp="grouped")


def protocol_of(**more):
    shifts = {"fog": (images(40, 0) + 0.1, labels(40)), "snow": (images(40, 0) * 0.5, labels(40))}
    near, far = {"a": images(30, 1, 1.5)}, {"b": images(20, 2, 3.0), "c": images(25, 3, 0.1)}
    return Protocol((images(40, 0), labels(40)), near, far, shifts, **more)


@pytest.fixture(scope="module")
def evaluated():
    return evaluate(hydra_of(), protocol_of(), resamples=200)


def close(found, expected, tolerance=1e-9):
    """The same parts, sets and metrics, with values that are close."""
    assert list(found) == list(expected)
    for part in expected:
        assert list(found[part]) == list(expected[part])
        for name, metrics in expected[part].items():
            assert found[part][name] == pytest.approx(metrics, abs=tolerance), (part, name)


# What is asked


def test_a_hydra_and_the_list_of_its_members_have_the_same_figures(evaluated):
    for several in (members_of(), nn.ModuleList(members_of())):
        found = evaluate(several, protocol_of(), resamples=200)
        close(found.figures, evaluated.figures, 1e-4)  # ECE: rounding moves a row over the edge of a bin
        assert found.about["members"] == 2
        for name, rows in evaluated.judged.items():
            for score in SCORES:
                torch.testing.assert_close(found.judged[name].scores[score], rows.scores[score], rtol=1e-4, atol=1e-5)


def test_kept_answers_give_the_same_figures_to_the_bit_and_are_not_asked_again(evaluated, tmp_path, monkeypatch):
    hydra, protocol = hydra_of(), protocol_of()
    monkeypatch.setenv("HOME", str(tmp_path))
    first = evaluate(hydra, protocol, keep=tmp_path / "kept", resamples=200)
    again = evaluate(load_answers("~/kept"), protocol, resamples=200)
    broken = hydra_of()
    broken.members = lambda inputs: pytest.fail("asked again")
    resumed = evaluate(broken, protocol, keep=tmp_path / "kept", resamples=200)
    for found in (first, again, resumed):
        assert found.figures == evaluated.figures
        assert found.intervals == evaluated.intervals
        assert found.about == evaluated.about


def test_answers_of_another_model_or_to_other_data_are_asked_again(tmp_path):
    protocol, other = protocol_of(), hydra_of()
    evaluate(hydra_of(), protocol, keep=tmp_path, resamples=0)
    with torch.no_grad():
        next(iter(other.parameters())).add_(0.5)
    assert (
        evaluate(other, protocol, keep=tmp_path, resamples=0).figures == evaluate(other, protocol, resamples=0).figures
    )
    few = Protocol((images(40, 0)[:30], labels(40)[:30]))
    assert len(evaluate(other, few, keep=tmp_path, resamples=0).judged["id_test"]) == 30
    with pytest.raises(EvaluationError, match="set 'id_test' has 40 rows, its kept answers are for 30"):
        evaluate(load_answers(tmp_path), protocol)


def test_answers_of_the_same_weights_used_otherwise_are_asked_again(tmp_path):
    protocol, (member, _) = protocol_of(), members_of()
    found = [
        evaluate(McDropout(member, passes, p), protocol, keep=tmp_path, resamples=0)
        for passes, p in ((2, 0.1), (3, 0.1), (3, 0.3))
    ]
    assert [one.about["members"] for one in found] == [2, 3, 3]
    assert found[1].figures != found[2].figures


def test_the_digest_of_a_model_is_that_of_its_stored_form_and_does_not_depend_on_its_mode(tmp_path):
    hydra = hydra_of()
    again = Hydra.load(hydra.save(tmp_path / "h"))
    assert model_digest(hydra) == model_digest(again) == model_digest(again.train())


def test_a_kept_set_gets_labels_when_it_is_asked_for_them(tmp_path):
    rows = (images(20, 5), labels(20))
    evaluate(hydra_of(), protocol_of(), keep=tmp_path, resamples=0)
    evaluate(hydra_of(), Protocol((images(40, 0), labels(40)), {"s": rows}), keep=tmp_path, resamples=0)
    found = evaluate(hydra_of(), Protocol((images(40, 0), labels(40)), shifts={"s": rows}), keep=tmp_path, resamples=0)
    assert "accuracy" in found.figures["answers"]["s"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_members_and_plain_models_answer_in_their_own_dtype(dtype):
    members = [member.to(dtype) for member in members_of()]
    plain = copy.deepcopy(model_of("timm")).to(dtype)
    for model in (members, plain):
        assert evaluate(model, protocol_of(), resamples=0).figures["answers"]["id_test"]["nll"] > 0


def test_a_classifier_with_a_list_called_members_is_asked_as_a_whole():
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.members = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

        def forward(self, x):
            return sum(one(x) for one in self.members) / 2

    assert answers(Averaged(), torch.randn(5, 4)).logits.shape == (5, 1, 3)


@pytest.mark.parametrize("harm", ["truncated", "half"])
def test_a_kept_set_that_was_being_written_when_the_run_was_killed_is_asked_again(harm, tmp_path):
    protocol, hydra = protocol_of(), hydra_of()
    expected = evaluate(hydra, protocol, keep=tmp_path, resamples=0).figures
    file = tmp_path / "a" / "model.safetensors"
    if harm == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    else:
        edit_config(lambda config: config.update(mark="another"))(tmp_path / "a")
    assert evaluate(hydra, protocol, keep=tmp_path, resamples=0).figures == expected
    assert evaluate(load_answers(tmp_path), protocol, resamples=0).figures == expected


def test_one_model_by_hand():
    """scikit-learn, and a few lines of numpy, on the model's own logits."""
    model, protocol = model_of("timm"), protocol_of()
    found = evaluate(model, protocol, resamples=0)
    with torch.no_grad():
        logits = {
            name: torch.cat([model(batch.inputs) for batch in batches]).double()
            for name, batches in protocol.tests.items()
        }
    probs, right = logits["id_test"].softmax(-1).numpy(), labels(40).numpy()
    told = found.figures["answers"]["id_test"]
    confidence, is_right = probs.max(1), probs.argmax(1) == right
    assert told["accuracy"] == pytest.approx(accuracy_score(right, probs.argmax(1)), abs=1e-9)
    assert told["nll"] == pytest.approx(log_loss(right, probs, labels=range(CLASSES)), abs=1e-6)
    assert told["brier"] == pytest.approx(((probs - np.eye(CLASSES)[right]) ** 2).sum(1).mean(), abs=1e-6)
    bins = np.minimum((confidence * 15).astype(int), 14)
    ece = sum(abs(is_right[bins == b].mean() - confidence[bins == b].mean()) * (bins == b).mean() for b in set(bins))
    assert told["ece"] == pytest.approx(ece, abs=1e-6)
    most_confident = np.argsort(-confidence)[: math.ceil(0.8 * 40)]
    assert told["risk_at_80"] == pytest.approx(1 - is_right[most_confident].mean(), abs=1e-9)
    assert told["mutual_information"] == pytest.approx(0, abs=1e-12)
    assert told["disagreement"] == 0
    for score, of in {"msp": lambda x: -x.softmax(-1).amax(-1), "energy": lambda x: -x.logsumexp(-1)}.items():
        for name in ("a", "b", "c"):
            scores = torch.cat([of(logits["id_test"]), of(logits[name])]).numpy()
            is_unknown = np.r_[np.zeros(40), np.ones(len(logits[name]))]
            false, true, _ = roc_curve(is_unknown, scores, drop_intermediate=False)
            expected = {
                "auroc": roc_auc_score(is_unknown, scores),
                "fpr95": false[np.argmax(true >= 0.95)],
                "aupr": average_precision_score(is_unknown, scores),
            }
            assert found.figures[f"ood/{score}"][name] == pytest.approx(expected, abs=1e-6)


def test_means_over_sets_are_unweighted(evaluated):
    figures = evaluated.figures
    for score in SCORES:
        sets = figures[f"ood/{score}"]
        assert list(sets) == ["a", "b", "c", "near", "far", "average"]
        for metric in ("auroc", "fpr95", "aupr"):
            a, b, c = (sets[name][metric] for name in "abc")
            assert sets["near"][metric] == a
            assert sets["far"][metric] == pytest.approx((b + c) / 2, abs=1e-12)
            assert sets["average"][metric] == pytest.approx((a + b + c) / 3, abs=1e-12)
    for metric, value in figures["answers"]["shifts"].items():
        both = [figures["answers"][name][metric] for name in ("fog", "snow")]
        assert value == pytest.approx(sum(both) / 2, abs=1e-12)
    assert set(figures["diversity"]) == {"id_test", "fog", "snow", "a", "b", "c"}
    assert figures["diversity"]["id_test"]["mutual_information"] > 0


def test_without_unknown_sets_there_are_answers_alone():
    found = evaluate(hydra_of(), Protocol((images(12, 0), labels(12))), resamples=20)
    assert list(found.figures) == ["answers", "diversity"]
    assert list(found.intervals) == ["answers"]


class Counted:
    """Batches that count how often somebody goes through them."""

    def __init__(self, inputs, labels=None):
        self.inner, self.num_rows, self.passes = TensorBatches(inputs, labels, 8), len(inputs), 0

    @property
    def digest(self):
        return self.inner.digest

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return self.epoch(0)

    def epoch(self, number):
        self.passes += 1
        yield from self.inner.epoch(number)


@pytest.mark.parametrize("detectors", [False, True])
def test_every_set_is_gone_through_once(detectors):
    sets = {"id_test": Counted(images(40, 0), labels(40)), "a": Counted(images(30, 1)), "b": Counted(images(20, 2))}
    train = Counted(images(60, 3), labels(60))
    protocol = Protocol(sets["id_test"], {"a": sets["a"]}, {"b": sets["b"]}, id_train=train)
    for one in (*sets.values(), train):
        one.passes = 0
    model = perturbed(members_of()[0].model, 5)
    evaluate(model, protocol, detectors=detectors, resamples=50).to_json()
    assert [one.passes for one in sets.values()] == [1, 1, 1]
    assert train.passes == (1 if detectors else 0)


def test_a_model_of_no_family_works_and_is_left_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 16 * 16, CLASSES)).train()
    model[1].eval()
    protocol = Protocol((images(12, 0), labels(12)), {"a": images(9, 1)})
    first, second = (evaluate(model, protocol, resamples=0) for _ in range(2))
    assert first.figures == second.figures
    assert [model.training, model[1].training, model[2].training] == [True, False, True]
    with torch.no_grad():
        expected = model.eval()(images(12, 0)).argmax(-1) == labels(12)
    assert first.figures["answers"]["id_test"]["accuracy"] == pytest.approx(expected.double().mean().item())


def test_a_model_that_fails_is_put_back_into_training():
    model = nn.Sequential(nn.Flatten(), nn.Linear(7, CLASSES)).train()
    with pytest.raises(RuntimeError):
        evaluate(model, Protocol((images(12, 0), labels(12))))
    assert model.training


class TakesFields(nn.Module):
    """A classifier of texts in the usual form, of a family that we do not know."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, CLASSES)

    def forward(self, input_ids, attention_mask):
        logits = (self.table(input_ids) * attention_mask[..., None]).sum(1)
        return type("Output", (), {"logits": logits})()


def test_texts_go_to_an_unknown_model_by_name_of_field():
    fields = {"input_ids": torch.arange(12).view(4, 3), "attention_mask": torch.ones(4, 3).long()}
    model = TakesFields()
    found = answers(model, (fields, labels(4)))
    assert torch.equal(found.logits[:, 0], model.table(fields["input_ids"]).sum(1).detach())
    assert not found.logits.requires_grad


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten(1, 2), r"Flatten answers 4 inputs with \(4, 48, 16\), expected logits"),
        (nn.Flatten(0), r"Flatten answers 4 inputs with \(3072,\), expected logits"),
        ([], "no model was given"),
        (
            [nn.Sequential(nn.Flatten(), nn.Linear(768, classes)) for classes in (3, 5)],
            r"models that answer together have the same classes, found \[3, 5\]",
        ),
    ],
)
def test_what_does_not_answer_is_refused_in_one_line(model, message):
    with pytest.raises(AnswerError, match=message) as error:
        answers(model, images(4, 0))
    assert "\n" not in str(error.value)


def test_features_are_not_judged_as_if_they_were_logits(tmp_path):
    bare = _timm(num_classes=0)
    for name, one in {"member": prune(bare, HeadSet.all(bare)), "hydra": fuse([bare])}.items():
        with pytest.raises(AnswerError, match="has no classifier, only features"):
            load_network(str(one.save(tmp_path / name)))
    for model in (bare, prune(bare, HeadSet.all(bare)), fuse([bare]), [model_of("timm"), bare]):
        with pytest.raises(AnswerError, match="has no classifier, only features"):
            evaluate(model, protocol_of(), resamples=0)
        with pytest.raises(AnswerError, match="has no classifier, only features"):
            TemperatureScaler(model).fit((images(4, 0), labels(4)))


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(4, 3), None, r"logits are \(rows, members, classes\), found \(4, 3\)"),
        (torch.zeros(0, 1, 3), None, "logits are"),
        (torch.zeros(4, 1, 3), torch.tensor([0, 1, 2, 3]), "row 3 has label 3, but the model has 3 classes"),
        (torch.zeros(4, 1, 3), torch.tensor([0, -1, 2, 2]), "row 1 has label -1"),
        (torch.zeros(4, 1, 3), torch.tensor([0.0, 0.5, 1, 2]), "a whole number each as label, found torch.float32"),
        (torch.zeros(4, 1, 3), torch.eye(4)[:, :3].long(), r"found torch.int64 of shape \(4, 3\)"),
    ],
)
def test_answers_that_cannot_be_judged_are_refused_in_one_line(logits, labels, message):
    with pytest.raises(AnswerError, match=message) as error:
        Answers(logits, labels)
    assert "\n" not in str(error.value)


def test_nan_names_the_set_the_member_and_the_row():
    strange = images(30, 1)
    strange[17] = math.nan
    protocol = Protocol((images(12, 0), labels(12)), {"a": strange})
    with pytest.raises(AnswerError, match="set 'a': member 0 answers row 17 with NaN or infinite logits"):
        evaluate(hydra_of(), protocol)
    broken = members_of()
    with torch.no_grad():
        broken[1].model.head.weight[0, 0] = math.inf
    with pytest.raises(AnswerError, match="set 'id_test': member 1 answers row 0 with"):
        evaluate(broken, protocol)


def test_labels_of_unknown_inputs_mean_nothing():
    known, unknown = (images(12, 0), labels(12)), images(9, 1)
    with_labels = Protocol(known, {"a": (unknown, torch.arange(9) + 90)})
    assert evaluate(hydra_of(), with_labels).figures == evaluate(hydra_of(), Protocol(known, {"a": unknown})).figures


def test_known_inputs_of_a_loader_without_labels_are_refused():
    protocol = Protocol([images(4, 0), images(4, 1)])
    with pytest.raises(ProtocolError, match="set 'id_test' has no labels"):
        evaluate(hydra_of(), protocol)


# Texts


@pytest.fixture
def reviews(tmp_path):
    """Forty texts of very different length, in a csv file."""
    chance = np.random.default_rng(0)
    lines = [(" ".join(chance.choice(list("abcdefgh"), chance.integers(1, 15))), row % CLASSES) for row in range(40)]
    with (tmp_path / "known.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *lines])
    return tmp_path / "known.csv"


def test_rows_come_back_in_the_order_of_the_file(reviews):
    hydra = hydra_of("bert")
    preprocess = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 20, "token_types": True}
    rows = open_data(reviews)
    batches = batches_for(preprocess, rows, batch_size=8)
    assert batches.order.tolist() != list(range(40))
    one_at_a_time = [batch for row in range(40) for batch in batches_for(preprocess, rows[row : row + 1])]
    with torch.no_grad():
        expected = torch.cat([hydra.members(batch.inputs) for batch in one_at_a_time])
    found = answers(hydra, batches)
    torch.testing.assert_close(found.logits, expected, rtol=1e-4, atol=1e-5)
    assert found.labels.tolist() == rows.labels.tolist()
    probs = expected.softmax(-1).mean(1)
    judged_rows = evaluate(hydra, Protocol(batches), resamples=0).judged["id_test"]
    assert judged_rows.right.bool().tolist() == (probs.argmax(-1) == rows.labels).tolist()
    nll = -probs.gather(1, rows.labels[:, None])[:, 0].log().double()
    torch.testing.assert_close(judged_rows.nll, nll, rtol=1e-4, atol=1e-5)


def test_models_with_different_preparation_are_compared_on_the_same_rows(reviews):
    preprocess = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 20, "token_types": True}
    hydra, rows = hydra_of("bert"), open_data(reviews)
    one, other = (
        evaluate(hydra, Protocol(batches_for(preprocess, rows, max_tokens=most, batch_size=size)), resamples=50)
        for most, size in ((20, 8), (4, 16))
    )
    assert set(compare(one, other)["answers"]["id_test"]) == set(one.figures["answers"]["id_test"])


# What is fitted


def test_a_fitted_temperature_changes_nll_but_not_accuracy(evaluated):
    hydra = hydra_of()
    with torch.no_grad():
        said = hydra(images(80, 7)).argmax(-1)
    TemperatureScaler(hydra).fit((images(80, 7), torch.where(torch.arange(80) < 40, said, labels(80, 7))))
    found = evaluate(hydra, protocol_of(), resamples=0)
    with torch.no_grad():
        probs = hydra.members(images(40, 0)).double().softmax(-1).mean(1) ** (1 / hydra.fitted.temperature.value)
    at_label = (probs / probs.sum(-1, keepdim=True)).gather(1, labels(40)[:, None])
    assert found.figures["answers"]["id_test"]["nll"] == pytest.approx(-at_label.log().mean().item(), abs=1e-5)
    for name in ("id_test", "fog", "snow"):
        assert found.figures["answers"][name]["accuracy"] == evaluated.figures["answers"][name]["accuracy"]
        assert abs(found.figures["answers"][name]["nll"] - evaluated.figures["answers"][name]["nll"]) > 1e-3
    assert found.figures["ood/energy"] == evaluated.figures["ood/energy"]
    assert found.about["fitted"]["temperature"]["value"] == hydra.fitted.temperature.value
    given = evaluate(members_of(), protocol_of(), fitted=hydra.fitted, resamples=0)
    close(given.figures, found.figures, 1e-4)


def test_a_very_high_temperature_on_the_ensemble_changes_no_label():
    logits = torch.randn(400, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, :, 1] = logits[:, :, 0] + 1e-15
    truth = torch.arange(400) % 7
    plain, hot = judged(logits, truth), judged(logits, truth, Temperature(100.0))
    assert torch.equal(plain.right, hot.right)


def test_shares_of_decisions_add_up_to_one_and_are_those_of_predict():
    hydra, protocol = hydra_of(), protocol_of()
    ConformalSets(hydra).fit((images(80, 7), labels(80, 7)), coverage=0.5)
    OODDetector(hydra, score="energy").fit(images(80, 7), accept=0.8)
    found = evaluate(hydra, protocol, resamples=0).about["decisions"]
    assert set(found) == set(protocol.tests)
    for name, batches in protocol.tests.items():
        with torch.no_grad():
            predictions = [hydra.predict(batch.inputs) for batch in batches]
        decisions = [decision for prediction in predictions for decision in prediction.decision]
        shares = {decision: decisions.count(decision) / len(decisions) for decision in decisions}
        assert sum(found[name][kind] for kind in ("accept", "abstain", "out-of-distribution")) == pytest.approx(1)
        assert {kind: found[name][kind] for kind in shares} == pytest.approx(shares)
        assert ("accuracy of accepted" in found[name]) == (name in ("id_test", "fog", "snow") and "accept" in shares)
    predicted = torch.cat([prediction.label for prediction in map(hydra.predict, [images(40, 0)])])
    with torch.no_grad():
        accepted = [decision == "accept" for decision in hydra.predict(images(40, 0)).decision]
    expected = (predicted == labels(40))[torch.tensor(accepted)].double().mean().item()
    assert found["id_test"]["accuracy of accepted"] == pytest.approx(expected)


def test_slices_do_not_matter(monkeypatch):
    logits = torch.randn(50, 3, 7, generator=torch.Generator().manual_seed(0))
    whole = judged(logits, torch.arange(50) % 7, Temperature(2.0))
    monkeypatch.setattr(judging, "SLICE", 3 * 7 * 8)
    parts = judged(logits, torch.arange(50) % 7, Temperature(2.0))
    for name in ("confidence", "aleatoric", "mutual_information", "disagreement", "right", "brier", "nll"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-12, atol=1e-12)
    for name in SCORES:
        torch.testing.assert_close(parts.scores[name], whole.scores[name], rtol=1e-12, atol=1e-12)


# Detectors


def trained():
    """A network whose logits are above 0 for known inputs, as those of a trained one are: ViM needs that."""
    model = members_of()[0].model
    with torch.no_grad():
        model.head.bias.add_(5)
    return model


@pytest.mark.parametrize("split", ["id_train", "id_val"])
def test_detectors_are_scores_like_the_others(split):
    protocol = protocol_of(**{split: (images(60, 9), labels(60))})
    found = evaluate(trained(), protocol, detectors=True, score="knn", resamples=20)
    assert found.scores == [*SCORES, "knn", "mahalanobis", "vim"]
    assert set(found.figures["ood/vim"]) == {"a", "b", "c", "near", "far", "average"}
    assert set(found.intervals) == {"answers", "ood/knn"}
    plain = evaluate(trained(), protocol, resamples=0)
    close({"x": found.figures["ood/energy"]}, {"x": plain.figures["ood/energy"]}, 1e-6)


def test_detectors_take_training_data_before_validation_data(tmp_path):
    protocol = protocol_of(id_train=(images(60, 8), labels(60)), id_val=(images(50, 9), labels(50)))
    evaluate(trained(), protocol, detectors=True, keep=tmp_path, resamples=0)
    assert set(load_answers(tmp_path)) == {*protocol.tests, "id_train"}


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (hydra_of, {"id_val": (images(60, 9), labels(60))}, "are for one network"),
        (members_of, {"id_val": (images(60, 9), labels(60))}, "are for one network"),
        (trained, {}, "give the protocol id_train= or id_val="),
        (trained, {"id_val": images(60, 9)}, "set 'id_val' has no labels"),
    ],
)
def test_detectors_that_cannot_be_fitted_are_refused(model, more, message):
    with pytest.raises((EvaluationError, ProtocolError, FittingError), match=message):
        evaluate(model(), protocol_of(**more), detectors=True)


# Fairness


def test_a_hydra_refuses_the_file_that_its_heads_were_chosen_with(reviews, tmp_path):
    hydra = hydra_of("bert")
    hydra.preprocess = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 20, "token_types": True}
    other = tmp_path / "news.csv"
    other.write_text("text\none two\nthree four\n")
    hydra.provenance = {"chosen_with": [{"source": "news.csv"}]}
    hydra = Hydra.load(hydra.save(tmp_path / "hydra"))
    known, unknown = batches_for(hydra, open_data(reviews)), batches_for(hydra, open_data(other), labels=False)
    message = r"test set 'a' is called as the set that the heads of this hydra were chosen with \(news.csv\)"
    with pytest.raises(ProtocolError, match=message):
        evaluate(hydra, Protocol(known, far={"a": unknown}))
    found = evaluate(hydra, Protocol(known, far={"a": unknown}, allow_seen=True), resamples=0)
    (told,) = found.about["seen"]
    assert "'a' is called as the set that the heads" in told
    assert found.to_json()["about"]["allow_seen"] is True
    hydra.provenance = {"chosen_with": [{"source": "elsewhere/news.csv"}]}  # a path says more than a name
    assert evaluate(hydra, Protocol(known, far={"a": unknown}), resamples=0).about["seen"] == []


def test_sets_that_are_called_alike_are_told_apart_by_whole_paths(reviews, tmp_path):
    hydra = hydra_of("bert")
    hydra.preprocess = {"kind": "text", "tokenizer": tiny_tokenizer().to_str(), "max_tokens": 20, "token_types": True}
    hydra.provenance = {"chosen_with": [{"source": "data/test.csv"}]}
    sets = {"news": "one two\nthree four", "questions": "five six\nseven eight"}
    for name, lines in sets.items():
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "test.csv").write_text(f"text\n{lines}\n")
        sets[name] = batches_for(hydra, open_data(tmp_path / name / "data" / "test.csv"), labels=False)
    known = batches_for(hydra, open_data(reviews))
    protocol = Protocol(known, far={"questions": sets["questions"]}, ood_val=sets["news"])
    assert evaluate(hydra, protocol, resamples=0).about["seen"] == []
    with pytest.raises(ProtocolError, match="shares 2 of its 2 rows with ood_val"):
        Protocol(known, far={"news": sets["news"]}, ood_val=sets["news"])


def test_an_evaluation_says_what_was_seen_before():
    protocol = protocol_of(id_val=torch.cat([images(40, 0)[:4], images(10, 9)]), allow_seen=True)
    (told,) = evaluate(hydra_of(), protocol, resamples=0).about["seen"]
    assert "'id_test' shares 4 of its 40 rows with id_val" in told


# Kept answers that do not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kept: kept.pop("a"), "no kept answers for set 'a'; there are b, c, fog, id_test, snow"),
        (
            lambda kept: kept.update(a=Answers(kept["a"].logits, digest="other", model=kept["a"].model)),
            "kept answers for set 'a' are to other rows",
        ),
        (
            lambda kept: kept.update(a=Answers(kept["a"].logits, model="other")),
            "answers for set 'a' are not those of the model that answered 'id_test'",
        ),
        (
            lambda kept: kept.update(a=Answers(kept["a"].logits[..., :4], model=kept["a"].model)),
            "answers for set 'a' are not those of the model",
        ),
        (lambda kept: kept.update(fog=Answers(kept["fog"].logits)), "set 'fog' has no labels"),
    ],
)
def test_kept_answers_that_do_not_fit_are_refused_in_one_line(change, message, tmp_path):
    protocol = protocol_of()
    evaluate(hydra_of(), protocol, keep=tmp_path, resamples=0)
    kept = dict(load_answers(tmp_path))
    change(kept)
    with pytest.raises((EvaluationError, ProtocolError), match=message) as error:
        evaluate(kept, protocol)
    assert "\n" not in str(error.value)


def test_logits_from_elsewhere_are_answers_too(evaluated):
    protocol, hydra = protocol_of(), hydra_of()
    with torch.no_grad():
        said = {
            name: Answers(
                torch.cat([hydra.members(batch.inputs) for batch in batches]),
                torch.cat([batch.labels for batch in batches]) if name in ("id_test", "fog", "snow") else None,
            )
            for name, batches in protocol.tests.items()
        }
    assert evaluate(said, protocol, resamples=0).figures == evaluated.figures


def test_without_a_digest_nothing_is_read_a_second_time():
    class NoDigest(Counted):
        @property
        def digest(self):
            raise AssertionError("the whole set would be read")

    found = answers(hydra_of(), NoDigest(images(9, 0)), digest=False)
    assert (found.digest, found.model) == (None, None)
    with pytest.raises(AnswerError, match="holds no answers"):
        load_answers("nowhere")


# Results


def test_intervals_contain_the_figures(evaluated):
    assert set(evaluated.intervals) == {"answers", "ood/msp"}
    for part, sets in evaluated.intervals.items():
        assert set(sets) == set(evaluated.figures[part])
        for name, metrics in sets.items():
            for metric, (low, high) in metrics.items():
                if metric in ("ece", "aece", "aurc"):
                    continue  # not means: a resample has fewer distinct rows, and more error
                assert low - 1e-12 <= evaluated.figures[part][name][metric] <= high + 1e-12, (part, name, metric)


def test_a_model_does_not_differ_from_itself(evaluated):
    for part, sets in compare(evaluated, evaluate(hydra_of(), protocol_of(), resamples=200)).items():
        for name, metrics in sets.items():
            for metric, found in metrics.items():
                assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1), (part, name, metric)


def knowing(share, rows=400):
    """Answers of which `share` are right, surely so, and doubt about what is unknown."""
    truth = torch.arange(rows) % CLASSES
    said = torch.where(torch.arange(rows) < share * rows, truth, (truth + 1) % CLASSES)
    logits = 4 * nn.functional.one_hot(said, CLASSES)[:, None].double()
    logits += torch.randn(logits.shape, generator=torch.Generator().manual_seed(int(100 * share)))
    return {"id_test": Answers(logits, truth), "a": Answers(logits[:300] * (1.1 - share))}


def test_a_clearly_better_model_has_a_small_p():
    protocol = Protocol((torch.randn(400, 1), torch.arange(400) % CLASSES), {"a": torch.randn(300, 1)})
    good, bad = (evaluate(knowing(share), protocol, resamples=500) for share in (0.9, 0.6))
    found = compare(good, bad)
    accuracy, auroc = found["answers"]["id_test"]["accuracy"], found["ood/msp"]["a"]["auroc"]
    assert accuracy.value == pytest.approx(
        good.figures["answers"]["id_test"]["accuracy"] - bad.figures["answers"]["id_test"]["accuracy"]
    )
    for one in (accuracy, auroc):
        assert 0 < one.low < one.value < one.high
        assert one.p == pytest.approx(2 / 501)


def test_shifts_of_the_same_rows_are_drawn_together():
    """Were they drawn apart, the mean of many copies of one set would look surer than the set."""
    rows, truth = images(40, 0), labels(40)
    copies = {f"copy-{i}": (rows + 1e-7 * i, truth) for i in range(1, 9)}
    found = evaluate(hydra_of(), Protocol((rows, truth), shifts=copies), resamples=200).intervals["answers"]
    assert found["shifts"]["accuracy"] == pytest.approx(found["id_test"]["accuracy"])


def test_the_draws_of_a_set_do_not_depend_on_other_sets(evaluated):
    alone = evaluate(hydra_of(), Protocol((images(40, 0), labels(40)), far={"c": images(25, 3, 0.1)}), resamples=200)
    assert alone.intervals["answers"]["id_test"] == evaluated.intervals["answers"]["id_test"]
    assert alone.intervals["ood/msp"]["c"] == evaluated.intervals["ood/msp"]["c"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda: evaluate(hydra_of(), Protocol((images(40, 0), labels(40))), resamples=200),
            "the evaluations have different sets",
        ),
        (
            lambda: evaluate(hydra_of(), Protocol((images(40, 5), labels(40)), *protocol_sets()), resamples=200),
            "different rows in 'id_test'",
        ),
        (
            lambda: evaluate(hydra_of(), Protocol((images(40, 0), labels(40, 1)), *protocol_sets()), resamples=200),
            "different rows in 'id_test'",
        ),
        (lambda: evaluate(hydra_of(), protocol_of(), resamples=100), "have resamples 200 and 100"),
        (lambda: evaluate(hydra_of(), protocol_of(), resamples=200, seed=1), "have seed 0 and 1"),
        (lambda: evaluate(hydra_of(), protocol_of(), resamples=200, score="energy"), "have score msp and energy"),
    ],
)
def test_evaluations_that_cannot_be_compared_are_refused_in_one_line(other, message, evaluated):
    with pytest.raises(EvaluationError, match=message) as error:
        compare(evaluated, other())
    assert "\n" not in str(error.value)


def protocol_sets():
    protocol = protocol_of()
    return protocol.near, protocol.far, protocol.shifts


def test_a_comparison_needs_resamples():
    bare = evaluate(hydra_of(), Protocol((images(12, 0), labels(12))), resamples=0)
    assert bare.intervals == {}
    with pytest.raises(EvaluationError, match="a comparison needs resamples"):
        compare(bare, bare)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"score": "luck"}, "score 'luck' is not known here; known are msp"), ({"resamples": -1}, "no -1 resamples")],
)
def test_a_wrong_question_is_refused_before_anything_is_asked(options, message):
    protocol = Protocol(Counted(images(12, 0), labels(12)))
    with pytest.raises(EvaluationError, match=message):
        evaluate(hydra_of(), protocol, **options)
    assert protocol.id_test.passes == 0


def test_what_is_saved_is_loaded(evaluated, tmp_path):
    again = Evaluation.load(evaluated.save(tmp_path / "evaluation"))
    assert again.figures == evaluated.figures
    assert again.intervals == evaluated.intervals
    assert again.to_json() == evaluated.to_json()
    told = json.loads((tmp_path / "evaluation" / "config.json").read_text())
    assert told["figures"] == evaluated.figures
    assert told["rows"] == {"id_test": 40, "fog": 40, "snow": 40, "a": 30, "b": 20, "c": 25}
    assert compare(again, evaluated)["answers"]["id_test"]["nll"].p == 1
    columns = [name.split("/")[0] for name in load_file(tmp_path / "evaluation" / "model.safetensors")]
    assert (columns.count("id_test"), columns.count("a")) == (14, 10)  # as docs/evaluation.md says


@pytest.mark.parametrize(
    "harm", [edit_config(lambda c: c.pop("groups")), edit_config(lambda c: c.update(sets=["id_test", "d"]))]
)
def test_a_damaged_evaluation_is_refused_in_one_line(harm, evaluated, tmp_path):
    directory = evaluated.save(tmp_path / "evaluation")
    harm(directory)
    with pytest.raises(EvaluationError, match="is not a whole evaluation") as error:
        Evaluation.load(directory)
    assert "\n" not in str(error.value)


def test_every_row_keeps_what_was_answered_and_what_is_right(evaluated, tmp_path):
    again = Evaluation.load(evaluated.save(tmp_path / "evaluation"))
    for name, rows in again.judged.items():
        with torch.no_grad():
            said = hydra_of().members(protocol_of().tests[name].inputs).double()
        assert rows.answer.dtype == torch.int64
        assert torch.equal(rows.answer, said.softmax(-1).mean(1).argmax(-1))
        if name in ("id_test", "fog", "snow"):
            assert torch.equal(rows.label, labels(40))
            assert torch.equal(rows.right, (rows.answer == rows.label).double())
        else:
            assert rows.label is None


def test_an_evaluation_from_before_answers_were_kept_is_loaded_and_compared(evaluated, tmp_path):
    old = {name: replace(rows, answer=None, label=None) for name, rows in evaluated.judged.items()}
    again = Evaluation.load(replace(evaluated, judged=old).save(tmp_path / "evaluation"))
    assert not any(
        name.endswith(("/answer", "/label")) for name in load_file(tmp_path / "evaluation/model.safetensors")
    )
    assert all(rows.answer is None and rows.label is None for rows in again.judged.values())
    assert again.to_json() == evaluated.to_json()
    assert compare(again, evaluated)["answers"]["id_test"]["accuracy"].p == 1


def test_an_evaluation_prints_in_one_line(evaluated):
    accuracy = f"{100 * evaluated.figures['answers']['id_test']['accuracy']:.1f} %"
    shown = f"Evaluation(id_test 40 rows, accuracy {accuracy}; near: a; far: b, c; shifts: fog, snow)"
    assert repr(evaluated) == str(evaluated) == shown
    assert repr(evaluated.judged["id_test"]).startswith(f"Judged(40 rows, accuracy {accuracy}, mean confidence 0.")
    assert repr(evaluated.judged["a"]).startswith("Judged(30 rows, mean confidence 0.")


def test_labels_in_arrays_and_lists_count_like_tensors(tmp_path):
    model, inputs, right = members_of()[0], images(40, 0), labels(40)
    for wrap in (lambda found: found.numpy(), lambda found: found.tolist()):
        first, second = (Protocol((inputs.numpy(), wrap(given))) for given in (1 - right.clamp(max=1), right))
        assert first.tests["id_test"].digest != second.tests["id_test"].digest
        evaluate(model, first, keep=tmp_path, resamples=0)
        found = evaluate(model, second, keep=tmp_path, resamples=0)
        assert found.figures == evaluate(model, Protocol((inputs, right)), resamples=0).figures
        batches = [as_batches([(inputs, wrap(given))]).digest for given in (right, right.flip(0))]
        assert batches[0] != batches[1]


def test_what_another_s_module_holds_beside_its_weights_counts(tmp_path):
    class Tempered(torch.nn.Module):
        def __init__(self, temperature):
            super().__init__()
            self.inner, self.temperature = members_of()[0], temperature

        def forward(self, x):
            return self.inner(x) / self.temperature

    assert model_digest(Tempered(1.0)) != model_digest(Tempered(0.1))
    vit = model_of("timm")
    other = copy.deepcopy(vit)
    assert model_digest(vit) == model_digest(other)
    other.global_pool = "avg"
    assert model_digest(vit) != model_digest(other)


def test_labels_of_few_bits_fit_any_number_of_classes():
    assert len(Answers(torch.randn(3, 1, 1000), torch.tensor([0, 5, 240], dtype=torch.uint8))) == 3


def test_shuffled_tensors_come_back_in_their_own_order():
    given = labels(40)
    found = answers(members_of()[0], TensorBatches(images(40, 0), given, batch_size=8, shuffle=True))
    assert torch.equal(found.labels, given)
