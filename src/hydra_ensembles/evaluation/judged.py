"""Judged rows: what one pass over a set leaves of each row, and all that any metric needs.

Shapes: R rows, M members, C classes. Numbers are in float64, classes in int64; logits are not kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hydra_ensembles.uncertainty import SCORES, aleatoric, disagreement, ensemble_log_probs, epistemic
from hydra_ensembles.uncertainty.decisions import ood_scores
from hydra_ensembles.uncertainty.temperature import Temperature, scaled_members, tempered_log_probs

# Logits judged at a time, 8 MB in float64; of 50,000 rows of 3 x 1000 every copy would take 1.2 GB.
SLICE = 1 << 20


@dataclass(frozen=True, eq=False)
class Judged:
    """A few numbers `(R,)` for each row of a set; `right`, `brier`, `nll` and `label` only where rows have labels."""

    scores: Mapping[str, Tensor]
    """How unknown the row looks, by each score; higher = more out of distribution."""
    confidence: Tensor
    """The highest probability."""
    aleatoric: Tensor
    mutual_information: Tensor
    disagreement: Tensor
    right: Tensor | None = None
    """Is the most probable class the label? 0 or 1."""
    brier: Tensor | None = None
    """Squared distance of the probabilities from the label, summed over classes: 0 to 2."""
    nll: Tensor | None = None
    """Minus the log-probability of the label."""
    answer: Tensor | None = None
    """The most probable class; None in evaluations that were written before it was kept."""
    label: Tensor | None = None

    def __repr__(self) -> str:
        return f"Judged({len(self)} rows{shown_accuracy(self)}, mean confidence {float(self.confidence.mean()):.2f})"

    def __len__(self) -> int:
        return len(self.confidence)


def judged(logits_RMC: Tensor, labels_R: Tensor | None = None, temperature: Temperature | None = None) -> Judged:
    """Judge the members' answers at a temperature, against the labels where there are any."""
    step = rows_in_slice(logits_RMC)
    slices = [slice(start, start + step) for start in range(0, max(len(logits_RMC), 1), step)]
    return _joined(
        [
            _judged(logits_RMC[rows].double(), None if labels_R is None else labels_R[rows].long(), temperature)
            for rows in slices
        ]
    )


def shown_accuracy(rows: Judged) -> str:
    """For a person, behind a number of rows; nothing without labels."""
    return "" if rows.right is None else f", accuracy {100 * float(rows.right.mean()):.1f} %"


def rows_in_slice(logits_RMC: Tensor) -> int:
    """How many rows of logits are looked at together."""
    return max(SLICE // max(logits_RMC.shape[1:].numel(), 1), 1)


def _judged(logits_RMC: Tensor, labels_R: Tensor | None, temperature: Temperature | None) -> Judged:
    members, log_probs = scaled_members(logits_RMC, temperature), tempered_log_probs(logits_RMC, temperature)
    probs = log_probs.exp()
    # Before the ensemble's temperature, as in `predict`: it changes no label, not even where rounding would.
    answer = ensemble_log_probs(members).argmax(dim=-1)
    by_row = Judged(
        {name: ood_scores(name, logits_RMC, temperature) for name in SCORES},
        probs.amax(dim=-1),
        aleatoric(members),
        epistemic(members),
        disagreement(members).double(),
        answer=answer,
    )
    if labels_R is None:
        return by_row
    at_label = log_probs.gather(-1, labels_R[:, None])[:, 0]
    brier = probs.square().sum(-1) - 2 * at_label.exp() + 1
    right = (answer == labels_R).double()
    return replace(by_row, right=right, brier=brier, nll=-at_label, label=labels_R)


def _joined(parts: list[Judged]) -> Judged:
    scores = {name: torch.cat([part.scores[name] for part in parts]) for name in parts[0].scores}
    columns = [field.name for field in fields(Judged) if getattr(parts[0], field.name) is not None][1:]
    return Judged(scores, **{name: torch.cat([getattr(part, name) for part in parts]) for name in columns})
