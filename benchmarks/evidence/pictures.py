"""The paper's Figures 4, 5 and 6 from results files, as PNG beside the page."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file

from evidence.methods import file_name
from evidence.page import read
from hydra_ensembles.report.drawing import new_figure, styled
from hydra_ensembles.report.looks import LIGHT, MARKERS, look
from provenance import RESULTS

METRICS = {"accuracy": "accuracy", "auroc": "AUROC", "fpr95": "FPR95 (lower is better)", "aupr": "AUPR"}
COSTS = "cost.png"
LABEL_WIDTH, LABEL_INCHES = 32, 0.2
"""Characters of a line beside the figure of costs, which leave it most of its width, and how high a line is."""
Pictures: TypeAlias = Mapping[str, tuple[str, Callable[[], Any]]]
"""By file name, a title and what draws it."""
FILLS = ("full", "none", "left", "top")
"""Of markers, which are too few for all methods."""
_SWEPT = re.compile(r"(CircAvg|Taylor) (\d+) heads(, no training)?")


def pictures(setting: str, summary: Mapping[str, Any], claims: Mapping[str, Any]) -> Pictures:
    """By file name, its title and how it is drawn: every figure whose results are there."""
    found: dict[str, tuple[str, Callable[[], Any]]] = {}
    if "single" in summary["methods"]:
        drawn = intervals(setting, summary["methods"])
        ending = (
            ", and, thin, of one seed the middle 95 % over resampled test rows"
            if drawn
            else ", where there are several"
        )
        title = f"OOD AUROC against cost; upright lines are one standard deviation over seeds{ending}"
        found[COSTS] = title, partial(draw_costs, summary["methods"], drawn)
    if planes := read(setting, "projections"):
        title = "Outputs of the heads that CircOOD removed last (above) and first (below), by PCA (Figure 4)"
        found["figure-4.png"] = title, lambda: draw_planes(planes)
    return {**found, **sweeps(claims)}


def sweeps(claims: Mapping[str, Any], suffix: str = "", where: str = "") -> Pictures:
    """Figures 5 and 6, where there are rows for a line; file names end in `suffix`, titles in `where`."""
    swept, single = swept_heads(claims["methods"]), claims["methods"].get("single", {})
    found: dict[str, tuple[str, Callable[[], Any]]] = {}
    for name, trained, title in (
        (f"figure-5{suffix}.png", False, f"Heads kept, nothing trained (Figure 5){where}"),
        (f"figure-6{suffix}.png", True, f"Heads kept, trained after pruning (Figure 6){where}"),
    ):
        lines = {method: points[trained] for method, points in swept.items() if len(points[trained]) > 1}
        if lines:
            found[name] = title, partial(draw_sweep, lines, single)
    return found


def draw_all(found: Pictures, folder: Path) -> None:
    """Every picture as PNG."""
    with styled():
        for name, (_, draw) in found.items():
            folder.mkdir(exist_ok=True)
            draw().savefig(folder / name, dpi=110, metadata={"Software": None})


def as_markdown(found: Pictures, folder: str) -> dict[str, str]:
    """Every picture as the page shows it, by file name."""
    return {name: f"**{title}.**\n\n![{title}]({folder}/{name})" for name, (title, _) in found.items()}


def swept_heads(methods: Mapping[str, Any]) -> dict[str, dict[bool, dict[int, Mapping[str, float]]]]:
    """By method, trained or not and number of heads: the metrics."""
    found: dict[str, dict[bool, dict[int, Mapping[str, float]]]] = {}
    for name, figures in methods.items():
        if matched := _SWEPT.fullmatch(name):
            method, heads, untrained = matched.groups()
            lines = found.setdefault(method, {False: {}, True: {}})
            lines[untrained is None][int(heads)] = {metric: figures[metric]["mean"] for metric in METRICS}
    return found


def intervals(setting: str, methods: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The middle 95 % of OOD AUROC over resampled test rows, of methods whose draws are among the results."""
    paths = {name: RESULTS / setting / "draws" / f"{file_name(name, 0)}.safetensors" for name in methods}
    drawn = {name: 100 * load_file(path)["auroc"][1:] for name, path in paths.items() if path.is_file()}
    ends = torch.tensor([0.025, 0.975])
    return {name: tuple(torch.quantile(values, ends).tolist()) for name, values in drawn.items()}


def draw_costs(methods: Mapping[str, Any], drawn: Mapping[str, tuple[float, float]]) -> Any:
    """OOD AUROC against multiply-adds, every method; upright lines say how far it moves."""
    lines = sum(fill(name, LABEL_WIDTH).count("\n") + 1 for name in methods)
    figure = new_figure(8.0, max(4.2, LABEL_INCHES * lines))
    panel = figure.subplots()
    single = methods["single"]["mult_adds"]["mean"]
    for place, (name, found) in enumerate(methods.items()):
        cost, quality, style = found["mult_adds"]["mean"] / single, found["auroc"], look(place)
        if quality.get("std"):
            low, high = quality["mean"] - quality["std"], quality["mean"] + quality["std"]
            panel.plot([cost, cost], [low, high], color=style.colour, linewidth=1.8)
        elif name in drawn:
            panel.plot([cost, cost], drawn[name], color=style.colour, linewidth=0.6)
        dot: dict[str, Any] = {"color": style.colour, "marker": style.marker, "ms": 7, "ls": ""}
        dot |= {"fillstyle": FILLS[place // len(MARKERS) % len(FILLS)], "markerfacecoloralt": "none"}
        panel.plot([cost], [quality["mean"]], label=fill(name, LABEL_WIDTH), **dot)
    panel.set_xscale("log")
    ticks = [1, 2, 3, 5, 10]
    panel.set_xticks(ticks, [f"{tick}x" for tick in ticks])
    panel.minorticks_off()
    panel.set(xlabel="multiply-adds of one input, in those of single", ylabel="average OOD AUROC (%)")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def draw_sweep(lines: Mapping[str, Mapping[int, Mapping[str, float]]], single: Mapping[str, Any]) -> Any:
    """Four metrics against heads kept; the dotted line is the model with all its heads."""
    figure = new_figure(8.0, 2.6)
    panels = figure.subplots(1, len(METRICS))
    for panel, (metric, title) in zip(panels, METRICS.items(), strict=True):
        for place, (method, points) in enumerate(lines.items()):
            style, counts = look(place), sorted(points, reverse=True)
            values = [points[count][metric] for count in counts]
            panel.plot(counts, values, color=style.colour, ls=style.dashes, marker=style.marker, label=method)
        if metric in single:
            panel.axhline(single[metric]["mean"], color=LIGHT["soft"], ls=":", linewidth=1.2, label="single")
        panel.invert_xaxis()
        panel.set(title=title, xlabel="heads kept")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def draw_planes(found: Mapping[str, Any]) -> Any:
    """One panel a head, most important heads above."""
    sides: Sequence[Sequence[Mapping[str, Any]]] = (found["most"], found["least"])
    figure = new_figure(1.6 * len(sides[0]), 3.8)
    for row, planes in zip(figure.subplots(2, len(sides[0])), sides, strict=True):
        for panel, plane in zip(row, planes, strict=True):
            for place, (name, points) in enumerate(plane["points"].items()):
                style = look(place)
                label = "known" if place == 0 else name
                columns = tuple(zip(*points, strict=True))
                panel.scatter(*columns, s=5, alpha=0.5, color=style.colour, marker=style.marker, label=label, lw=0)
            _, layer, index = plane["head"]
            panel.set_title(f"layer {layer}, head {index}", fontsize=8)
            panel.set(xticks=[], yticks=[])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), markerscale=2)
    return figure
