"""The paper's claims on images, and ours, as the ledger of docs/evidence.md has them.

Run: python benchmarks/vision/claims.py     (seconds; puts the ledger into docs/evidence.md)
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.agreement import control_of_chosen, diversity, scores, seeds, sweep
from evidence.ledger import FAILS, HOLDS, Claim, Found, difference_claim, ledger, write_ledger
from evidence.methods import SEEDS_OF
from evidence.summary import shifts_of
from evidence.verdicts import CLAIMED, against, beyond, cheap, chosen, claimed, controls, inside, members, one_member
from vision import imagenet
from vision.run import NOT_CORRUPTED
from vision.setting import SETTING

CORRUPTED = {*SEEDS_OF, *SETTING.more_methods} - NOT_CORRUPTED
IMAGENET = imagenet.SETTING.name
WITHOUT = "auroc_without_mnist"
AVERAGES = {WITHOUT: "without MNIST", "auroc_energy": "told by energy instead of MSP"}


def auroc(column: Mapping[str, Any], score: str = "msp") -> float:
    return float(column["ood"][score]["average"]["auroc"])


def auroc_without_mnist(column: Mapping[str, Any]) -> float:
    return fmean(column["ood"]["msp"][name]["auroc"] for name in SETTING.averages[WITHOUT])


ABOVE_CONTROL = {
    "goal: it is above its control, as many random heads, in AUROC": auroc,
    "… without MNIST": auroc_without_mnist,
    "… told by energy instead of MSP": lambda column: auroc(column, "energy"),
}


def on_imagenet(pair: str, metric: str, direction: int) -> Callable[[str], Found | None]:
    look = difference_claim(pair, metric, direction, CLAIMED)
    return lambda setting: look(IMAGENET)


def near_best_brier(severity: int, within: float = 0.01) -> Callable[[str], Found | None]:
    """Table 14: is hydra (Taylor) so near the best Brier score at a severity?"""

    def look(setting: str) -> Found | None:
        found = {name: float(sets[str(severity)]["brier"]) for name, sets in shifts_of(setting).items()}
        if any(method not in found for method in CORRUPTED):
            return None
        best = min(found, key=lambda name: found[name])
        ours = found["hydra (Taylor)"]
        return Found(f"{ours:.4f}, best {found[best]:.4f} ({best})", HOLDS if ours - found[best] <= within else FAILS)

    return look


def stronger() -> list[Claim]:
    """What the goal asks, of the hydra with 24 heads and one seed."""
    asked = {
        "hydra (circuit), 24 heads, within 0.5 of DE(D)+ in AUROC, or above": ("DE(D)+", 0.5),
        "… above single+": ("single+", 0.0),
        "… above 24 random heads": ("hydra (random heads), 24 heads", 0.0),
    }
    found = []
    for says, (other, margin) in asked.items():
        for metric, ending in (("auroc", ""), (WITHOUT, ", without MNIST")):
            look = claimed(f"hydra (circuit), 24 heads minus {other}", metric, 1, margin=margin)
            found.append(Claim(f"{says}{ending}", "ours", "", look, CLAIMED))
    says, method = "… at no more than 0.9 of the multiply-adds of DE(D)+, with seed 0", "hydra (circuit), 24 heads"
    found.append(Claim(says, "ours", "", lambda setting: cheap(setting, method, seeds=(0,)), "summary"))
    return found


CLAIMS = [
    Claim(
        "hydra (circuit) has a higher OOD AUROC than DE(D)",
        "Table 1",
        "+3.35",
        against("DE(D)", "auroc", 1),
        "compared",
    ),
    Claim("… without MNIST", "ours", "", against("DE(D)", WITHOUT, 1), "compared"),
    Claim("… near (CIFAR-10)", "Table 16", "+0.74", against("DE(D)", "auroc_near", 1), "compared"),
    Claim("… far", "Table 16", "+4.01", against("DE(D)", "auroc_far", 1), "compared"),
    Claim("… and a lower FPR95", "Table 1", "-2.23", against("DE(D)", "fpr95", -1), "compared"),
    Claim(
        "… at an accuracy within 1.5, or above",
        "Table 1",
        "-1.41",
        against("DE(D)", "accuracy", 1, margin=1.5),
        "compared",
    ),
    Claim(
        "hydra (circuit) has a higher OOD AUROC than single",
        "Table 1",
        "+3.97",
        against("single", "auroc", 1),
        "compared",
    ),
    Claim(
        "hydra (Taylor) has a higher OOD AUROC than DE(D)",
        "Table 1",
        "+2.81",
        difference_claim("hydra (Taylor) minus DE(D)", "auroc", 1),
        "compared",
    ),
    *controls(AVERAGES),
    *chosen(AVERAGES),
    *control_of_chosen(ABOVE_CONTROL),
    *one_member("Table 1", "-0.34"),
    Claim(
        "hydra (Taylor) within 0.01 of the best Brier, severity 4",
        "Table 14",
        "0.64, best 0.64",
        near_best_brier(4),
        "vision/shift",
    ),
    Claim("… severity 5", "Table 14", "0.76, best 0.76", near_best_brier(5), "vision/shift"),
    Claim(
        "trained, CircAvg has a higher AUROC than Taylor",
        "Table 1",
        "+0.98",
        claimed("CircAvg minus Taylor", "auroc", 1),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg is more accurate than Taylor",
        "Table 4",
        "+4.63",
        claimed("CircAvg, no training minus Taylor, no training", "accuracy", 1),
        CLAIMED,
    ),
    Claim(
        "untrained, CircAvg has a higher far AUROC than single",
        "Table 4",
        "+2.23",
        claimed("CircAvg, no training minus single", "auroc_far", 1),
        CLAIMED,
    ),
    Claim(
        "ImageNet, untrained: CircAvg is more accurate than Taylor",
        "Table 4",
        "+7.15",
        on_imagenet("CircAvg, no training minus Taylor, no training", "accuracy", 1),
        f"{IMAGENET}/{CLAIMED}.json",
    ),
    Claim(
        "ImageNet, untrained: CircAvg has a higher far AUROC than Taylor",
        "Table 4",
        "+3.94",
        on_imagenet("CircAvg, no training minus Taylor, no training", "auroc", 1),
        f"{IMAGENET}/{CLAIMED}.json",
    ),
    Claim(
        "ImageNet, untrained: CircAcc is more accurate than CircOOD",
        "Table 6",
        "+2.30",
        on_imagenet("CircAcc, no training minus CircOOD, no training", "accuracy", 1),
        f"{IMAGENET}/{CLAIMED}.json",
    ),
    Claim(
        "ImageNet, untrained: CircAcc has a lower AUROC than CircOOD",
        "Table 6",
        "-1.09",
        on_imagenet("CircAcc, no training minus CircOOD, no training", "auroc", -1),
        f"{IMAGENET}/{CLAIMED}.json",
    ),
    *sweep(SETTING.swept),
    *members(),
    *diversity(("order",)),
    *seeds(),
    *inside(),
    *beyond(trunk=6),
    *scores(),
    Claim(
        "label smoothing in the second training lifts hydra (circuit) in AUROC",
        "ours",
        "",
        claimed("hydra (circuit), no smoothing minus hydra (circuit)", "auroc", -1),
        CLAIMED,
    ),
    Claim("… single+", "ours", "", claimed("single+, no smoothing minus single+", "auroc", -1), CLAIMED),
    Claim("… DE(D)+", "ours", "", claimed("DE(D)+, no smoothing minus DE(D)+", "auroc", -1), CLAIMED),
    *stronger(),
]


def as_markdown() -> str:
    """The table of docs/evidence.md."""
    return ledger("vision", CLAIMS).markdown()


def main() -> None:
    write_ledger("vision", as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
