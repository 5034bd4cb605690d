"""The figures of evaluations as a table for the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_ANSWERS = {
    "accuracy": "accuracy %",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE %",
    "aece": "aECE %",
    "aurc": "AURC %",
    "risk_at_80": "risk at 80 % coverage, %",
}
_PERCENT = ("accuracy", "ece", "aece", "aurc", "risk_at_80", "auroc", "fpr95", "aupr")


def figures_table(models: Mapping[str, Any]) -> "Table":
    """One column a model; percentages where that is usual, with half the 95 % interval where it was computed."""
    from rich.table import Table

    first = next(iter(models.values()))
    score = first["score"]
    table = Table(title=f"{first['rows']['id_test']:,} known rows; OOD by {score}", title_justify="left")
    table.add_column("")
    for name in models:
        table.add_column(name, justify="right")
    for metric, told in _ANSWERS.items():
        table.add_row(told, *(_cell(found, "answers", "id_test", metric) for found in models.values()))
    if "shifts" in first["figures"]["answers"]:
        table.add_row("accuracy under shift %", *(_cell(f, "answers", "shifts", "accuracy") for f in models.values()))
    part = f"ood/{score}"
    if part in first["figures"]:
        table.add_section()
        for row in first["figures"][part]:
            table.add_row(f"AUROC {row} %", *(_cell(found, part, row, "auroc") for found in models.values()))
        table.add_row("FPR95 average %", *(_cell(found, part, "average", "fpr95") for found in models.values()))
    if first["intervals"]:
        table.caption = "± half the 95 % interval over resampled rows; its ends with --json"
    return table


def _cell(found: Mapping[str, Any], part: str, row: str, metric: str) -> str:
    value = found["figures"].get(part, {}).get(row, {}).get(metric)
    if value is None:
        return ""
    low_high = found["intervals"].get(part, {}).get(row, {}).get(metric)
    scale, digits = (100, 2) if metric in _PERCENT else (1, 4)
    shown = f"{scale * value:.{digits}f}"
    return shown if low_high is None else f"{shown} ±{scale * (low_high[1] - low_high[0]) / 2:.{digits}f}"


def decisions_table(decisions: Mapping[str, Mapping[str, float]]) -> "Table":
    """What becomes of the rows of each set, in percent, where something was fitted to decide by."""
    from rich.table import Table

    columns = list(dict.fromkeys(column for shares in decisions.values() for column in shares))
    table = Table(title="decisions, % of rows", title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for name, shares in decisions.items():
        table.add_row(name, *(f"{100 * shares[column]:.2f}" if column in shares else "" for column in columns))
    return table


def differences_table(differences: Mapping[str, Any], against: str) -> "Table":
    """By how much this model differs from another on the same rows."""
    from rich.table import Table

    table = Table(title=f"difference from {against}, on the same rows", title_justify="left")
    for column in ("", "difference", "95 %", "p"):
        table.add_column(column, justify="left" if not column else "right")
    for part, sets in differences.items():
        for row, metrics in sets.items():
            for metric, d in metrics.items():
                if (part == "answers" and row == "id_test" and metric in _ANSWERS) or metric == "auroc":
                    scale = 100 if metric in _PERCENT else 1
                    between = f"{scale * d.low:+.3f} to {scale * d.high:+.3f}"
                    table.add_row(f"{metric} {row}", f"{scale * d.value:+.3f}", between, f"{d.p:.3f}")
    return table
