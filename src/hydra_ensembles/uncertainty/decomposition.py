"""What the logits of several members say about uncertainty. Entropies are in nats.

Shapes: B batch, M members, C classes. Everything is computed in fp32 or better, whatever the logits are in.
"""

import math

import torch
from torch import Tensor


def at_least_fp32(logits: Tensor) -> Tensor:
    """Logits in fp32, or in the better precision that they have."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def member_log_probs(logits_BMC: Tensor) -> Tensor:
    """Each member's log-probabilities `(B, M, C)`."""
    return at_least_fp32(logits_BMC).log_softmax(dim=-1)


def ensemble_log_probs(logits_BMC: Tensor) -> Tensor:
    """Log of the mean of the members' probabilities `(B, C)`.

    >>> ensemble_log_probs(torch.zeros(1, 3, 2)).exp().tolist()
    [[0.5, 0.5]]
    """
    return member_log_probs(logits_BMC).logsumexp(dim=1) - math.log(logits_BMC.shape[1])


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy over the last dimension."""
    return torch.special.entr(log_probs.exp()).sum(dim=-1)  # type: ignore[no-any-return]


def aleatoric(logits_BMC: Tensor) -> Tensor:
    """Expected entropy of a member `(B,)`: what every member is unsure about by itself."""
    return entropy(member_log_probs(logits_BMC)).mean(dim=1)


def epistemic(logits_BMC: Tensor) -> Tensor:
    """Mutual information between label and member `(B,)`: what the members do not agree on."""
    return (entropy(ensemble_log_probs(logits_BMC)) - aleatoric(logits_BMC)).clamp_min(0)


def disagreement(logits_BMC: Tensor) -> Tensor:
    """The share of pairs of members that give different labels `(B,)`; 0 for one member.

    >>> votes = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    >>> round(disagreement(votes).item(), 4)
    0.6667
    """
    labels_BM = logits_BMC.argmax(dim=-1)
    M = labels_BM.shape[1]
    differ = (labels_BM[:, :, None] != labels_BM[:, None, :]).sum(dim=(1, 2))
    return differ / max(M * (M - 1), 1)
