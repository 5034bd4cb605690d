"""Figures of answers and scores: one function a plate, from the rows of series to a drawing and what it says."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.evaluation.protocol import ID_TEST, SHIFTS
from hydra_ensembles.report.curves import histogram, reliability, risk_coverage, roc
from hydra_ensembles.report.drawing import Plate, as_percent, legend, new_figure
from hydra_ensembles.report.looks import LIGHT, Looks, look
from hydra_ensembles.report.runs import Series
from hydra_ensembles.report.words import each, of_100, percent, slug
from hydra_ensembles.uncertainty.decisions import DECISIONS


def reliability_plate(looks: Looks, shifted: bool = False) -> Plate:
    """Accuracy against confidence, and how many rows lie where."""
    figure = new_figure(4.6, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=LIGHT["soft"], linewidth=1, label="right as often as it says")
    told = []
    for one, style in looks.items():
        rows = _rows(one, shifted)
        found = reliability(rows)
        upper.plot(
            found.confidence, found.accuracy, color=style.colour, ls=style.dashes, marker=style.marker, label=one.label
        )
        lower.plot(found.confidence, found.rows / found.rows.sum(), color=style.colour, ls=style.dashes)
        says, right = (float(np.average(share, weights=found.rows)) for share in (found.confidence, found.accuracy))
        told.append(f"{one.label} says {percent(says)} on average, is right {percent(right)}{_leaning(says - right)}")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right answers")
    lower.set(ylim=(0, None), xlabel="confidence", ylabel="rows")
    as_percent(upper.yaxis, upper.xaxis, lower.yaxis)
    legend(figure, upper)
    where = "corrupted rows" if shifted else "known rows"
    return Plate(
        "reliability-shifted" if shifted else "reliability",
        f"Confidence and truth, {where}",
        "; ".join(told) + ".",
        figure,
    )


def roc_plate(looks: Looks, name: str) -> Plate:
    """How many unknown rows are found at the price of how many false alarms."""
    figure = new_figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linewidth=1)
    told = []
    for one, style in looks.items():
        curve = roc(*_scores(one, name))
        auroc = one.told["figures"][f"ood/{one.told['score']}"][name]["auroc"]
        axes.plot(curve.x, curve.y, color=style.colour, ls=style.dashes, label=f"{one.label} {auroc:.3f}")
        told.append((one.label, f"{auroc:.3f}"))
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="known inputs called unknown", ylabel="unknown inputs found")
    as_percent(axes.xaxis, axes.yaxis)
    legend(figure, axes, "lower right", title="AUROC")
    return Plate(
        f"roc-{slug(name)}", f"ROC: telling {name} from known inputs", f"AUROC (coin toss 0.5): {each(told)}.", figure
    )


def histogram_plate(series: Series, name: str) -> Plate:
    """How far the scores of known and unknown rows overlap."""
    score = series.told["score"]
    known, unknown = _scores(series, name)
    found = histogram(known, unknown)
    figure = new_figure()
    axes = figure.subplots()
    first, second = look(0), look(1)
    axes.stairs(found.known, found.edges, fill=True, alpha=0.35, color=first.colour)
    axes.stairs(found.known, found.edges, color=first.colour, linewidth=1.4, label="known")
    axes.stairs(found.unknown, found.edges, color=second.colour, ls="--", linewidth=1.8, label=name)
    threshold = (series.told["about"].get("fitted") or {}).get("ood") or {}
    if threshold.get("score") == score and found.edges[0] <= threshold["threshold"] <= found.edges[-1]:
        axes.axvline(threshold["threshold"], color=LIGHT["soft"], ls=":", linewidth=1.4, label="threshold")
    axes.set(xlabel=f"score {score.replace('_', ' ')} (higher: looks stranger)", ylabel="share of rows", ylim=(0, None))
    axes.margins(x=0)
    as_percent(axes.yaxis)
    figure.legend(loc="outside upper center", ncols=3)
    middle = known.median()
    higher = float(((unknown > middle).double() + (unknown == middle).double() / 2).mean())
    return Plate(
        f"scores-{slug(series.label)}-{slug(name)}",
        f"Scores of {series.label} on {name}",
        f"{of_100(higher)} of 100 inputs of {name} look stranger than the middle known input; "
        "50 would mean that it cannot tell them apart.",
        figure,
    )


def risk_plate(looks: Looks) -> Plate:
    """Errors left when only the surest answers are given."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    told = []
    highest = 0.0
    for one, style in looks.items():
        curve = risk_coverage(_rows(one))
        axes.plot(curve.x, curve.y, color=style.colour, ls=style.dashes, label=one.label)
        # The very first rows leap between 0 and 1; they would flatten all the rest.
        highest = max(highest, float(curve.y[curve.x >= min(0.05, curve.x[-1])].max()))
        risk = one.told["figures"]["answers"][ID_TEST]
        told.append((one.label, f"{percent(1 - risk['accuracy'])} → {percent(risk['risk_at_80'])}"))
    axes.axvline(0.8, color=LIGHT["soft"], ls=":", linewidth=1.2)
    axes.set(
        xlim=(0, 1), ylim=(0, highest * 1.08 or 0.01), xlabel="share answered, surest first", ylabel="wrong among them"
    )
    as_percent(axes.xaxis, axes.yaxis)
    legend(figure, axes, "upper left")
    return Plate(
        "risk-coverage",
        "What staying silent when unsure brings",
        f"Error rate when everything is answered → when the least sure fifth is left out: {each(told)}.",
        figure,
    )


def decisions_plate(series: Series) -> Plate:
    """What becomes of the rows of each set."""
    decisions: Mapping[str, Mapping[str, float]] = series.told["about"]["decisions"]
    names = list(decisions)
    figure = new_figure(4.8, 0.9 + 0.3 * len(names))
    axes = figure.subplots()
    start = np.zeros(len(names))
    for decision, style, hatch in zip(DECISIONS, (look(0), look(5), look(1)), ("", "..", "//"), strict=True):
        shares = np.array([decisions[name].get(decision, 0.0) for name in names])
        words = {"accept": "answers", "abstain": "not sure", "out-of-distribution": "calls it unknown"}
        axes.barh(
            range(len(names)),
            shares,
            left=start,
            height=0.7,
            color=style.colour,
            alpha=0.85,
            label=words[decision],
            hatch=hatch,
            edgecolor=LIGHT["paper"],
            linewidth=1,
        )
        start += shares
    axes.set_yticks(range(len(names)), ["known" if name == ID_TEST else name for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlim=(0, 1))
    as_percent(axes.xaxis)
    figure.legend(loc="outside upper center", ncols=3)
    told = [("known inputs" if name == ID_TEST else name, of_100(decisions[name].get("accept", 0.0))) for name in names]
    return Plate(
        f"decisions-{slug(series.label)}",
        f"What {series.label} does with its inputs",
        f"Answered of 100 inputs: {each(told)}. Of unknown inputs, fewer is better.",
        figure,
    )


def _scores(series: Series, name: str) -> tuple[Tensor, Tensor]:
    """Of known inputs, and of those of an unknown set, by the score that has intervals."""
    assert series.evaluation is not None
    judged, score = series.evaluation.judged, series.told["score"]
    return judged[ID_TEST].scores[score], judged[name].scores[score]


def _rows(series: Series, shifted: bool = False) -> Judged:
    """The known rows of a series, or all its corrupted ones together."""
    evaluation = series.evaluation
    assert evaluation is not None
    if not shifted:
        return evaluation.judged[ID_TEST]
    sets = [evaluation.judged[name] for name in evaluation.groups[SHIFTS]]
    right = torch.cat([rows.right for rows in sets if rows.right is not None])
    return replace(sets[0], confidence=torch.cat([rows.confidence for rows in sets]), right=right)


def _leaning(gap: float) -> str:
    if abs(gap) < 0.005:
        return ""
    return f" ({100 * abs(gap):.1f} points too {'sure' if gap > 0 else 'careful'})"
