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


def msp(logits_BMC: Tensor) -> Tensor:
    """Log-odds against the most probable class: orders inputs as 1 - MSP does, and saturates at neither end.

    log((1 - p) / p) from the other classes' log-probabilities; from p itself nothing would be left near 1.
    """
    log_probs = ensemble_log_probs(logits_BMC)
    top, place = log_probs.max(dim=-1, keepdim=True)
    rest = log_probs.scatter(-1, place, float("-inf")).logsumexp(dim=-1)
    return rest - top[..., 0]


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
