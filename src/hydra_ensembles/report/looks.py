"""Looks: the colours of the page, light and dark, and how one series is told from another, with and without colour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hydra_ensembles.report.runs import Series

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "panel": "#f4f6f8",
    "ink": "#1b1f24",
    "soft": "#4c5560",
    "rule": "#c9d0d8",
    "link": "#0a58a8",
    "good": "#0b6b3a",
    "bad": "#a8260c",
    "line-1": "#0060a9",
    "line-2": "#b34701",
    "line-3": "#00734f",
    "line-4": "#a1286b",
    "line-5": "#5b4bb6",
    "line-6": "#7a5c02",
    "line-7": "#007281",
    "line-8": "#5a6068",
}
"""Colours by what they are for. Lines follow Okabe and Ito, darkened until they stand out on white."""
DARK: Mapping[str, str] = {
    "paper": "#14171c",
    "panel": "#1e232b",
    "ink": "#e8ebef",
    "soft": "#b4bcc6",
    "rule": "#464f5b",
    "link": "#82bdff",
    "good": "#5fd79b",
    "bad": "#ff9d87",
    "line-1": "#6cb6ff",
    "line-2": "#ffa657",
    "line-3": "#4fd1a0",
    "line-4": "#f58fc3",
    "line-5": "#b9a7ff",
    "line-6": "#e3c23c",
    "line-7": "#56d4e4",
    "line-8": "#aab3bd",
}
DASHES = ((), (5, 2), (5, 2, 1, 2), (3, 1, 1, 1, 1, 1), (8, 2, 2, 2), (8, 2), (2, 1), (1, 1.2))
"""Lengths of strokes and gaps in line widths; none for a whole line."""
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Look:
    """How one series is drawn everywhere: told apart without colour too."""

    colour: str
    strokes: tuple[float, ...]
    marker: str
    variable: str
    """The colour's name on the page."""

    @property
    def dashes(self) -> Any:
        """As matplotlib has them."""
        return (0, self.strokes) if self.strokes else "-"

    @property
    def pattern(self) -> str:
        """As SVG has them, for a line 3 wide."""
        return " ".join(f"{3 * length:g}" for length in self.strokes)


def look(place: int) -> Look:
    """The look of the series at a place."""
    at = place % len(MARKERS)
    name = f"line-{at + 1}"
    return Look(LIGHT[name], DASHES[at], MARKERS[at], name)


Looks: TypeAlias = Mapping[Series, Look]
"""By series, those that figures show."""


def looks_of(series: Sequence[Series]) -> dict[Series, Look]:
    """A look for each series; of one run, the subject comes first and the base is grey."""
    if len({one.run.name for one in series}) > 1:
        return {one: look(place) for place, one in enumerate(series)}
    run = series[0].run
    others = iter(range(1, 7))
    places = {run.subject: 0, run.base: 7}
    return {one: look(places[one.model] if one.model in places else next(others, 6)) for one in series}
