"""Laplace and error prediction on zero-shot classifiers: exact where they must be, and what their names say."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from families import model_of
from hydra_ensembles import HeadSet, Protocol, ZeroShotClassifier, evaluate, prune
from hydra_ensembles.baselines import BaselineError, ErrorPredictor, LastLayerLaplace, Method
from hydra_ensembles.baselines.error_predictor import as_sure_as
from hydra_ensembles.baselines.laplace import _curvatures, cosine_moments
from hydra_ensembles.members import Recipe
from zero_shots import CLASSES, NAMES, classifier_of, images

WITH_LAST_LAYERS = [name for name in NAMES if name != "hf-siglip"]
QUICK = Recipe("quick", learning_rate=3e-3, epochs=60, batch_size=32)


def labelled(number=40, seed=3):
    return images(number, seed), torch.randint(
        0, len(CLASSES), (number,), generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("name", WITH_LAST_LAYERS)
def test_laplace_with_an_infinite_prior_precision_is_the_plain_classifier(name):
    model = classifier_of(name).eval()
    method = LastLayerLaplace(model)
    method.fit(labelled())
    with torch.no_grad():
        plain = model(images())
        assert (method.members(images())[:, 0] - plain).abs().max() > 1e-3
        method.believe(math.inf)
        torch.testing.assert_close(method.members(images())[:, 0], plain, atol=1e-4, rtol=1e-4)


def test_laplace_is_less_sure_the_weaker_its_prior():
    model = classifier_of("open_clip").eval()
    method = LastLayerLaplace(model)
    method.fit(labelled())
    sure = []
    for prior in (math.inf, 1e4, 1e2, 1.0, 1e-2):
        method.believe(prior)
        sure.append(float(method.members(images(40))[:, 0].softmax(dim=-1).amax(dim=-1).mean()))
    assert sure == sorted(sure, reverse=True)
    assert sure[-1] < sure[0]


@pytest.mark.parametrize("name", WITH_LAST_LAYERS)
def test_covariances_are_symmetric_and_positive(name):
    method = LastLayerLaplace(classifier_of(name).eval())
    method.fit(labelled())
    for posterior in (method.vision, method.text):
        for covariance in posterior.covariances(10.0):
            torch.testing.assert_close(covariance, covariance.T)
            assert torch.linalg.eigvalsh(covariance).min() > 0
        seen = torch.randn(5, len(posterior.seen_values_D), dtype=torch.float64)
        of_seen, of_made = posterior.covariances(10.0)
        expected = torch.einsum("nd,de,ne->n", seen, of_seen, seen)[:, None] * of_made.diag()
        torch.testing.assert_close(posterior.variances(seen, 10.0), expected)


def test_curvatures_are_the_gauss_newton_matrices_of_the_cross_entropy():
    torch.manual_seed(0)
    image, classes = torch.randn(3, 6).double(), torch.randn(4, 6).double()
    scale, bias = torch.tensor(5.0).double(), torch.tensor(-1.0).double()

    def logits(one, table):
        return scale * F.normalize(one, dim=-1) @ F.normalize(table, dim=-1).T + bias

    by_image, by_class = torch.zeros(6, 6).double(), torch.zeros(6, 6).double()
    for one in image:
        probs = logits(one, classes).softmax(dim=-1)
        middle = probs.diag() - torch.outer(probs, probs)
        slope_CE = torch.autograd.functional.jacobian(lambda x: logits(x, classes), one)
        by_image += slope_CE.T @ middle @ slope_CE / 3
        slope_CCE = torch.autograd.functional.jacobian(lambda table, one=one: logits(one, table), classes)
        for c in range(4):
            by_class += middle[c, c] * torch.outer(slope_CCE[c, c], slope_CCE[c, c]) / (3 * 4)
    found = _curvatures(image, classes, scale, bias)
    torch.testing.assert_close(found[0], by_image)
    torch.testing.assert_close(found[1], by_class)


def test_moments_of_a_cosine_are_those_of_samples():
    torch.manual_seed(0)
    mean, other = torch.randn(1, 200).double(), torch.randn(1, 200).double() + 0.5
    variance, other_variance = 0.05 * torch.rand(1, 200).double(), 0.05 * torch.rand(1, 200).double()
    left = mean + variance.sqrt() * torch.randn(20000, 200).double()
    right = other + other_variance.sqrt() * torch.randn(20000, 200).double()
    found_mean, found_variance = cosine_moments(mean, variance, other, other_variance)
    samples = F.cosine_similarity(left, right)
    assert float(found_mean) == pytest.approx(float(samples.mean()), abs=1e-3)
    assert float(found_variance) == pytest.approx(float(samples.var()), rel=0.1)


def test_the_prior_of_the_highest_validation_likelihood_is_taken():
    model = classifier_of("open_clip").eval()
    with torch.no_grad():
        model.model.logit_scale.fill_(4.0)  # much too sure
    method, val = LastLayerLaplace(model), labelled(60, 5)
    method.fit(labelled(), val, priors=(1e-2, 1.0, 1e2, math.inf))
    chosen = float(method.prior_precision)
    losses = {}
    for prior in (1e-2, 1.0, 1e2, math.inf):
        method.believe(prior)
        losses[prior] = float(F.cross_entropy(method.members(val[0])[:, 0].double(), val[1]))
    assert chosen == min(losses, key=losses.__getitem__)
    assert losses[chosen] < losses[math.inf]


def test_what_is_believed_of_the_layers_holds_for_other_classes():
    model = classifier_of("open_clip").eval()
    method = LastLayerLaplace(model)
    method.fit(labelled(), labelled(20, 9))
    fewer = ZeroShotClassifier(model.model, CLASSES[1:3], model.prompts[1:3])
    torch.testing.assert_close(method.for_classes(fewer).members(images()), method.members(images())[..., 1:3])


def planted(model, number=300, seed=0):
    """Labels with which the classifier errs exactly where the first feature of an image is above its median."""
    with torch.no_grad():
        features = F.normalize(model.image_features(images(number, seed)), dim=-1)
        said = model(images(number, seed)).argmax(dim=-1)
    errs = features[:, 0] > features[:, 0].median()
    return images(number, seed), torch.where(errs, (said + 1) % len(CLASSES), said), errs


def test_a_planted_error_is_learnt():
    model = classifier_of("open_clip").eval()
    inputs, labels, _ = planted(model)
    method = ErrorPredictor(model)
    losses = method.fit((inputs, labels), None, QUICK)
    assert losses[-1] < losses[0] / 2  # an error is never more probable than 3/4 here, so the loss has a floor
    seen, labels, errs = planted(model, 200, 1)
    probs = method.error_probs(seen)
    right_order = (probs[errs][:, None] > probs[~errs]).float().mean()
    assert right_order > 0.95
    with torch.no_grad():
        assert torch.equal(method.members(seen)[:, 0].argmax(dim=-1), model(seen).argmax(dim=-1))
    found = evaluate(method, Protocol((seen, labels)), resamples=0)
    plain = evaluate(model, Protocol((seen, labels)), resamples=0)
    assert found.figures["answers"]["id_test"]["accuracy"] == plain.figures["answers"]["id_test"]["accuracy"]
    assert found.figures["answers"]["id_test"]["ece"] < plain.figures["answers"]["id_test"]["ece"]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_as_sure_as_the_predictor_says(name):
    model = classifier_of(name).eval()
    method = ErrorPredictor(model)
    method.fit(labelled(), None, QUICK)
    probs = method.error_probs(images(30, 7))
    assert probs.max() <= 1 - 1 / len(CLASSES)
    said = method.members(images(30, 7))[:, 0].double().softmax(dim=-1)
    torch.testing.assert_close(said.amax(dim=-1).float(), 1 - probs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_errors_of_a_network_of_any_dtype_are_learnt_in_fp32(dtype):
    model = classifier_of("open_clip").eval().to(dtype)
    method = ErrorPredictor(model)
    method.fit(labelled(), labelled(), QUICK)
    seen = images(30, 7)
    with torch.no_grad():
        said, expected = method.members(seen)[:, 0], model(seen)
    assert torch.equal(said.argmax(dim=-1), expected.argmax(dim=-1))
    torch.testing.assert_close(said.softmax(dim=-1).amax(dim=-1), 1 - method.error_probs(seen), atol=1e-4, rtol=1e-4)


def test_as_sure_as_keeps_the_order_of_rows_at_the_borders():
    logits = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    confidence = torch.cat([0.1 + torch.logspace(-7, -3, 5).double(), 1 - torch.logspace(-3, -7, 5).double()])
    found = as_sure_as(logits, confidence).float().double().softmax(dim=-1).amax(dim=-1)
    assert torch.equal(found.argsort(), confidence.argsort())
    torch.testing.assert_close(found, confidence, atol=1e-9, rtol=0)


def test_the_best_epoch_by_validation_rows_is_kept():
    model = classifier_of("open_clip").eval()
    inputs, labels, _ = planted(model, 60)
    val_inputs, val_labels, _ = planted(model, 60, 1)
    often = Recipe("much too long", learning_rate=3e-2, epochs=80, batch_size=16)
    chosen, last = ErrorPredictor(model), ErrorPredictor(model)
    chosen.fit((inputs, labels), (val_inputs, val_labels), often)
    last.fit((inputs, labels), None, often)
    with torch.no_grad():
        losses = [float(method._loss(*method._errors((val_inputs, val_labels)), 1.0)) for method in (chosen, last)]
    assert losses[0] <= losses[1]


def test_a_network_in_training_mode_is_looked_at_without_dropout():
    first, second = (ErrorPredictor(classifier_of("open_clip-borrowed").train(mode)) for mode in (True, False))
    assert first.fit(labelled(), None, QUICK) == second.fit(labelled(), None, QUICK)
    assert first.network.training


@pytest.mark.parametrize("kind", [LastLayerLaplace, ErrorPredictor])
def test_stored_and_loaded_it_answers_the_same(kind, tmp_path):
    method = kind(classifier_of("open_clip").eval())
    assert isinstance(method, Method)
    method.fit(labelled(), labelled(20, 9))
    save_file(method.state_dict(), tmp_path / "weights.safetensors")
    again = kind(classifier_of("open_clip").eval())
    assert not torch.equal(again.members(images()), method.members(images()))
    again.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(again.members(images()), method.members(images()))
    plain = sum(p.numel() for p in method.network.parameters())
    assert method.cost().params > plain


@pytest.mark.parametrize("name", WITH_LAST_LAYERS)
def test_laplace_counts_two_covariances_and_the_classes_besides_the_network(name):
    model = classifier_of(name).eval()
    method, C = LastLayerLaplace(model), len(CLASSES)
    (D, E), (text_D, _) = ((len(p.seen_values_D), len(p.made_values_E)) for p in (method.vision, method.text))
    own = sum(size * size + size for size in (D, E, text_D, E)) + 2 * C * E + C * text_D + 1
    assert method.cost().params == sum(p.numel() for p in model.parameters()) + own


@pytest.mark.parametrize("kind", [LastLayerLaplace, ErrorPredictor])
def test_a_pruned_member_is_taken_and_stays_as_it_is(kind):
    model = classifier_of("open_clip-borrowed")
    member = prune(model, HeadSet.sample(model, keep=20, seed=0)).eval()
    before = copy.deepcopy(member.state_dict())
    method = kind(member)
    method.fit(labelled(), labelled(20, 9))
    assert method.members(images()).shape == (6, 1, len(CLASSES))
    assert all(torch.equal(before[name], tensor) for name, tensor in member.state_dict().items())


def test_what_does_not_fit_is_refused():
    for kind in (LastLayerLaplace, ErrorPredictor):
        with pytest.raises(BaselineError, match="is for zero-shot classifiers, found VisionTransformer"):
            kind(model_of("timm"))
    with pytest.raises(BaselineError, match="ends in no linear layer"):
        LastLayerLaplace(classifier_of("hf-siglip"))
    with pytest.raises(BaselineError, match="a prior precision is above 0"):
        LastLayerLaplace(classifier_of("open_clip"), 0.0)
    with pytest.raises(BaselineError, match="labels are needed"):
        ErrorPredictor(classifier_of("open_clip")).fit(images())
