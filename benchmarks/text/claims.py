"""The paper's claims on text, and ours, as the ledger of docs/evidence.md has them.

Run: python benchmarks/text/claims.py     (seconds; puts the ledger into docs/evidence.md)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.agreement import diversity, one_member, scores, seeds, sweep
from evidence.ledger import Claim, difference_claim, ledger, write_ledger
from evidence.verdicts import CLAIMED, against, beyond, claimed, controls, inside, members
from text.setting import SETTING

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
    *controls({}),
    *one_member("Table 2", "+2.56"),
    Claim(
        "trained, CircAvg has a higher AUROC than Taylor",
        "Table 2",
        "+4.09",
        claimed("CircAvg minus Taylor", "auroc", 1),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg has a higher AUROC than Taylor",
        "Table 4",
        "far +5.89",
        claimed("CircAvg, no training minus Taylor, no training", "auroc", 1),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg has a higher AUROC than single",
        "Table 4",
        "far +4.62",
        claimed("CircAvg, no training minus single", "auroc", 1),
        CLAIMED,
    ),
    Claim(
        "CircAcc is more accurate than CircOOD",
        "Table 6",
        "+2.30",
        claimed("CircAcc, no training minus CircOOD, no training", "accuracy", 1),
        CLAIMED,
    ),
    Claim(
        "CircAcc has a lower AUROC than CircOOD",
        "Table 6",
        "-1.09",
        claimed("CircAcc, no training minus CircOOD, no training", "auroc", -1),
        CLAIMED,
    ),
    *sweep(SETTING.swept),
    *members(),
    *diversity(("order", "dropout", "order, dropout")),
    *seeds(),
    *inside(),
    *beyond(trunk=3),
    *scores(),
    Claim(
        "CircAvg searched on phrases of 12 words or more has a higher AUROC",
        "ours",
        "",
        claimed("CircAvg, long phrases minus CircAvg", "auroc", 1),
        CLAIMED,
    ),
    Claim(
        "… before training",
        "ours",
        "",
        claimed("CircAvg, long phrases, no training minus CircAvg, no training", "auroc", 1),
        CLAIMED,
    ),
]


def as_markdown() -> str:
    """The table of docs/evidence.md."""
    return ledger("text", CLAIMS).markdown()


def main() -> None:
    write_ledger("text", as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
