"""Objectives: what a circuit must be good at (the paper, D.1.2).

`acc`: accuracy on known inputs. `ood`: AUROC of the maximum softmax probability between known and unknown inputs.
`avg`: their mean.

Shapes: A candidates, N known rows, U unknown rows, B rows of a batch, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydra_ensembles.data.batches import known_labels
from hydra_ensembles.errors import HydraError
from hydra_ensembles.uncertainty import auroc, log_confidence, placements

OBJECTIVES = ("acc", "ood", "avg")


class ScoringError(HydraError):
    """A model, data or settings that heads cannot be scored with."""


@dataclass(frozen=True)
class Outcome:
    """What scoring needs of A candidates' answers: rights and confidences, in the order of the data."""

    right_AN: Tensor
    known_AN: Tensor
    """Log-confidence on known rows; `unknown_AU` on unknown ones."""
    unknown_AU: Tensor

    def __getitem__(self, candidates: Tensor | slice) -> "Outcome":
        return Outcome(self.right_AN[candidates], self.known_AN[candidates], self.unknown_AU[candidates])

    def cpu(self) -> "Outcome":
        return Outcome(self.right_AN.cpu(), self.known_AN.cpu(), self.unknown_AU.cpu())

    @classmethod
    def join(cls, parts: Sequence["Outcome"], candidates: int = 1, device: torch.device | None = None) -> "Outcome":
        """The rows of several outcomes of the same candidates; of none, no rows, on a device."""
        if not parts:
            nothing = torch.empty(candidates, 0, device=device)
            return cls(nothing.bool(), nothing, nothing)
        rows = [[getattr(part, name) for part in parts] for name in ("right_AN", "known_AN", "unknown_AU")]
        right, known, unknown = (torch.cat(columns, dim=-1) for columns in rows)
        return cls(right, known, unknown)


def outcome(logits_ABC: Tensor, labels_B: Tensor | None, companions: Sequence[Tensor] = ()) -> Outcome:
    """The outcome of a batch of known rows, or without labels of unknown ones.

    `companions`: log-probabilities `(B, C)` of members that answer together with each candidate.
    """
    if not logits_ABC.isfinite().all():
        raise ScoringError("the model gives logits that are not finite; check its weights and the inputs")
    log_probs = logits_ABC.to(torch.promote_types(logits_ABC.dtype, torch.float32)).log_softmax(dim=-1)
    if companions:
        # The mean of probabilities; its logarithm up to a constant, which changes no comparison.
        together = [log_probs, *(c.to(log_probs).expand_as(log_probs) for c in companions)]
        log_probs = torch.stack(together).logsumexp(dim=0)
    confidence = log_confidence(log_probs)
    empty = confidence[:, :0]
    if labels_B is None:
        return Outcome(empty.bool(), empty, confidence)
    labels = known_labels(labels_B, log_probs.shape[-1], ScoringError)
    return Outcome(log_probs.argmax(dim=-1) == labels, confidence, empty)


def scores(objective: str, answers: Outcome) -> Tensor:
    """The objective of each candidate, in float64 `(A,)`; higher is better."""
    right = answers.right_AN.double().mean(dim=-1)
    if objective == "acc":
        return right
    separation = auroc(answers.known_AN, answers.unknown_AU)
    return separation if objective == "ood" else (right + separation) / 2


def influences(objective: str, answers: Outcome) -> tuple[Tensor, Tensor]:
    """Each row's share in the objective: `(A, N)` of known rows, `(A, U)` of unknown rows.

    The mean over known rows is the objective; the spread of both gives its sampling error (DeLong).
    """
    right = answers.right_AN.double()
    if objective == "acc":
        return right, torch.zeros_like(answers.unknown_AU, dtype=torch.float64)
    known, unknown = placements(answers.known_AN, answers.unknown_AU)
    return (known, unknown) if objective == "ood" else ((right + known) / 2, unknown / 2)


def check_objective(objective: str, has_unknown: bool) -> None:
    """Refuse an objective that is not known, or that lacks its data."""
    if objective not in OBJECTIVES:
        raise ScoringError(f"objective '{objective}' is not known; known: {', '.join(OBJECTIVES)}")
    if objective != "acc" and not has_unknown:
        raise ScoringError(f"objective '{objective}' needs OOD data; give ood_data=, or take objective='acc'")
