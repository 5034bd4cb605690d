"""Figures of cost: bars as in the paper's Figure 3, and what quality the cost buys."""

from collections.abc import Sequence
from typing import Any

from hydra_ensembles.evaluation.protocol import AVERAGE, ID_TEST
from hydra_ensembles.optional import import_extra
from hydra_ensembles.report.drawing import Plate, as_percent, legend, new_figure
from hydra_ensembles.report.looks import LIGHT, Looks
from hydra_ensembles.report.runs import Series
from hydra_ensembles.report.words import each, milliseconds, percent, short

_COSTS = {"params": "parameters", "mult_adds": "multiply-adds an input", "latency_ms": "milliseconds a batch"}
_QUALITIES = {"accuracy": "right answers", "ece": "confidence off by (ECE)", "auroc": "AUROC, unknown inputs"}


def has_cost(series: Series, what: str) -> bool:
    """Was this cost counted or measured?"""
    return series.run.costs.get("models", {}).get(series.model, {}).get(what) is not None


def cost_plate(looks: Looks, what: str) -> Plate:
    """One cost of every model as bars: `params`, `mult_adds` or `latency_ms`."""
    figure = new_figure(4.0, 0.8 + 0.42 * len(looks))
    axes = figure.subplots()
    for place, (one, style) in enumerate(looks.items()):
        value, (low, high) = _cost(one, what), _quartiles(one, what)
        axes.barh(place, value, height=0.62, color=style.colour, alpha=0.85)
        if high > low:
            axes.plot([low, high], [place, place], color=LIGHT["ink"], linewidth=1.4, marker="|", markersize=7)
        beside: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(_said(value, what), (high, place), **beside)
    axes.set_yticks(range(len(looks)), [one.label for one in looks])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.32 * max(_quartiles(one, what)[1] for one in looks))
    _few_ticks(axes.xaxis, what)
    told = [(one.label, _said(_cost(one, what), what)) for one in looks]
    title = _COSTS[what].capitalize()
    return Plate(f"cost-{what.replace('_', '-')}", title, f"{each(told)}{_multiples(looks, what)}.", figure)


def quality_plate(looks: Looks, metric: str, what: str) -> Plate:
    """Accuracy, ECE or AUROC against a cost, with 95 % intervals where there are any."""
    figure = new_figure()
    axes = figure.subplots()
    told = []
    for one, style in looks.items():
        cost, (value, interval) = _cost(one, what), _quality(one, metric)
        if interval is not None:
            axes.plot([cost, cost], interval, color=style.colour, linewidth=1.2)
        axes.plot([cost], [value], color=style.colour, marker=style.marker, markersize=9, ls="", label=one.label)
        told.append((one.label, f"{percent(value)} at {_said(cost, what)}"))
    axes.set_xlim(0, 1.25 * max(_cost(one, what) for one in looks))
    axes.margins(y=0.25)
    _few_ticks(axes.xaxis, what)
    as_percent(axes.yaxis)
    axes.set(xlabel=_COSTS[what], ylabel=_QUALITIES[metric])
    legend(figure, axes, inside=0)
    name = _QUALITIES[metric]
    return Plate(
        f"quality-{metric}",
        f"{name[0].upper()}{name[1:]}, against {_COSTS[what]}",
        f"{each(told)}. Better is {'lower' if metric == 'ece' else 'higher'} and further left; "
        "upright lines are 95 % intervals.",
        figure,
    )


def _quality(series: Series, metric: str) -> tuple[float, Sequence[float] | None]:
    part, row = (f"ood/{series.told['score']}", AVERAGE) if metric == "auroc" else ("answers", ID_TEST)
    value: float = series.told["figures"][part][row][metric]
    return value, series.told["intervals"].get(part, {}).get(row, {}).get(metric)


def _cost(series: Series, what: str) -> float:
    found = series.run.costs["models"][series.model][what]
    return float(found["median"] if what == "latency_ms" else found)


def _quartiles(series: Series, what: str) -> tuple[float, float]:
    """Between which half of the measured times lie; what is counted is certain."""
    found = series.run.costs["models"][series.model][what]
    return (float(found["low"]), float(found["high"])) if what == "latency_ms" else (float(found), float(found))


def _said(value: float, what: str) -> str:
    return milliseconds(value) if what == "latency_ms" else short(value)


def _multiples(looks: Looks, what: str) -> str:
    """Each run's models in terms of its base."""
    bases = {one.run.name: _cost(one, what) for one in looks if one.model == one.run.base}
    told = [
        (one.label, f"{_cost(one, what) / bases[one.run.name]:.2f}")
        for one in looks
        if one.run.name in bases and one.model != one.run.base
    ]
    return f"; in multiples of one network: {each(told)}" if told else ""


def _few_ticks(axis: Any, what: str) -> None:
    axis.set_major_locator(import_extra("matplotlib.ticker", "report", "drawing figures").MaxNLocator(4))
    axis.set_major_formatter(lambda value, _: f"{value:g}" if what == "latency_ms" else short(value))
