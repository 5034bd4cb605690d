"""Drawing: how plates look, as SVG inside the page and as PNG and PDF beside it.

On the page, text and axes have the colour of the text around them, and lines the colours of the scheme, light or dark.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra_ensembles.optional import import_extra
from hydra_ensembles.report.looks import LIGHT
from hydra_ensembles.store import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSIDE = 4
"""Lines that a legend inside the axes has room for."""


@dataclass(frozen=True, eq=False)
class Plate:
    """One figure and what it says."""

    key: str
    """Names its files and its place on the page."""
    title: str
    finding: str
    """What can be seen, in words and numbers: also the text for those who cannot see it."""
    figure: "Figure"


@contextmanager
def styled() -> Iterator[None]:
    """Inside it, plates are drawn and written."""
    matplotlib = import_extra("matplotlib", "report", "drawing figures")
    settings = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.edgecolor": LIGHT["ink"],
        "axes.labelcolor": LIGHT["ink"],
        "axes.titlecolor": LIGHT["ink"],
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "grid.color": LIGHT["rule"],
        "grid.linewidth": 0.6,
        "text.color": LIGHT["ink"],
        "xtick.color": LIGHT["ink"],
        "ytick.color": LIGHT["ink"],
        "legend.frameon": False,
        "legend.fontsize": 9,
        "legend.handlelength": 2.6,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "figure.constrained_layout.use": True,
        "svg.fonttype": "none",
        "svg.hashsalt": "hydra-ensembles",
        "pdf.fonttype": 42,
        "savefig.facecolor": LIGHT["paper"],
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float = 4.0, height: float = 3.1) -> "Figure":
    """An empty figure in inches; on a phone it shrinks to about four fifths, and letters stay readable."""
    figure: Figure = import_extra("matplotlib.figure", "report", "drawing figures").Figure(figsize=(width, height))
    return figure


def legend(figure: "Figure", axes: "Axes", loc: Any = "best", inside: int = INSIDE, title: str | None = None) -> None:
    """What the lines are: inside the axes while there are few, else below them, in more room."""
    lines, labels = axes.get_legend_handles_labels()
    if len(labels) <= inside:
        axes.legend(loc=loc, title=title)
        return
    longest = max(map(len, labels))
    columns = 3 if longest < 10 else 2 if longest < 22 else 1
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.18 * -(-len(labels) // columns))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, title=title)


def as_percent(*axes: Any) -> None:
    """Shares on these axes are written in percent."""
    ticker = import_extra("matplotlib.ticker", "report", "drawing figures")
    for axis in axes:
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def svg(plate: Plate) -> str:
    """The plate for inside a page: its ids are its own, its colours those of the scheme, its letters the page's."""
    buffer = io.StringIO()
    plate.figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = _own_ids(text.replace("xlink:href", "href"), plate.key)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{3,}", _rounded, tag[0]), text)
    text = re.sub(r"font: (?:[a-z]+ )?([\d.]+)px '[^;\"]*", r"font-size: \1px", text)
    for name, colour in LIGHT.items():
        text = text.replace(colour, "currentColor" if name == "ink" else f"var(--{name})")
    text = re.sub(r"\n\s*", "\n", text)
    _, _, inner = text.partition(">")
    width, height = (72 * inches for inches in plate.figure.get_size_inches())
    # Pixels of a screen are 3/4 of a point.
    head = (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width / 0.75:.0f}" height="{height / 0.75:.0f}" role="img" '
        f'aria-labelledby="{plate.key}-title {plate.key}-finding">'
    )
    return f"{head}<title>{escape(plate.title)}</title>{inner}"


def write_files(plate: Plate, directory: Path) -> list[Path]:
    """The plate as PNG (192 pixels an inch) and PDF, on white."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, about in (("png", {"Description": plate.finding}), ("pdf", {"Title": plate.title, "CreationDate": None})):
        path = directory / f"{plate.key}.{kind}"
        with whole(path) as draft:
            plate.figure.savefig(draft, format=kind, dpi=192, metadata=about)
        written.append(path)
    return written


def _rounded(number: re.Match[str]) -> str:
    """A hundredth of a point is finer than any screen."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _own_ids(text: str, key: str) -> str:
    """Ids that something refers to get the plate's name before them; the rest go."""
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", text)
    return re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', text)
