"""Predictions: probabilities, uncertainty and, where something was fitted, a decision, for one batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hydra_ensembles.uncertainty.conformal import prediction_sets
from hydra_ensembles.uncertainty.decisions import DECISIONS, decided, ood_scores
from hydra_ensembles.uncertainty.decomposition import (
    aleatoric,
    disagreement,
    ensemble_log_probs,
    entropy,
    epistemic,
)
from hydra_ensembles.uncertainty.fitted import Fitted
from hydra_ensembles.uncertainty.known_rows import finest
from hydra_ensembles.uncertainty.temperature import scaled_members, tempered_log_probs


@dataclass(frozen=True)
class Prediction:
    """What an ensemble says about a batch of B inputs and C classes. Entropies are in nats."""

    label: Tensor
    """`(B,)`: the most probable class; a temperature on the ensemble does not change it."""
    probs: Tensor
    """`(B, C)`: the mean of the members' probabilities, at the temperature if one is fitted."""
    confidence: Tensor
    """`(B,)`: the highest of them (MSP)."""
    entropy: Tensor
    """`(B,)`: total uncertainty of `probs`; `aleatoric + epistemic` unless a temperature is on the ensemble."""
    aleatoric: Tensor
    """`(B,)`: expected entropy of a member; a temperature on the ensemble leaves the members' own."""
    epistemic: Tensor
    """`(B,)`: mutual information, what the members do not agree on; likewise the members' own."""
    disagreement: Tensor
    """`(B,)`: the share of pairs of members that give different labels."""
    ood_score: Tensor
    """`(B,)`: how unknown the input looks, by the score that the OOD threshold is on; msp where none is fitted."""
    prediction_set: Tensor | None = None
    """`(B, C)`: which labels the conformal set holds; None where no quantile is fitted."""
    decision: list[str] | None = None
    """For each input `"accept"`, `"abstain"` or `"out-of-distribution"`; None where there is nothing to decide by."""

    def __len__(self) -> int:
        return len(self.label)


def predict(logits_BMC: Tensor, fitted: Fitted | None = None) -> Prediction:
    """The prediction that the members' logits make together, with what was fitted on known data."""
    found = prediction_tensors(logits_BMC, fitted or Fitted())
    places = found.pop("decision", None)
    decision = None if places is None else [DECISIONS[place] for place in places.tolist()]
    return Prediction(**found, decision=decision)


def prediction_tensors(logits_BMC: Tensor, fitted: Fitted) -> dict[str, Tensor]:
    """Every field of a prediction that there is, as tensors; `decision` is a place in `DECISIONS`."""
    temperature, ood, conformal = fitted.temperature, fitted.ood, fitted.conformal
    logits, fine = scaled_members(logits_BMC, temperature), finest(logits_BMC)
    log_probs = tempered_log_probs(logits_BMC, temperature)
    probs = log_probs.exp()
    ood_score = ood_scores(ood.score if ood else "msp", fine, temperature)
    found = {
        # Before the ensemble's temperature, at which rounding may tie what was not equal.
        "label": ensemble_log_probs(logits).exp().argmax(dim=-1),
        "probs": probs,
        "confidence": probs.amax(dim=-1),
        "entropy": entropy(log_probs),
        "aleatoric": aleatoric(logits),
        "epistemic": epistemic(logits),
        "disagreement": disagreement(logits_BMC),
        "ood_score": ood_score,
    }
    if conformal:
        found["prediction_set"] = prediction_sets(tempered_log_probs(fine, temperature).exp(), conformal)
    if ood or conformal:
        # Logits that overflowed leave probabilities that are no numbers, and an energy that looks familiar.
        known = torch.where(probs.sum(dim=-1).isnan(), torch.nan, ood_score)
        found["decision"] = decided(known, ood, found.get("prediction_set"))
    return found
