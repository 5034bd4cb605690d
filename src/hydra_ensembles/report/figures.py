"""Plates: one function a figure, from the numbers of series to a drawing and what it says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hydra_ensembles.evaluation.judged import Judged
from hydra_ensembles.evaluation.protocol import ID_TEST, SHIFTS
from hydra_ensembles.heads import HeadSet
from hydra_ensembles.report.curves import histogram, reliability, risk_coverage, roc
from hydra_ensembles.report.drawing import LIGHT, Look, Plate, look, new_figure
from hydra_ensembles.report.runs import Run, Series
from hydra_ensembles.report.words import each, listed, many, of_100, percent, short
from hydra_ensembles.uncertainty.decisions import DECISIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Looks = Mapping[Series, Look]
_RELIABLE_ROWS = 20
"""A bin of fewer rows says little: it is drawn, but no words are made of it."""


def looks_of(series: Sequence[Series]) -> dict[Series, Look]:
    """A look for each series; of one run, the subject comes first and the base is grey."""
    if len({one.run.name for one in series}) > 1:
        return {one: look(place) for place, one in enumerate(series)}
    run = series[0].run
    others = iter(range(1, 7))
    places = {run.subject: 0, run.base: 7}
    return {one: look(places[one.model] if one.model in places else next(others, 6)) for one in series}


def reliability_plate(looks: Looks, shifted: bool = False) -> Plate:
    """Accuracy against confidence, and how many rows lie where."""
    figure = new_figure(4.6, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=LIGHT["soft"], linewidth=1)
    upper.annotate("right as often\nas it says", (0.06, 0.13), color=LIGHT["ink"], fontsize=9)
    told = []
    for one, style in looks.items():
        rows = _rows(one, shifted)
        found = reliability(rows)
        upper.plot(
            found.confidence, found.accuracy, color=style.colour, ls=style.dashes, marker=style.marker, label=one.label
        )
        lower.plot(found.confidence, found.rows / found.rows.sum(), color=style.colour, ls=style.dashes)
        gap = float((found.rows * (found.confidence - found.accuracy)).sum() / found.rows.sum())
        told.append(f"{one.label} says {percent(float(rows.confidence.mean()))} on average and is right "
                    f"{percent(float(rows.right.mean()))}" + _leaning(gap))  # type: ignore[union-attr]
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="share of right answers")
    lower.set(ylim=(0, None), xlabel="confidence", ylabel="rows")
    _as_percent(upper.yaxis, upper.xaxis, lower.yaxis)
    upper.legend(loc="lower right")
    where = "corrupted rows" if shifted else "known rows"
    return Plate(
        "reliability-shifted" if shifted else "reliability",
        f"Confidence and truth, {where}",
        "; ".join(told) + ". Below the diagonal: too sure; above: not sure enough.",
        figure,
    )


def roc_plate(looks: Looks, name: str, score: str) -> Plate:
    """How many unknown rows are found at the price of how many false alarms."""
    figure = new_figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linewidth=1)
    told = []
    for one, style in looks.items():
        assert one.evaluation is not None
        known, unknown = (one.evaluation.judged[which].scores[score] for which in (ID_TEST, name))
        curve = roc(known, unknown)
        auroc = one.told["figures"][f"ood/{score}"][name]["auroc"]
        axes.plot(curve.x, curve.y, color=style.colour, ls=style.dashes, label=f"{one.label} {auroc:.3f}")
        told.append((one.label, f"{auroc:.3f}"))
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="known inputs called unknown", ylabel="unknown inputs found")
    _as_percent(axes.xaxis, axes.yaxis)
    axes.legend(loc="lower right", title="AUROC", alignment="right")
    return Plate(f"roc-{name}", f"Finding {name}", f"AUROC (coin toss 0.5): {each(told)}.", figure)


def histogram_plate(series: Series, name: str, score: str) -> Plate:
    """How far the scores of known and unknown rows overlap."""
    assert series.evaluation is not None
    known, unknown = (series.evaluation.judged[which].scores[score] for which in (ID_TEST, name))
    found = histogram(known, unknown)
    figure = new_figure()
    axes = figure.subplots()
    first, second = look(0), look(1)
    axes.stairs(found.known, found.edges, fill=True, alpha=0.35, color=first.colour)
    axes.stairs(found.known, found.edges, color=first.colour, linewidth=1.4, label="known")
    axes.stairs(found.unknown, found.edges, color=second.colour, ls="--", linewidth=1.8, label=name)
    threshold = ((series.told["about"].get("fitted") or {}).get("ood") or {})
    if threshold.get("score") == score and found.edges[0] <= threshold["threshold"] <= found.edges[-1]:
        axes.axvline(threshold["threshold"], color=LIGHT["soft"], ls=":", linewidth=1.4, label="called unknown above")
    axes.set(xlabel=f"{score.replace('_', ' ')} (higher: looks stranger)", ylabel="share of rows", ylim=(0, None))
    axes.margins(x=0)
    _as_percent(axes.yaxis)
    axes.legend(loc="best")
    higher = float((unknown > known.median()).double().mean())
    return Plate(
        f"scores-{slug(series.label)}-{name}",
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
    axes.set(xlim=(0, 1), ylim=(0, highest * 1.08 or 0.01), xlabel="share answered, surest first", ylabel="wrong among them")
    _as_percent(axes.xaxis, axes.yaxis)
    axes.legend(loc="upper left")
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
    figure = new_figure(6.0, 0.9 + 0.34 * len(names))
    axes = figure.subplots()
    start = np.zeros(len(names))
    for decision, style, hatch in zip(DECISIONS, (look(0), look(5), look(1)), ("", "..", "//"), strict=True):
        shares = np.array([decisions[name].get(decision, 0.0) for name in names])
        words = {"accept": "answers", "abstain": "not sure", "out-of-distribution": "calls it unknown"}
        axes.barh(
            range(len(names)), shares, left=start, height=0.7, color=style.colour, alpha=0.85, label=words[decision],
            hatch=hatch, edgecolor=LIGHT["paper"], linewidth=1,
        )  # fmt: skip
        start += shares
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlim=(0, 1))
    _as_percent(axes.xaxis)
    figure.legend(loc="outside upper center", ncols=3)
    told = [(name, f"{of_100(decisions[name].get('accept', 0.0))} of 100 answered") for name in names]
    return Plate(
        f"decisions-{slug(series.label)}", f"What {series.label} does with its inputs", f"{each(told)}.", figure
    )


def head_plate(run: Run, member: str, keep: HeadSet, place: int) -> Plate:
    """Which heads a member keeps: a row a layer, a square a head."""
    layers = [(tower, layer, total, heads) for tower, totals, kept in zip(keep.towers, keep.num_heads, keep.kept, strict=True)
              for layer, (total, heads) in enumerate(zip(totals, kept, strict=True))]
    widest = max(total for *_, total, _ in layers)
    figure = new_figure(max(0.22 * widest + 0.9, 2.2), 0.22 * len(layers) + 0.8)
    axes = figure.subplots()
    rectangle = _rectangle()
    for row, (_, _, total, heads) in enumerate(layers):
        for head in range(total):
            is_kept = head in heads
            axes.add_patch(
                rectangle(
                    (head + 0.08, row + 0.08), 0.84, 0.84, facecolor=look(0).colour if is_kept else "none",
                    edgecolor=look(0).colour if is_kept else LIGHT["soft"], linewidth=0.7,
                )  # fmt: skip
            )
    axes.set(xlim=(0, widest), ylim=(len(layers), 0), xlabel="head", ylabel="layer", aspect="equal")
    several = len(keep.towers) > 1
    step = 1 if len(layers) <= 12 else 2
    axes.set_yticks(
        [row + 0.5 for row in range(0, len(layers), step)],
        [f"{tower} {layer}" if several else str(layer) for tower, layer, *_ in layers[::step]],
    )
    axes.set_xticks([head + 0.5 for head in range(0, widest, max(1, widest // 6))], [str(head) for head in range(0, widest, max(1, widest // 6))])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    counts = [len(heads) for *_, heads in layers]
    total = sum(total for *_, total, _ in layers)
    empty = [f"{tower} {layer}" if several else str(layer) for (tower, layer, *_), count in zip(layers, counts, strict=True) if not count]
    least = f"; no head left in layer {listed(empty)}" if empty else f"; between {min(counts)} and {max(counts)} a layer"
    return Plate(
        f"heads-{slug(run.name)}-{place}",
        f"Member chosen for {member}",
        f"Keeps {len(keep)} of {total} heads{least}.",
        figure,
    )


def cost_plate(series: Sequence[Series], looks: Looks, what: str) -> Plate:
    """One cost of every model as bars: `params`, `mult_adds` or `latency_ms`, as the paper's Figure 3 has them."""
    titles = {"params": "Parameters", "mult_adds": "Multiply-adds an input", "latency_ms": "Time a batch, ms"}
    values = [_cost(one, what) for one in series]
    figure = new_figure(4.0, 0.8 + 0.42 * len(series))
    axes = figure.subplots()
    for place, (one, value) in enumerate(zip(series, values, strict=True)):
        colour = looks[one].colour if one in looks else LIGHT["soft"]
        low_high = _ends(one, what)
        axes.barh(place, value, height=0.62, color=colour, alpha=0.85)
        if low_high is not None:
            axes.plot(low_high, [place, place], color=LIGHT["ink"], linewidth=1.4, marker="|", markersize=7)
        end = max(value, *(low_high or (value,)))
        axes.annotate(_said(value, what), (end, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(series)), [one.label for one in series])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.32 * max(max(values), *(_ends(one, what)[1] if _ends(one, what) else 0 for one in series)))  # type: ignore[index]
    axes.xaxis.set_major_locator(_few_ticks())
    axes.xaxis.set_major_formatter(lambda x, _: _said(x, what, unit=False))
    told = [(one.label, _said(value, what)) for one, value in zip(series, values, strict=True)]
    return Plate(f"cost-{what.replace('_', '-')}", titles[what], f"{each(told)}{_relative(series, what)}.", figure)


def quality_plate(series: Sequence[Series], looks: Looks, metric: str, what: str) -> Plate:
    """A figure of quality against a cost: the better corner is named."""
    names = {"accuracy": "right answers", "ece": "confidence off by (ECE)", "auroc": "AUROC, unknown inputs"}
    figure = new_figure(4.0, 3.1)
    axes = figure.subplots()
    told, points = [], []
    for one in series:
        value, low_high = _quality(one, metric)
        x = _cost(one, what)
        style = looks[one]
        if low_high is not None:
            axes.plot([x, x], low_high, color=style.colour, linewidth=1.2)
        axes.plot([x], [value], color=style.colour, marker=style.marker, markersize=9, ls="", label=one.label)
        points.append((x, value))
        told.append((one.label, f"{percent(value)} at {_said(x, what)}"))
    axes.set_xlim(0, 1.25 * max(x for x, _ in points))
    axes.margins(y=0.25)
    axes.xaxis.set_major_locator(_few_ticks())
    axes.xaxis.set_major_formatter(lambda x, _: _said(x, what, unit=False))
    _as_percent(axes.yaxis)
    axes.set(xlabel={"mult_adds": "multiply-adds an input", "latency_ms": "time a batch, ms"}[what], ylabel=names[metric])
    axes.legend(loc="best")
    better = "lower and further left" if metric == "ece" else "higher and further left"
    return Plate(
        f"quality-{metric}-{what.replace('_', '-')}", f"{names[metric].capitalize()} against cost",
        f"{each(told)}. Better is {better}; lines are 95 % intervals.", figure,
    )  # fmt: skip


def _rows(series: Series, shifted: bool = False) -> Judged:
    """The known rows of a series, or all its corrupted ones together."""
    evaluation = series.evaluation
    assert evaluation is not None
    if not shifted:
        return evaluation.judged[ID_TEST]
    sets = [evaluation.judged[name] for name in evaluation.groups[SHIFTS]]
    right = torch.cat([rows.right for rows in sets if rows.right is not None])
    return replace(sets[0], confidence=torch.cat([rows.confidence for rows in sets]), right=right)


def _quality(series: Series, metric: str) -> tuple[float, Sequence[float] | None]:
    part, row = ("answers", ID_TEST) if metric != "auroc" else (f"ood/{series.told['score']}", "average")
    value: float = series.told["figures"][part][row][metric]
    return value, series.told["intervals"].get(part, {}).get(row, {}).get(metric)


def _cost(series: Series, what: str) -> float:
    found = series.run.costs["models"][series.model][what]
    return float(found["median"] if what == "latency_ms" else found)


def _ends(series: Series, what: str) -> tuple[float, float] | None:
    if what != "latency_ms":
        return None
    found = series.run.costs["models"][series.model][what]
    return float(found["low"]), float(found["high"])


def _said(value: float, what: str, unit: bool = True) -> str:
    if what != "latency_ms":
        return short(value)
    return f"{value:.3g}{' ms' if unit else ''}"


def _relative(series: Sequence[Series], what: str) -> str:
    """Each run's models in terms of its base."""
    told = []
    for one in series:
        base = one.run.base
        if base is not None and one.model != base and base in one.run.costs.get("models", {}):
            told.append((one.label, f"{_cost(one, what) / _cost(Series(base, one.run, base), what):.2f}"))
    return f"; in multiples of one network: {each(told)}" if told else ""


def _leaning(gap: float) -> str:
    if abs(gap) < 0.005:
        return ""
    return f" ({100 * abs(gap):.1f} points too {'sure' if gap > 0 else 'careful'})"


def _as_percent(*axes: Any) -> None:
    ticker = _ticker()
    for axis in axes:
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _few_ticks() -> Any:
    return _ticker().MaxNLocator(4)


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _rectangle() -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle


def slug(text: str) -> str:
    """A name that files and ids can have.

    >>> slug("text-smoke, seed 1: hydra")
    'text-smoke-seed-1-hydra'
    """
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else " " for sign in text.lower()).split()).replace(".", "_")
