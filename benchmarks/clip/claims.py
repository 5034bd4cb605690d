"""What the paper claims of zero-shot classification (Section 5.3, Table 3), beside what came out here.

Differences of one seed are those of two methods on the same model and rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hydra_ensembles.report import Column, Row, Table

HYDRA, SINGLE, TEMPERED = "hydra (circuit)", "single", "temperature scaling"
ONE, TAYLOR = "CircAvg", "Taylor (vision only)"
SEVERAL = 3
"""Seeds that a verdict needs."""
SIGNS = {"accuracy": 1, "auroc": 1, "fpr95": -1, "ece": -1, "nll": -1}
"""Which way is better."""


@dataclass(frozen=True)
class Claim:
    """A method is better than another in a metric, or within a margin of it."""

    says: str
    method: str
    other: str
    metric: str
    paper: str
    margin: float | None = None


CLAIMS = (
    Claim("hydra (circuit) has a higher OOD AUROC than single", HYDRA, SINGLE, "auroc", "+6.06"),
    Claim("… and a lower FPR95", HYDRA, SINGLE, "fpr95", "-7.15"),
    Claim("… and is more accurate", HYDRA, SINGLE, "accuracy", "+0.35"),
    Claim("… and has a lower ECE", HYDRA, SINGLE, "ece", "-5.19"),
    Claim("… lower than temperature scaling too", HYDRA, TEMPERED, "ece", "-0.54"),
    Claim("with a temperature on top its NLL is within 0.01", f"{HYDRA} + temperature", TEMPERED, "nll", "0.00", 0.01),
    Claim("it has a higher AUROC than Laplace", HYDRA, "Laplace (BayesVLM-style)", "auroc", "+4.98"),
    Claim("… and than an error predictor", HYDRA, "error predictor (ViLU-style)", "auroc", "+1.44"),
    Claim("CircAvg is more accurate than Taylor, image tower only", ONE, TAYLOR, "accuracy", "+11.16"),
    Claim("… and has a higher AUROC", ONE, TAYLOR, "auroc", "+9.44"),
    Claim("three circuits are more accurate than CircAvg", HYDRA, ONE, "accuracy", "+2.09"),
    Claim("… at an AUROC within 0.5", HYDRA, ONE, "auroc", "-0.06", 0.5),
    Claim("control (ours): AUROC above that of random heads", HYDRA, "hydra (random heads)", "auroc", ""),
    Claim("control (ours): AUROC above Taylor scores by tower", HYDRA, "Taylor (by tower)", "auroc", ""),
)


def claims_table(results: Mapping[tuple[str, int], Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    """A row a claim, a cell a column of the task: the mean difference, and what the seeds say."""
    columns = [Column("paper", "paper", is_text=True)]
    columns += [Column(key, title.partition(":")[0], is_text=True) for key, title in titles.items()]
    rows = [
        Row(claim.says, {"paper": claim.paper, **{key: cell(claim, results, key) for key in titles}})
        for claim in CLAIMS
    ]
    caption = (
        "Mean difference over seeds: accuracy, AUROC, FPR95 and ECE in points, NLL as it is. A claim holds if every "
        f"one of {SEVERAL} seeds says so, does not if every one says the opposite, and is undecided otherwise. The "
        "paper's accuracy, ECE and NLL are averages over nine data sets, its AUROC and FPR95 are ImageNet's."
    )
    return Table(columns, rows, title="The paper's claims", row_heading="Claim", caption=caption)


def cell(claim: Claim, results: Mapping[tuple[str, int], Mapping[str, Any]], column: str) -> str | None:
    """`+1.56, holds`; None where nothing can be compared."""
    ours, others = (
        {seed: value(result, column, claim.metric) for (method, seed), result in results.items() if method == name}
        for name in (claim.method, claim.other)
    )
    pairs = [(ours[seed], others[seed]) for seed in sorted(set(ours) & set(others))]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if not differences:
        return None
    decimals = 3 if claim.metric == "nll" else 2
    return f"{fmean(differences):+.{decimals}f}, {verdict(claim, differences)}"


def verdict(claim: Claim, differences: list[float]) -> str:
    """What all seeds together say."""
    if claim.margin is not None:
        agreeing = [abs(one) <= claim.margin for one in differences]
    else:
        agreeing = [SIGNS[claim.metric] * one > 0 for one in differences]
    if len(differences) < SEVERAL:
        return f"{sum(agreeing)} of {len(agreeing)} so far"
    return "holds" if all(agreeing) else "undecided" if any(agreeing) else "does not hold here"


def value(result: Mapping[str, Any], column: str, metric: str) -> float | None:
    """A metric of one results file, in points where it is a share; None where a column has none."""
    found = result["columns"].get(column, {"answers": {}, "ood": {}})
    known = {**found["ood"].get("msp", {}).get("average", {}), **found["answers"]}.get(metric)
    return known if metric == "nll" or known is None else 100 * known
