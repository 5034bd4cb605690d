"""Uncertainty from logits: against hand computations and torch's distributions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydra_ensembles.uncertainty import disagreement, ensemble_log_probs, predict


def logits(B, M, C, seed, scale=3.0):
    return torch.randn(B, M, C, generator=torch.Generator().manual_seed(seed)) * scale


@given(B=st.integers(1, 4), M=st.integers(1, 5), C=st.integers(2, 7), seed=st.integers(0, 999))
def test_a_prediction_is_what_torch_s_distributions_say(B, M, C, seed):
    x = logits(B, M, C, seed)
    found = predict(x)
    probs = torch.stack([torch.distributions.Categorical(logits=x[:, m]).probs for m in range(M)], dim=1)
    mean = torch.distributions.Categorical(probs=probs.mean(1))
    torch.testing.assert_close(found.probs, mean.probs)
    torch.testing.assert_close(found.entropy, mean.entropy())
    torch.testing.assert_close(found.aleatoric, torch.distributions.Categorical(probs=probs).entropy().mean(1))
    torch.testing.assert_close(found.epistemic, found.entropy - found.aleatoric, atol=1e-6, rtol=1e-5)
    assert torch.equal(found.label, mean.probs.argmax(-1))
    torch.testing.assert_close(found.confidence, mean.probs.max(-1).values)
    assert (found.epistemic >= 0).all()
    votes = x.argmax(-1).tolist()
    pairs = [[a != b for i, a in enumerate(v) for b in v[i + 1 :]] for v in votes]
    by_hand = torch.tensor([sum(p) / len(p) if p else 0.0 for p in pairs])
    torch.testing.assert_close(disagreement(x), by_hand)


def test_by_hand():
    """Two sure members that contradict each other: all doubt is epistemic, one bit of it."""
    found = predict(torch.tensor([[[50.0, -50.0], [-50.0, 50.0]]]))
    assert found.entropy.item() == pytest.approx(math.log(2))
    assert found.epistemic.item() == pytest.approx(math.log(2))
    assert found.aleatoric.item() == pytest.approx(0)
    assert found.disagreement.item() == 1
    # Two members that are unsure alike: all of it is aleatoric.
    found = predict(torch.zeros(1, 2, 2))
    assert found.aleatoric.item() == pytest.approx(math.log(2))
    assert found.epistemic.item() == 0


def test_extreme_logits_stay_finite_and_low_precision_is_raised():
    for x in (torch.tensor([[[1e4, -1e4], [1e4, -1e4]]]), torch.tensor([[[1e4, -1e4]]], dtype=torch.bfloat16)):
        found = predict(x)
        for value in (found.probs, found.entropy, found.aleatoric, found.epistemic):
            assert torch.isfinite(value).all()
            assert value.dtype == torch.float32
    assert ensemble_log_probs(torch.zeros(1, 1, 2, dtype=torch.float64)).dtype == torch.float64
