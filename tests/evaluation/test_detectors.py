"""KNN, Mahalanobis and ViM: against scikit-learn, scipy, and the papers' arithmetic in numpy."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors

from families import BY_NAME, CASES, model_of, own_output, perturbed
from hydra_ensembles import HeadSet, fuse, prune
from hydra_ensembles.evaluation import detectors as module
from hydra_ensembles.evaluation.detectors import (
    classifier_of,
    features_and_logits,
    fit_detectors,
    principal_dimensions,
)
from hydra_ensembles.uncertainty import FittingError, auroc

D, C = 12, 4


def known(rows=160, seed=0, missing=None):
    """Features around one mean a class, with the classifier that reads them."""
    generator = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(C, D, generator=generator)
    labels = torch.randint(0, C, (rows,), generator=generator)
    if missing is not None:
        labels[labels == missing] = (missing + 1) % C
    shape = torch.randn(D, D, generator=generator) / D**0.5
    features = means[labels] + torch.randn(rows, D, generator=generator) @ shape
    weight, bias = means, -means.square().sum(-1) / 2 + 20
    return features, features @ weight.T + bias, labels, weight, bias


def fresh(rows=50, seed=9):
    features = torch.randn(rows, D, generator=torch.Generator().manual_seed(seed)) * 2
    return features, features @ known()[3].T + known()[4]


@pytest.mark.parametrize(("k", "rows"), [(1, 160), (50, 160), (50, 30)])
def test_knn_is_scikit_learn_s(k, rows, monkeypatch):
    features, logits, labels, *classifier = known(rows)
    asked, their_logits = fresh()
    found = fit_detectors(features, logits, labels, *classifier, k=k)

    def unit(x):
        return (x / x.norm(dim=-1, keepdim=True)).double().numpy()

    neighbours = NearestNeighbors(n_neighbors=min(k, rows), algorithm="brute").fit(unit(features.double()))
    expected = neighbours.kneighbors(unit(asked.double()))[0][:, -1]
    scores = found.scores(asked, their_logits)["knn"]
    np.testing.assert_allclose(scores, expected, atol=1e-7)
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 7 * rows)  # 7 rows at a time
    torch.testing.assert_close(found.scores(asked, their_logits)["knn"], scores)


@pytest.mark.parametrize("missing", [None, 2])
def test_mahalanobis_is_the_smallest_distance_by_scipy(missing):
    features, logits, labels, *classifier = known(missing=missing)
    asked, their_logits = fresh()
    x = features.double().numpy()
    classes = np.unique(labels)
    assert (missing in classes) is False
    means = {c: x[labels.numpy() == c].mean(0) for c in classes}
    residuals = np.stack([row - means[c] for row, c in zip(x, labels.tolist(), strict=True)])
    precision = EmpiricalCovariance(assume_centered=False).fit(residuals).precision_
    expected = [min(mahalanobis(row, mean, precision) ** 2 for mean in means.values()) for row in asked.numpy()]
    found = fit_detectors(features, logits, labels, *classifier)
    np.testing.assert_allclose(found.scores(asked, their_logits)["mahalanobis"], expected, rtol=1e-6)


def test_a_singular_covariance_is_inverted_where_it_can_be():
    """One direction that is constant, one that is twice another: as numpy's pinv has it."""
    features, logits, labels, *classifier = known()
    features[:, 0], features[:, 1] = 5.0, 2 * features[:, 2]
    asked, their_logits = fresh()
    x = features.double().numpy()
    means = np.stack([x[labels.numpy() == c].mean(0) for c in range(C)])
    residuals = x - means[labels.numpy()]
    precision = np.linalg.pinv(residuals.T @ residuals / len(x), hermitian=True, rcond=1e-12)
    away = asked.double().numpy()[:, None] - means
    expected = np.einsum("bcd,de,bce->bc", away, precision, away).min(1)
    found = fit_detectors(features, logits, labels, *classifier)
    np.testing.assert_allclose(found.scores(asked, their_logits)["mahalanobis"], expected, rtol=1e-6)


def vim_of_the_paper(train, train_logits, asked, asked_logits, w, b, dimensions):
    """Section 4 of Wang et al. 2022 in numpy, with its own orientation: higher = known."""
    u = -np.linalg.pinv(w) @ b
    covariance = EmpiricalCovariance(assume_centered=True).fit(train - u).covariance_
    values, vectors = np.linalg.eig(covariance)
    null_space = np.ascontiguousarray(vectors.T[np.argsort(-values)[dimensions:]].T)
    alpha = train_logits.max(-1).mean() / np.linalg.norm((train - u) @ null_space, axis=-1).mean()
    virtual = np.linalg.norm((asked - u) @ null_space, axis=-1) * alpha
    return -virtual + logsumexp(asked_logits, axis=-1)


@pytest.mark.parametrize("principal", [None, 3, 0])
def test_vim_is_the_paper_s(principal):
    features, logits, labels, weight, bias = (x.double() if x.is_floating_point() else x for x in known())
    asked, their_logits = fresh()
    expected = vim_of_the_paper(
        *(x.double().numpy() for x in (features, logits, asked, their_logits, weight, bias)),
        D // 2 if principal is None else principal,
    )
    found = fit_detectors(features, logits, labels, weight, bias, principal=principal).scores(asked, their_logits)
    np.testing.assert_allclose(-found["vim"], expected, rtol=1e-6)
    # As the virtual class's softmax probability orders, where that does not saturate.
    energy, virtual = their_logits.double().logsumexp(-1), found["vim"] + their_logits.double().logsumexp(-1)
    odds = torch.softmax(torch.stack([energy, virtual], dim=-1), dim=-1)[:, 1]
    inner = (odds > 1e-6) & (odds < 1 - 1e-6)
    assert torch.equal(found["vim"][inner].argsort(), odds[inner].argsort())


def test_a_classifier_without_bias_has_its_origin_at_zero():
    features, _, labels, weight, _ = known()
    logits = features @ weight.T
    found, zero = (fit_detectors(features, logits, labels, weight, bias) for bias in (None, torch.zeros(C)))
    torch.testing.assert_close(found.scores(features, logits)["vim"], zero.scores(features, logits)["vim"])


def test_the_paper_s_dimensions():
    assert [principal_dimensions(width) for width in (4096, 2048, 2047, 768, 767, 12)] == [1000, 1000, 512, 512, 383, 6]


def test_each_detector_separates_planted_outliers():
    """Known features use half of the space; outliers have the same logits and as much again in the other half."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(C).repeat(100)
    weight = torch.zeros(C, D)
    weight[:, :C] = 10 * torch.eye(C)

    def rows(outside):
        inside = torch.nn.functional.one_hot(labels, C) + 0.1 * torch.randn(400, C, generator=generator)
        return torch.cat([inside, outside * torch.randn(400, D - C, generator=generator)], dim=1)

    train, same, other = rows(0.05), rows(0.05), rows(0.5)
    fitted = fit_detectors(train, train @ weight.T, labels, weight, principal=C)
    scores, far = (fitted.scores(x, (x @ weight.T)[:, None]) for x in (same, other))
    for name in ("knn", "mahalanobis", "vim"):
        assert auroc(-scores[name], -far[name]) > 0.99, name
    # What only looks at logits is blind to them.
    energy, far_energy = (-(x @ weight.T).logsumexp(-1) for x in (same, other))
    assert auroc(-energy, -far_energy) < 0.6


one_tower = [case.name for case in CASES if case.modality != "both"]


@pytest.mark.parametrize("name", one_tower)
def test_features_are_what_the_own_forward_s_classifier_sees(name):
    model, inputs = model_of(name), BY_NAME[name].inputs(3, 7, 0)
    features, logits = features_and_logits(model, inputs)
    weight, bias = classifier_of(model)
    assert logits.shape == (3, 1, 5)
    assert weight.shape == (5, features.shape[1])
    torch.testing.assert_close(logits[:, 0], own_output(model, inputs)["logits"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.nn.functional.linear(features, weight, bias), logits[:, 0], rtol=1e-5, atol=1e-5)


def test_the_features_of_a_member_are_its_model_s():
    member = prune(model_of("timm"), HeadSet.sample(model_of("timm"), 5, 0)).eval()
    perturbed(member.model, 2)
    inputs = BY_NAME["timm"].inputs(3, 0, 0)
    features, logits = features_and_logits(member, inputs)
    with torch.no_grad():
        own = member.model.forward_head(member.model.forward_features(inputs), pre_logits=True)
    torch.testing.assert_close(features, own, rtol=1e-5, atol=1e-5)
    assert not features.requires_grad
    assert not logits.requires_grad


FEATURES, LOGITS, LABELS, WEIGHT, BIAS = known()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: features_and_logits(
                fuse([prune(model_of("timm"), HeadSet.all(model_of("timm")))] * 2), BY_NAME["timm"].inputs(1, 0, 0)
            ),
            "features of one network, found a hydra of 2",
        ),
        (
            lambda: features_and_logits(model_of("open_clip"), BY_NAME["open_clip"].inputs(1, 0, 0)),
            "features of one tower, CLIP has vision, text",
        ),
        (lambda: fit_detectors(FEATURES, LOGITS[:5], LABELS, WEIGHT), "found 160, 5 and 160"),
        (lambda: fit_detectors(FEATURES * float("nan"), LOGITS, LABELS, WEIGHT), "are not finite"),
        (lambda: fit_detectors(FEATURES, LOGITS, LABELS, WEIGHT, k=0), "found k=0"),
        (
            lambda: fit_detectors(FEATURES[:6], LOGITS[:6], LABELS[:6], WEIGHT),
            "6 known rows of width 12 do not reach beyond a principal space of 6 dimensions",
        ),
        (lambda: fit_detectors(FEATURES, LOGITS - 1e3, LABELS, WEIGHT), "both must be above 0"),
        (lambda: fit_detectors(FEATURES[:4], LOGITS[:4], torch.arange(4), WEIGHT), "differ within a class"),
        (lambda: fit_detectors(FEATURES, LOGITS[:, None].expand(-1, 2, -1), LABELS, WEIGHT), "logits of one network"),
    ],
)
def test_what_they_cannot_see_is_refused_in_one_line(ask, message):
    with pytest.raises(FittingError, match=message) as error:
        ask()
    assert "\n" not in str(error.value)
