"""Head maps: which heads a member keeps, a row a layer, a square a head."""

from typing import NamedTuple

from hydra_ensembles.heads import HeadSet
from hydra_ensembles.optional import import_extra
from hydra_ensembles.report.drawing import Plate, new_figure
from hydra_ensembles.report.looks import LIGHT, look
from hydra_ensembles.report.runs import Run
from hydra_ensembles.report.words import listed, slug

_OBJECTIVES = {"acc": "right answers (acc)", "ood": "noticing unknown inputs (ood)", "avg": "both (avg)"}
_SQUARE = 0.84
_INCHES = 0.22
"""Of a square with the gap beside it."""


class _Layer(NamedTuple):
    name: str
    heads: int
    kept: tuple[int, ...]


def head_plate(run: Run, member: str, keep: HeadSet, place: int) -> Plate:
    """The map of the member at a place; filled squares are kept, empty ones removed."""
    rectangle = import_extra("matplotlib.patches", "report", "drawing figures").Rectangle
    layers = _layers(keep)
    widest, gap = max(layer.heads for layer in layers), (1 - _SQUARE) / 2
    figure = new_figure(max(_INCHES * widest + 0.9, 2.2), _INCHES * len(layers) + 0.8)
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        for head in range(layer.heads):
            is_kept = head in layer.kept
            fill, edge = (look(0).colour, look(0).colour) if is_kept else ("none", LIGHT["soft"])
            corner = (head + gap, row + gap)
            axes.add_patch(rectangle(corner, _SQUARE, _SQUARE, facecolor=fill, edgecolor=edge, linewidth=0.7))
    axes.set(xlim=(0, widest), ylim=(len(layers), 0), xlabel="head", ylabel="layer", aspect="equal")
    rows, columns = range(0, len(layers), 1 + len(layers) // 16), range(0, widest, max(1, widest // 6))
    axes.set_yticks([row + 0.5 for row in rows], [layers[row].name for row in rows])
    axes.set_xticks([head + 0.5 for head in columns], [str(head) for head in columns])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    title = f"Member chosen for {_OBJECTIVES[member]}" if member in _OBJECTIVES else f"Member {member}"
    return Plate(f"heads-{slug(run.name)}-{place}", title, _finding(layers), figure)


def _layers(keep: HeadSet) -> list[_Layer]:
    several = len(keep.towers) > 1
    return [
        _Layer(f"{tower} {layer}" if several else str(layer), total, heads)
        for tower, totals, kept in zip(keep.towers, keep.num_heads, keep.kept, strict=True)
        for layer, (total, heads) in enumerate(zip(totals, kept, strict=True))
    ]


def _finding(layers: list[_Layer]) -> str:
    counts = [len(layer.kept) for layer in layers]
    empty = [layer.name for layer in layers if not layer.kept]
    told = f"none in layer {listed(empty)}" if empty else f"{min(counts)} to {max(counts)} a layer"
    return f"Keeps {sum(counts)} of {sum(layer.heads for layer in layers)} heads, {told}."
