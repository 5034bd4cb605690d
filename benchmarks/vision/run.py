"""All results of the evidence on images: one file per method and seed, finished ones passed over.

Run: python benchmarks/vision/run.py [--minutes 160] [--only TEXT]
Writes results/vision/*.json and results/vision-imagenet/*.json. Two workers with one thread each; kept networks,
rankings and answers are in benchmarks/.kept. `--only` makes what has TEXT in its name, and what that needs.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence import claims
from evidence.choosing import CIRCUIT, CONTROL, Maker, choice, chosen_rows
from evidence.extras import honest, paired, rounding
from evidence.heads import conditions, projected, separated
from evidence.judging import drawn, results_unit, shifted_unit
from evidence.methods import ONE_SEED, SEEDS, SEEDS_OF, Row, row
from evidence.networks import Networks
from evidence.units import Units
from evidence.workers import asked, hours, is_worker, run
from provenance import provenance, write_results
from vision import imagenet
from vision.setting import FAR, SETTING, clean_and_noisy, shown

PAIRS = [
    (f"hydra ({kind})", other) for kind in ("circuit", "Taylor") for other in ("DE(D)", "DE(D)+", "single", "single+")
]
PAIRS += [("hydra (circuit)", "hydra (random heads)"), ("DE(D)+", "DE(D)"), ("single+", "single"), ("DE(D)", "single")]
STRONGER = [f"hydra ({kind}), 24 heads" for kind in ("circuit", "Taylor", "random heads")]
SMOOTHED = ("single+", "DE(D)+", *(f"hydra ({kind})" for kind in ("circuit", "Taylor", "random heads")))
"""Rows of a second training, which smooths labels; once more without."""
CLAIMS = [
    ("CircAvg, no training", "Taylor, no training"),
    ("CircAvg, no training", "single"),
    ("CircAcc, no training", "CircOOD, no training"),
    ("hydra (circuit)", "hydra (circuit), not fused"),
    ("hydra (sampled), differ in heads", "hydra (sampled), differ in none"),
    ("hydra (sampled), differ in order", "hydra (sampled), differ in none"),
    ("hydra (sampled)", "hydra (sampled), 2 members"),
    ("hydra (sampled), 5 members", "hydra (sampled)"),
    ("hydra (joint)", "hydra (circuit)"),
    ("hydra (circuit), trunk of 6", "hydra (circuit)"),
    ("hydra (circuit), 24 heads", "hydra (circuit)"),
    *(("hydra (circuit), 24 heads", other) for other in ("DE(D)", "DE(D)+", "single+", STRONGER[-1])),
    *((f"{method}, no smoothing", method) for method in SMOOTHED),
    ("hydra (circuit), no smoothing", "DE(D)+, no smoothing"),
    ("hydra (circuit), 24 heads, from pre-trained, grouped", "DE(D)"),
    ("hydra (circuit), own bases, 24 heads, grouped", "DE(D)+"),
    ("CircAvg", "Taylor"),
    ("hydra (circuit)", "CircAvg"),
    ("CircAvg", "single+"),
    ("DE(D)", "DE-heads"),
]
ON_IMAGENET = [
    ("CircAvg, no training", "Taylor, no training"),
    ("CircAvg, no training", "single"),
    ("Taylor, no training", "single"),
    ("CircAvg, no training", "random heads, no training"),
    ("CircAcc, no training", "CircOOD, no training"),
]
ROUGH: dict[str, Any] = {"label_smoothing": 0.0}


def in_table(method: str) -> Maker:
    """A row of the table; its control has as many heads, drawn."""
    control = re.sub(r"\((circuit|joint)\)", f"({CONTROL})", method)
    return lambda networks, seed, heads: row(networks, control if heads == CONTROL else method, seed)


IN_TABLE = tuple(map(in_table, ("hydra (circuit)", "hydra (joint)", "hydra (circuit), 24 heads")))
VARIANTS: tuple[Maker, ...] = (
    lambda networks, seed, heads: claims.grouped(networks, seed, heads=heads),
    lambda networks, seed, heads: claims.trained_otherwise(networks, seed, "no smoothing", "rough", heads, **ROUGH),
    lambda networks, seed, heads: claims.from_pretrained(networks, seed, "average", 24, heads),
    lambda networks, seed, heads: claims.from_pretrained(networks, seed, "grouped", 24, heads),
    lambda networks, seed, heads: claims.own_bases(networks, seed, 24, "average", heads),
    lambda networks, seed, heads: claims.own_bases(networks, seed, 24, "grouped", heads),
    lambda networks, seed, heads: claims.trunk(networks, seed, 6, heads),
)
"""Changes of the paper's recipe, beside joint selection and scores; which is best is said by validation data alone.

The second training changes only the last five blocks, so members of one network share first blocks that keep all
heads, and such a hydra costs less than 0.9 of DE(D)+ with 30 of 36 heads. Members that share no block would cost more
than that with 30, so those that start from the pre-trained network, or each from a network of its own, keep 24. The
former are trained three times as long as others, and all their blocks."""
PROBES = 16
THREE_SEEDS = ["single", "single+", "DE(D)", "DE(D)+", "hydra (circuit)", "hydra (random heads)", "hydra (Taylor)"]
assert set(THREE_SEEDS) == {method for method, seeds in SEEDS_OF.items() if seeds == SEEDS}
NOT_CORRUPTED = {*STRONGER, "hydra (random heads)", "hydra (sampled)", "hydra (joint)", "DE-heads"}
"""Rows that the paper's Tables 13 and 14 do not have."""
COMPARED = {method for pair in (*PAIRS, *CLAIMS) for method in pair}


def planned() -> tuple[Networks, list[str]]:
    """All units. Results files stay and networks may not, so what a network is for comes together.

    First the rows of three seeds, seed by seed; then from the networks of seed 0 all others; then what is chosen,
    which a second run measures with all seeds and which trains most.
    """
    networks = Networks(SETTING, Units(SETTING.kept))

    def judged(one: Row, folder: str = "") -> list[str]:
        unit = results_unit(networks, one, folder)
        return [unit, drawn(one)] if not folder or one.method in COMPARED else [unit]

    def claimed(rows: Iterable[Row]) -> list[str]:
        return [unit for one in rows for unit in judged(one, "claims")]

    def rows_of(seed: int, methods: Sequence[str]) -> list[str]:
        units = []
        for one in (row(networks, method, seed) for method in methods):
            units += judged(one)
            if seed == 0 and one.method not in NOT_CORRUPTED:
                units.append(shifted_unit(networks, one))
        return units

    def trunks_of(seed: int) -> list[str]:
        return claimed(claims.trunk(networks, seed, blocks) for blocks in SETTING.trunks)

    wanted = rows_of(0, [*THREE_SEEDS, "CircAvg", "Taylor"])
    wanted += claimed([*claims.not_fused(networks, ("circuit",)), *claims.without_training(networks)])
    wanted += [honest(networks)]
    if SETTING.asked_in == "bf16":
        wanted += [rounding(networks, row(networks, "single", 0))]
    for seed in SEEDS[1:]:
        wanted += [*rows_of(seed, THREE_SEEDS), *trunks_of(seed)]
    wanted += [paired(networks, PAIRS, SEEDS)]
    wanted += rows_of(0, STRONGER)
    wanted += claimed(make(networks, 0, CIRCUIT) for make in VARIANTS)
    wanted += rows_of(0, ["hydra (joint)"])
    wanted += [choice(networks, IN_TABLE, VARIANTS)]
    wanted += claimed(
        claims.control_otherwise(networks, 0, method, "no smoothing", "plus-rough", **ROUGH)
        for method in ("single+", "DE(D)+")
    )
    wanted += claimed(
        claims.trained_otherwise(networks, 0, "no smoothing", "rough", heads, **ROUGH)
        for heads in ("Taylor", "random heads")
    )
    wanted += rows_of(0, [*ONE_SEED, *SETTING.more_methods])
    wanted += trunks_of(0)
    wanted += claimed(claims.swept(networks, in_table=(24,)))
    wanted += claimed([*claims.sources(networks, ("heads", "order", "none")), *claims.member_counts(networks)])
    wanted += [paired(networks, CLAIMS, (0,), "compared-claims")]
    wanted += [separated(networks), conditions(networks, clean_and_noisy, PROBES)]
    wanted += [projected(networks, lambda m: shown(m, "cifar100-test"), {FAR[1]: lambda m: shown(m, FAR[1])})]
    wanted += claimed(claims.trunks_without_training(networks))
    wanted += chosen_rows(networks, IN_TABLE, VARIANTS, SEEDS)
    return networks, wanted


def planned_on_imagenet() -> tuple[Networks, list[str]]:
    """The units of the claims without training."""
    networks = Networks(imagenet.SETTING, Units(imagenet.SETTING.kept))
    wanted = [results_unit(networks, row(networks, "single", 0)), honest(networks)]
    for found in (claims.without_training(networks), claims.swept(networks, trained=False)):
        wanted += [results_unit(networks, one, "claims") for one in found]
    return networks, [*wanted, paired(networks, ON_IMAGENET, (0,), "compared-claims"), separated(networks)]


def main() -> None:
    options = asked(__doc__)
    plans = [planned_on_imagenet(), planned()]
    named = {networks.units: [one for one in wanted if options.only in one] for networks, wanted in plans}
    try:
        run(named, 2, options.minutes)
    finally:
        for networks, _ in [] if is_worker() else plans:
            spent = {"hours": round(hours(networks.units, networks.results("hours")), 2), "provenance": provenance()}
            write_results(f"{networks.setting.name}/hours", spent)


if __name__ == "__main__":
    main()
