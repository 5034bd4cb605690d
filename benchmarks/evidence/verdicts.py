"""Verdicts on claims whose figures stand in results files of their own."""

from collections.abc import Mapping
from typing import Any

from evidence.ledger import FAILS, HOLDS, UNDECIDED, Found


def separates(found: Mapping[str, Any]) -> Found:
    """Table 5: is CircOOD farther apart than the dense model, by both distances?"""
    dense, circuit = found["last_layer"]["single"], found["last_layer"]["CircOOD"]
    gains = [circuit[name] - dense[name] for name in ("euclidean", "mahalanobis")]
    shown = ", ".join(f"{name} {dense[name]:.2f} → {circuit[name]:.2f}" for name in ("euclidean", "mahalanobis"))
    return Found(shown, HOLDS if min(gains) > 0 else FAILS if max(gains) < 0 else UNDECIDED)


def heads_separate(found: Mapping[str, Any]) -> Found:
    """Figure 4: do the heads removed last separate more than those removed first?"""
    sides = found["heads_of_single"]
    first, last = (sides[side]["mahalanobis"] for side in ("first removed", "last removed"))
    return Found(f"Mahalanobis {last:.2f} last, {first:.2f} first removed", HOLDS if last > first else FAILS)


def aligned(found: Mapping[str, Any]) -> Found:
    """B.1: alignment at least 0, for Taylor as in the paper and for CircAvg."""
    values = {name: found["sets"][name]["alignment"] for name in ("Taylor", "CircAvg")}
    shown = ", ".join(f"{name} {value:+.3f}" for name, value in values.items())
    return Found(shown, HOLDS if min(values.values()) >= 0 else FAILS)


def curved(found: Mapping[str, Any]) -> Found:
    """B.1: the diagonal of the difference of Hessians is positive; each number of it, says the paper."""
    one = found["sets"]["Taylor"]
    shown = f"mean {one['difference']:+.4f} ± {one['difference_error']:.4f}, {100 * one['positive']:.0f} % positive"
    return Found(shown, HOLDS if one["surely_negative"] == 0 and one["difference"] > 0 else FAILS)


def widens(found: Mapping[str, Any]) -> Found:
    """Proposition 1 itself: the loss gap between noisy and clean inputs does not shrink when heads are removed."""
    values = {name: found["sets"][name]["gap_change"] for name in ("Taylor", "CircAvg")}
    shown = ", ".join(f"{name} {value:+.3f}" for name, value in values.items())
    return Found(shown, HOLDS if min(values.values()) >= 0 else FAILS)
