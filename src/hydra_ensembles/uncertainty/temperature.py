"""Temperature: one number that makes probabilities as sure as they are right (Guo et al. 2017).

Shapes: B batch, R rows to fit on, M members, C classes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hydra_ensembles.uncertainty.decomposition import at_least_fp32, ensemble_log_probs
from hydra_ensembles.uncertainty.known_rows import FittingError, check_rows

LOWEST, HIGHEST = 0.01, 100.0


@dataclass(frozen=True)
class Temperature:
    """Above 1 makes less sure, below 1 surer.

    `on="ensemble"` divides the ensemble's log-probabilities, so labels never change; `on="members"` divides every
    member's logits before they are averaged, which may change them.
    """

    value: float
    on: str = "ensemble"

    def __post_init__(self) -> None:
        if self.on not in ("ensemble", "members"):
            raise FittingError(f"a temperature is on 'ensemble' or on 'members', found {self.on!r}")
        if not isinstance(self.value, float | int) or isinstance(self.value, bool) or not 0 < self.value < math.inf:
            raise FittingError(f"a temperature is a number above 0, found {self.value!r}")


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and what it did to the rows that it was fitted on."""

    temperature: Temperature
    nll_before: float
    nll_after: float
    labels_changed: int
    """Rows whose most probable class is another one now; 0 by construction on the ensemble."""
    at_border: bool
    """The likelihood still rises at the end of the range: there is no finite optimum, or not a usable one."""


def scaled_members(logits_BMC: Tensor, temperature: Temperature | None) -> Tensor:
    """The members' logits, divided where the temperature is on the members."""
    if temperature is None or temperature.on != "members":
        return logits_BMC
    return at_least_fp32(logits_BMC) / temperature.value


def tempered_log_probs(logits_BMC: Tensor, temperature: Temperature | None) -> Tensor:
    """The ensemble's log-probabilities `(B, C)` at a temperature, on the ensemble or on its members.

    >>> tempered_log_probs(torch.tensor([[[2.0, 0.0]]]), Temperature(2.0)).softmax(-1)
    tensor([[0.7311, 0.2689]])
    """
    log_probs = ensemble_log_probs(scaled_members(logits_BMC, temperature))
    if temperature is None or temperature.on != "ensemble":
        return log_probs
    return (log_probs / temperature.value).log_softmax(dim=-1)


def fit_temperature(logits_RMC: Tensor, labels_R: Tensor, on: str = "ensemble") -> TemperatureFit:
    """The temperature of the highest likelihood between 0.01 and 100, in float64.

    Where no temperature does better than 1, it is 1. So it is where the likelihood still rises at a border (every row
    right, say): such rows do not determine one, and the border's would make every answer certain.
    """
    Temperature(1.0, on)
    check_rows(logits_RMC, labels_R)
    classes = labels_R.unique()
    if logits_RMC.shape[-1] < 2 or len(classes) < 2:
        raise FittingError(
            f"a temperature needs rows of two classes or more, found {len(labels_R)} rows, all of class "
            f"{classes[0].item()}; are the rows in the order of their labels?"
        )
    logits, labels = logits_RMC.double(), labels_R.long()
    scaled = logits if on == "members" else ensemble_log_probs(logits)[:, None]
    best = _best(scaled, labels)
    at_border = best in (LOWEST, HIGHEST)
    value = 1.0 if at_border else best
    temperature = Temperature(value, on)
    before, after = ensemble_log_probs(logits), tempered_log_probs(logits, temperature)
    return TemperatureFit(
        temperature,
        nll_before=_nll(scaled, labels, 0.0)[0],
        nll_after=_nll(scaled, labels, math.log(value))[0],
        labels_changed=int((before.argmax(-1) != after.argmax(-1)).sum()) if on == "members" else 0,
        at_border=at_border,
    )


def _best(logits_RMC: Tensor, labels_R: Tensor) -> float:
    """The temperature of the lowest mean NLL.

    On the ensemble the NLL is convex in 1/T; on members it need not be, so the range is looked over in steps first. A
    step over which the slope turns from falling to rising holds a minimum.
    """
    steps = torch.linspace(math.log(LOWEST), math.log(HIGHEST), 25, dtype=torch.float64).tolist()
    seen = [_nll(logits_RMC, labels_R, log_t) for log_t in steps]
    turns = [i for i in range(len(steps) - 1) if seen[i][1] <= 0 < seen[i + 1][1]]
    # The first of equals is taken: 1 if nothing is better, then a border that no inner point beats.
    found = {1.0: _nll(logits_RMC, labels_R, 0.0)[0], LOWEST: seen[0][0], HIGHEST: seen[-1][0]}
    if turns:
        deepest = min(turns, key=lambda i: min(seen[i][0], seen[i + 1][0]))
        log_t = _turn(logits_RMC, labels_R, steps[deepest], steps[deepest + 1], seen[deepest][1], seen[deepest + 1][1])
        found.setdefault(math.exp(log_t), _nll(logits_RMC, labels_R, log_t)[0])
    return min(found, key=lambda value: found[value])


def _turn(logits_RMC: Tensor, labels_R: Tensor, low: float, high: float, slope_low: float, slope_high: float) -> float:
    """Where the slope is 0 between two log-temperatures: regula falsi with the Illinois correction."""
    middle, side = low, 0
    for _ in range(100):
        if high - low < 1e-13 or slope_low == 0:
            break
        middle = (low * slope_high - high * slope_low) / (slope_high - slope_low)
        slope = _nll(logits_RMC, labels_R, middle)[1]
        if slope == 0:
            break
        if slope > 0:
            high, slope_high, slope_low = middle, slope, slope_low / 2 if side > 0 else slope_low
        else:
            low, slope_low, slope_high = middle, slope, slope_high / 2 if side < 0 else slope_high
        side = 1 if slope > 0 else -1
    return middle


def _nll(logits_RMC: Tensor, labels_R: Tensor, log_t: float) -> tuple[float, float]:
    """Mean NLL of the averaged members at a log-temperature, and its slope there."""
    cold = math.exp(-log_t)
    log_probs = (logits_RMC * cold).log_softmax(dim=-1)
    place = labels_R[:, None, None].expand(-1, logits_RMC.shape[1], 1)
    at_label_RM = log_probs.gather(-1, place)[..., 0]
    lift_RM = logits_RMC.gather(-1, place)[..., 0] - (log_probs.exp() * logits_RMC).sum(dim=-1)
    nll = math.log(logits_RMC.shape[1]) - at_label_RM.logsumexp(dim=1).mean()
    # d/dlog T = -(1/T) d/d(1/T); a member counts by its share of the label's probability.
    slope = cold * (at_label_RM.softmax(dim=1) * lift_RM).sum(dim=1).mean()
    return float(nll), float(slope)
