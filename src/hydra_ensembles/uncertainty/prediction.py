"""Predictions: probabilities plus uncertainty of one batch."""

from dataclasses import dataclass

from torch import Tensor

from hydra_ensembles.uncertainty.decomposition import (
    aleatoric,
    disagreement,
    ensemble_log_probs,
    entropy,
    epistemic,
)


@dataclass(frozen=True)
class Prediction:
    """What an ensemble says about a batch of B inputs and C classes. Entropies are in nats."""

    label: Tensor
    """`(B,)`: the most probable class."""
    probs: Tensor
    """`(B, C)`: the mean of the members' probabilities."""
    confidence: Tensor
    """`(B,)`: the highest of them (MSP)."""
    entropy: Tensor
    """`(B,)`: total uncertainty; `aleatoric + epistemic`."""
    aleatoric: Tensor
    """`(B,)`: expected entropy of a member."""
    epistemic: Tensor
    """`(B,)`: mutual information, what the members do not agree on."""
    disagreement: Tensor
    """`(B,)`: the share of pairs of members that give different labels."""

    def __len__(self) -> int:
        return len(self.label)


def predict(logits_BMC: Tensor) -> Prediction:
    """The prediction that the members' logits make together."""
    log_probs = ensemble_log_probs(logits_BMC)
    probs = log_probs.exp()
    confidence, label = probs.max(dim=-1)
    return Prediction(
        label,
        probs,
        confidence,
        entropy(log_probs),
        aleatoric(logits_BMC),
        epistemic(logits_BMC),
        disagreement(logits_BMC),
    )
