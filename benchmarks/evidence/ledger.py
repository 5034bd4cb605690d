"""The ledger of claims: what the paper says, what came out here, and what that allows to say.

A claim says that a difference lies above or below 0, or near it. It holds if the whole 95 % interval does and every
seed for itself, it does not hold if the whole interval and every seed lie elsewhere, and else it is undecided.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.page import read
from hydra_ensembles.report import Column, Row, Table

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "evidence.md"
HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold here", "undecided", "not measured yet"


@dataclass(frozen=True)
class Found:
    """Our side of a claim."""

    ours: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, or of ours where `where` says so."""

    says: str
    where: str
    paper: str
    look: Callable[[str], Found | None]
    """From a setting's name; None where its results are not there yet."""
    file: str
    """Of the setting (`NAME/` is a folder of it), or, with a folder before it, any."""


def difference_claim(
    pair: str, metric: str, direction: int, file: str = "compared", factor: float = 100, margin: float = 0.0
) -> Callable[[str], Found | None]:
    """A difference that is said to lie above (`direction` 1) or below (-1) 0, or within `margin` of it (0).

    With a margin, above means no more than so much below.
    """

    def look(setting: str) -> Found | None:
        found: Mapping[str, Any] | None = read(setting, file).get("differences", {}).get(pair, {}).get(metric)
        if found is None:
            return None
        value, low, high = (factor * found[key] for key in ("value", "low", "high"))
        shown = f"{value:+.2f} [{low:+.2f}, {high:+.2f}]" if factor != 1 else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
        seeds = [factor * one for one in found["by_seed"]]
        return Found(shown, verdict(min(low, *seeds), max(high, *seeds), direction, margin))

    return look


def verdict(low: float, high: float, direction: int, margin: float = 0.0) -> str:
    """What an interval allows to say of a claim.

    >>> verdict(0.2, 1.0, 1), verdict(-0.5, 0.3, 1), verdict(-2.0, -0.1, 1), verdict(-0.2, 0.3, 0, margin=0.5)
    ('holds', 'undecided', 'does not hold here', 'holds')
    """
    if direction == 0:
        inside, outside = -margin <= low and high <= margin, low > margin or high < -margin
        return HOLDS if inside else FAILS if outside else UNDECIDED
    ahead, behind = (low > -margin, high < -margin) if direction > 0 else (high < margin, low > margin)
    return HOLDS if ahead else FAILS if behind else UNDECIDED


def figure_claim(file: str, show: Callable[[Mapping[str, Any]], Found]) -> Callable[[str], Found | None]:
    """A claim whose figures stand in a results file of their own."""

    def look(setting: str) -> Found | None:
        found = read(setting, file)
        return show(found) if found else None

    return look


def ledger(setting: str, claims: Sequence[Claim]) -> Table:
    """All claims of a setting."""
    columns = [
        Column(key, heading, is_text=True)
        for key, heading in (
            ("where", "where"),
            ("paper", "paper"),
            ("ours", "here"),
            ("verdict", "verdict"),
            ("file", "results file"),
        )
    ]
    rows = []
    for claim in claims:
        found = claim.look(setting) or Found("", MISSING)
        cells = {"where": claim.where, "paper": claim.paper, "ours": found.ours or None, "verdict": found.verdict}
        file = f"{setting}/{claim.file}{'' if claim.file.endswith('/') else '.json'}"
        file = claim.file if "/" in claim.file[:-1] else file
        rows.append(Row(claim.says, {**cells, "file": file}))
    return Table(columns, rows, row_heading="claim")


def write_ledger(setting: str, table: str) -> None:
    """Put a setting's table where docs/evidence.md has it."""
    start, end = f"<!-- {setting}-ledger -->", f"<!-- /{setting}-ledger -->"
    before, rest = DOCS.read_text().split(start)
    DOCS.write_text(f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}")
    print("wrote the ledger into docs/evidence.md")
