"""Scores of how unknown an input looks: higher = more out of distribution, everywhere.

Shapes: B batch, M members, C classes.
"""

from collections.abc import Callable

from torch import Tensor

from hydra_ensembles.uncertainty.decomposition import (
    at_least_fp32,
    ensemble_log_probs,
    entropy,
    epistemic,
)
from hydra_ensembles.uncertainty.separation import log_confidence


def msp(logits_BMC: Tensor) -> Tensor:
    """Minus the log of the maximum softmax probability: orders inputs as 1 - MSP does, and does not saturate."""
    return -log_confidence(ensemble_log_probs(logits_BMC))


def total_entropy(logits_BMC: Tensor) -> Tensor:
    """Entropy of the averaged probabilities."""
    return entropy(ensemble_log_probs(logits_BMC))


def energy(logits_BMC: Tensor) -> Tensor:
    """Minus the log-sum-exp of the logits, averaged over members."""
    return -at_least_fp32(logits_BMC).logsumexp(dim=-1).mean(dim=1)


def max_logit(logits_BMC: Tensor) -> Tensor:
    """Minus the highest logit, averaged over members."""
    return -at_least_fp32(logits_BMC).amax(dim=-1).mean(dim=1)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": msp,
    "entropy": total_entropy,
    "mutual_information": epistemic,
    "energy": energy,
    "max_logit": max_logit,
}
"""Each from member logits `(B, M, C)` to `(B,)`. Of one network, mutual information is 0 and tells nothing."""
