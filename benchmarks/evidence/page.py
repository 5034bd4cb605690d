"""The README of an evidence benchmark: every table from results files."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

from evidence.methods import trunk_of
from hydra_ensembles.report import Column, Figure, Row, Table
from hydra_ensembles.report.summaries import over_seeds
from provenance import RESULTS

T = TypeVar("T")
METHODS = (
    *("single", "single+", "DE(D)", "DE(D)+", "DE-heads", "MC Dropout", "LoRA"),
    *("Packed-Ensembles", "MIMO", "BatchEnsemble", "unstructured", "Taylor", "CircAvg"),
    *("hydra (Taylor)", "hydra (circuit)", "hydra (sampled)", "hydra (joint)", "hydra (random heads)"),
)
MAIN = (
    Column("heads", "Heads", is_text=True),
    Column("accuracy", "Acc", better="higher"),
    Column("brier", "Brier", better="lower", decimals=3),
    Column("nll", "NLL", better="lower", decimals=3),
    Column("ece", "ECE", better="lower", decimals=3),
    Column("aece", "aECE", better="lower", decimals=3),
    Column("auroc", "AUROC", "OOD average", better="higher"),
    Column("fpr95", "FPR95", "OOD average", better="lower"),
    Column("aupr", "AUPR", "OOD average", better="higher"),
    Column("params", "M params", decimals=2, factor=1e-6),
    Column("mult_adds", "G mult-adds", decimals=2, factor=1e-9),
    Column("latency_ratio", "time / single"),
)


def read(setting: str, name: str) -> dict[str, Any]:
    """A results file, or nothing where there is none yet."""
    path = RESULTS / setting / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def ordered(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the table in their order, others behind them."""
    return {**summary, "methods": by_method(summary["methods"])}


def by_method(found: Mapping[str, T]) -> dict[str, T]:
    """The same in the order of the table."""
    return {name: found[name] for name in dict.fromkeys([*(n for n in METHODS if n in found), *found])}


def main_table(summary: Mapping[str, Any], title: str, averages: Mapping[str, str] | None = None) -> Table:
    """All methods with answers, unknown inputs and cost, where any has them; `averages` are more of AUROC."""
    at = [column.key for column in MAIN].index("auroc") + 1
    more = [Column(key, heading, "OOD average", better="higher") for key, heading in (averages or {}).items()]
    columns = [*MAIN[:at], *more, *MAIN[at:]]
    columns = [column for column in columns if any(column.key in found for found in summary["methods"].values())]
    rows = [Row(name, {c.key: _cell(found.get(c.key)) for c in columns}) for name, found in summary["methods"].items()]
    return Table(columns, rows, title=title, caption="Best in bold, second best underlined.")


def sets_table(summary: Mapping[str, Any], sets: Sequence[str], title: str, metric: str = "auroc") -> Table:
    """One metric on every unknown set."""
    columns = [Column(f"{metric}/{name}", name, better="higher" if metric != "fpr95" else "lower") for name in sets]
    rows = [Row(name, {c.key: _cell(found.get(c.key)) for c in columns}) for name, found in summary["methods"].items()]
    return Table(columns, rows, title=title)


def difference_table(found: Mapping[str, Any]) -> Table:
    """Paired differences in points, with 95 % intervals over test rows."""
    points = [Column("accuracy", "Acc"), Column("auroc", "AUROC", "OOD"), Column("auroc_near", "near", "OOD")]
    points += [Column("auroc_far", "far", "OOD"), Column("fpr95", "FPR95", "OOD")]
    others = [key for key in next(iter(found.values()), {}) if key.startswith("auroc_")]
    more = [key for key in others if key not in {column.key for column in points}]
    points += [Column(key, key.removeprefix("auroc_").replace("_", " "), "OOD") for key in more]
    columns = [Column(c.key, c.heading, c.group, factor=100, signed=True) for c in points]
    columns += [Column("nll", "NLL", decimals=3, signed=True), Column("ece", "ECE", decimals=3, signed=True)]
    rows = [
        Row(pair, {m: Figure(d["value"], interval=(d["low"], d["high"])) for m, d in metrics.items()})
        for pair, metrics in found.items()
    ]
    return Table(columns, rows, title="Paired differences", row_heading="", caption=DIFFERENCES)


DIFFERENCES = (
    "Points (NLL and ECE as they are): means over seeds, in brackets the middle 95 % over 1000 resamples of the test "
    "rows, the same for both."
)


def choice_table(found: Mapping[str, Any]) -> Table:
    """What the choice between variants saw: validation figures of one seed, and cost."""
    figures, most = found["figures"], float(found["figures"]["DE(D)+"]["mult_adds"])
    scores = list(dict.fromkeys(score for one in figures.values() for score in one["scores"]))
    columns = [Column("accuracy", "Acc", better="higher", factor=100), Column("nll", "NLL", decimals=3)]
    columns += [Column(score, score.replace("_", " "), "AUROC", better="higher", factor=100) for score in scores]
    columns += [Column("cost", "mult-adds / DE(D)+", decimals=3)]
    rows = []
    for method, one in figures.items():
        cells = {"accuracy": one["accuracy"], "nll": one["nll"], "cost": one["mult_adds"] / most, **one["scores"]}
        rows.append(Row(method, {key: Figure(float(value)) for key, value in cells.items()}))
    chosen = (
        f"Chosen: {found['chosen']}; best score for it: {found['score']}." if found["chosen"] else "None is chosen."
    )
    caption = f"Validation rows that no search has seen, seed 0. {chosen} The rule is in evidence/choosing.py."
    return Table(columns, rows, title="Changes of the recipe, judged on validation data", caption=caption)


def score_table(
    results: Mapping[tuple[str, int], Mapping[str, Any]],
    column: str,
    methods: Sequence[str],
    title: str = "Average OOD AUROC by score",
) -> Table:
    """The average AUROC by score, for methods that have several."""
    values: dict[str, dict[str, list[float]]] = {}
    for (method, _), result in results.items():
        if method in methods:
            for score, sets in result["columns"][column]["ood"].items():
                values.setdefault(method, {}).setdefault(score, []).append(100 * sets["average"]["auroc"])
    scores = list(dict.fromkeys(score for found in values.values() for score in found))
    columns = [Column(score, score.replace("_", " "), better="higher") for score in scores]
    rows = [
        Row(method, {score: _cell(over_seeds(found)) for score, found in values[method].items()})
        for method in methods
        if method in values
    ]
    return Table(columns, rows, title=title, across=True)


def tempered_table(summary: Mapping[str, Any]) -> Table:
    """Calibration before and after a temperature that was fitted on validation rows."""
    pairs = [("nll", "NLL"), ("ece", "ECE"), ("aece", "aECE")]
    columns = [
        Column(f"{key}{place}", heading, group, better="lower", decimals=3)
        for place, group in (("", "plain"), ("_tempered", "with a temperature"))
        for key, heading in pairs
    ]
    rows = [Row(name, {c.key: _cell(found.get(c.key)) for c in columns}) for name, found in summary["methods"].items()]
    return Table(columns, rows, title="Temperature")


def shift_table(found: Mapping[str, Mapping[str, Any]], metric: str, title: str) -> Table:
    """A metric on corrupted inputs by severity, and the mean over all (Tables 13, 14)."""
    percent = metric == "accuracy"
    severities = sorted({severity for sets in found.values() for severity in sets})
    shape: dict[str, Any] = {"better": "higher" if percent else "lower", "decimals": 2 if percent else 3}
    columns = [
        Column(f"{severity}", f"severity {severity}", factor=100 if percent else 1, **shape) for severity in severities
    ]
    columns.append(Column("mean", "mean", factor=100 if percent else 1, **shape))
    rows = []
    for method, sets in by_method(found).items():
        values = {severity: float(sets[severity][metric]) for severity in severities}
        rows.append(Row(method, {**{s: Figure(v) for s, v in values.items()}, "mean": Figure(fmean(values.values()))}))
    return Table(columns, rows, title=title)


def claims_table(summary: Mapping[str, Any], names: Sequence[str], title: str) -> Table:
    """Some rows of the claims beside some of the table."""
    columns = [c for c in MAIN if c.key != "latency_ratio"]
    columns += [Column("mutual_information", "known", "mutual information", decimals=4)]
    columns += [Column("mutual_information_ood", "unknown", "mutual information", decimals=4)]
    columns += [Column("disagreement", "known", "disagreement", decimals=3)]
    columns += [Column("disagreement_ood", "unknown", "disagreement", decimals=3)]
    rows = [
        Row(name, {c.key: _cell(summary["methods"][name].get(c.key)) for c in columns})
        for name in names
        if name in summary["methods"]
    ]
    return Table(columns, rows, title=title)


def claims_of(claims: Mapping[str, Any], more: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """By title, the rows of each claim that are there; `more` are claims of one setting."""
    names = list(claims["methods"])
    untrained = [n for n in names if n.endswith("no training")]
    behind_trunks = sorted((n for n in untrained if trunk_of(n) is not None), key=lambda n: trunk_of(n) or 0)
    wanted: dict[str, Sequence[str]] = {
        "Heads removed, nothing trained (Tables 4, 6)": ["single", *(n for n in untrained if n not in behind_trunks)],
        "Heads kept, before and after training (Figures 5, 6)": [
            n for n in names if " heads" in n and n.startswith(("CircAvg", "Taylor"))
        ],
        "Members fused and not (Table 11)": [
            *("hydra (circuit)", "hydra (circuit), not fused", "hydra (Taylor)", "hydra (Taylor), not fused")
        ],
        "Sources of diversity (Tables 8, 9)": [
            n for n in names if n.startswith("hydra (sampled)") and "members" not in n
        ],
        "Number of members (Table 10)": [
            *("single", "hydra (sampled), 2 members", "hydra (sampled)", "hydra (sampled), 5 members", "DE(D)")
        ],
        "Beyond the paper": [
            *("hydra (circuit)", "hydra (joint)"),
            *(n for n in names if n.startswith("hydra (circuit), ") and "not fused" not in n and n not in untrained),
            *("DE(D)", "DE(D)+"),
        ],
        "Behind a shared trunk, nothing trained": ["single", *behind_trunks],
        **more,
    }
    found = {title: [n for n in rows if n in claims["methods"]] for title, rows in wanted.items()}
    return {title: rows for title, rows in found.items() if len(rows) > 1}


def _cell(entry: Any) -> Any:
    if entry is None or isinstance(entry, str):
        return entry
    return Figure(float(entry["mean"]), entry.get("std"), int(entry.get("seeds", 1)))
