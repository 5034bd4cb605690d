"""The paper's claims on text, and ours, as the ledger of docs/evidence.md has them.

Run: python benchmarks/text/claims.py     (seconds; puts the ledger into docs/evidence.md)
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence.ledger import Claim, difference_claim, figure_claim, ledger, write_ledger
from evidence.verdicts import aligned, curved, heads_separate, separates, widens

CLAIMED = "compared-claims"


def against(other: str, metric: str, direction: int, **more: Any) -> Any:
    return difference_claim(f"hydra (circuit) minus {other}", metric, direction, **more)


CLAIMS = [
    Claim(
        "hydra (circuit) has a higher OOD AUROC than DE(D)",
        "Table 2",
        "+2.79",
        against("DE(D)", "auroc", 1),
        "compared",
    ),
    Claim("… near sets", "Table 17", "+9.55", against("DE(D)", "auroc_near", 1), "compared"),
    Claim("… far sets", "Table 17", "+0.09", against("DE(D)", "auroc_far", 1), "compared"),
    Claim("… and a lower FPR95", "Table 2", "-7.63", against("DE(D)", "fpr95", -1), "compared"),
    Claim("… at an accuracy within 0.5", "Table 2", "-0.45", against("DE(D)", "accuracy", 0, margin=0.5), "compared"),
    Claim("… and an NLL within 0.01", "Table 2", "0.00", against("DE(D)", "nll", 0, factor=1, margin=0.01), "compared"),
    Claim(
        "hydra (circuit) has a higher OOD AUROC than single",
        "Table 2",
        "+7.44",
        against("single", "auroc", 1),
        "compared",
    ),
    Claim(
        "DE(D) has a higher OOD AUROC than single",
        "Table 2",
        "+4.65",
        difference_claim("DE(D) minus single", "auroc", 1),
        "compared",
    ),
    Claim(
        "hydra (Taylor) has a lower OOD AUROC than DE(D)",
        "Table 2",
        "-2.96",
        difference_claim("hydra (Taylor) minus DE(D)", "auroc", -1),
        "compared",
    ),
    Claim(
        "control: hydra (circuit) within 0.5 of DE(D)+ in AUROC, or above",
        "ours",
        "",
        against("DE(D)+", "auroc", 1, margin=0.5),
        "compared",
    ),
    Claim("control: hydra (circuit) above single+ in AUROC", "ours", "", against("single+", "auroc", 1), "compared"),
    Claim(
        "control: hydra (circuit) above random heads in AUROC",
        "ours",
        "",
        against("hydra (random heads)", "auroc", 1),
        "compared",
    ),
    Claim(
        "the second training alone lifts single in AUROC",
        "ours",
        "",
        difference_claim("single+ minus single", "auroc", 1),
        "compared",
    ),
    Claim(
        "the second training alone lifts DE(D) in AUROC",
        "ours",
        "",
        difference_claim("DE(D)+ minus DE(D)", "auroc", 1),
        "compared",
    ),
    Claim(
        "trained, CircAvg has a higher AUROC than Taylor",
        "Table 2",
        "+4.09",
        difference_claim("CircAvg minus Taylor", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg has a higher AUROC than Taylor",
        "Table 4",
        "far +5.89",
        difference_claim("CircAvg, no training minus Taylor, no training", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg has a higher AUROC than single",
        "Table 4",
        "far +4.62",
        difference_claim("CircAvg, no training minus single", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "CircAcc is more accurate than CircOOD",
        "Table 6",
        "+2.30",
        difference_claim("CircAcc, no training minus CircOOD, no training", "accuracy", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "CircOOD has a higher AUROC than CircAcc",
        "Table 6",
        "+1.09",
        difference_claim("CircAcc, no training minus CircOOD, no training", "auroc", -1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "fusing MLPs moves AUROC by less than 0.5",
        "Table 11",
        "+0.03",
        difference_claim("hydra (circuit) minus hydra (circuit), not fused", "auroc", 0, CLAIMED, margin=0.5),
        CLAIMED,
    ),
    Claim(
        "other heads lift AUROC",
        "Table 8",
        "+0.71",
        difference_claim("hydra (sampled), differ in heads minus hydra (sampled), differ in none", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "another batch order alone moves AUROC by less than 0.5",
        "Table 8",
        "+0.03",
        difference_claim(
            "hydra (sampled), differ in order minus hydra (sampled), differ in none", "auroc", 0, CLAIMED, margin=0.5
        ),
        CLAIMED,
    ),
    Claim(
        "five members have a higher AUROC than three",
        "Table 10",
        "+0.04",
        difference_claim("hydra (sampled), 5 members minus hydra (sampled)", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "CircOOD's heads separate known and unknown more",
        "Table 5",
        "1.75 → 2.26, 3.03 → 3.32",
        figure_claim("separation", separates),
        "separation",
    ),
    Claim(
        "heads removed last separate more than those removed first",
        "Figure 4",
        "a picture",
        figure_claim("separation", heads_separate),
        "separation",
    ),
    Claim(
        "pruning is aligned with the gradient on noisy inputs",
        "B.1",
        "1.19, 0.37",
        figure_claim("proposition-1", aligned),
        "proposition-1",
    ),
    Claim(
        "the Hessian's diagonal is larger on noisy inputs, everywhere",
        "B.1",
        "0.45, 0.17",
        figure_claim("proposition-1", curved),
        "proposition-1",
    ),
    Claim(
        "so the loss gap to noisy inputs does not shrink",
        "Proposition 1",
        "≥ 0",
        figure_claim("proposition-1", widens),
        "proposition-1",
    ),
    Claim(
        "joint selection has a higher AUROC than three circuits",
        "ours",
        "",
        difference_claim("hydra (joint) minus hydra (circuit)", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
    Claim(
        "a shared trunk of half the blocks moves AUROC by less than 0.5",
        "ours",
        "",
        difference_claim("hydra (circuit), trunk of 3 minus hydra (circuit)", "auroc", 0, CLAIMED, margin=0.5),
        CLAIMED,
    ),
    Claim(
        "CircAvg searched on phrases of 12 words or more has a higher AUROC",
        "ours",
        "",
        difference_claim("CircAvg, long phrases minus CircAvg", "auroc", 1, CLAIMED),
        CLAIMED,
    ),
]


def as_markdown() -> str:
    """The table of docs/evidence.md."""
    return ledger("text", CLAIMS).markdown()


def main() -> None:
    write_ledger("text", as_markdown())


if __name__ == "__main__":
    main()
