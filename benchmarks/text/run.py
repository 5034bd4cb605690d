"""The evidence on text, from nothing to results files: hours on two cores, resumable at any point.

Run: python benchmarks/text/run.py [--minutes 60] [--only hydra]     (needs the real data)
     python benchmarks/text/table.py                                 (then: the table from results files, seconds)
Writes results/text/METHOD-SEED.json and more; what is done is passed over.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence import claims
from evidence.extras import extra, honest, paired, rounding, separation
from evidence.heads import conditions, projected, separated
from evidence.judging import results_unit
from evidence.methods import ONE_SEED, SEEDS, SEEDS_OF, row
from evidence.networks import Networks
from evidence.setting import FASTER
from evidence.units import Units
from evidence.workers import asked, hours, is_worker, run
from hydra_ensembles.baselines import FormattingClassifier, FormattingDetector
from hydra_ensembles.data import open_data
from provenance import provenance, write_results
from text.setting import APART, APART_ROWS, FAR, NEAR, SETTING, TEXT, clean_and_noisy, long_phrases, shown

PAIRS = [
    (f"hydra ({kind})", other) for kind in ("circuit", "Taylor") for other in ("DE(D)", "DE(D)+", "single", "single+")
]
PAIRS += [("hydra (circuit)", "hydra (random heads)"), ("DE(D)+", "DE(D)"), ("single+", "single"), ("DE(D)", "single")]
CLAIMS = [
    ("CircAvg, no training", "Taylor, no training"),
    ("CircAvg, no training", "single"),
    ("Taylor, no training", "single"),
    ("CircAcc, no training", "CircOOD, no training"),
    ("hydra (circuit)", "hydra (circuit), not fused"),
    ("hydra (Taylor)", "hydra (Taylor), not fused"),
    ("hydra (sampled), differ in heads", "hydra (sampled), differ in none"),
    ("hydra (sampled), differ in order", "hydra (sampled), differ in none"),
    ("hydra (sampled), differ in dropout", "hydra (sampled), differ in none"),
    ("hydra (sampled)", "hydra (sampled), differ in heads"),
    ("hydra (sampled)", "hydra (sampled), 2 members"),
    ("hydra (sampled), 5 members", "hydra (sampled)"),
    ("hydra (joint)", "hydra (circuit)"),
    ("hydra (circuit), trunk of 3", "hydra (circuit)"),
    ("hydra (circuit), grouped", "hydra (circuit)"),
    ("CircAvg, long phrases", "CircAvg"),
    ("CircAvg, long phrases, no training", "CircAvg, no training"),
    ("CircAvg", "Taylor"),
    ("DE(D)", "DE-heads"),
]
PROBES = 16


def planned() -> tuple[Networks, list[str]]:
    """All units, the most wanted first."""
    networks = Networks(SETTING, Units(SETTING.kept))
    three = [method for method, seeds in SEEDS_OF.items() if seeds == SEEDS]
    rows = [(method, seed) for seed in SEEDS for method in three] + [(method, 0) for method in ONE_SEED]
    wanted = [results_unit(networks, row(networks, method, seed)) for method, seed in rows]
    wanted += [honest(networks), extra(networks, "formatting", formatting), paired(networks, PAIRS, SEEDS)]
    # Rows of the table answer in fp32, and so do what is compared with them before training and fusion.
    rough = replace(networks, setting=replace(SETTING, asked_in=FASTER))
    wanted += [rounding(networks, row(networks, "hydra (circuit)", 0))]
    for found in (
        claims.without_training(networks),
        claims.not_fused(networks),
        [claims.grouped(rough, 0)],
        claims.other_search(rough, "long phrases", known=long_phrases),
        claims.sources(rough),
        claims.member_counts(rough),
        claims.swept(rough),
        [claims.trunk(rough, 0, 3)],
    ):
        wanted += [results_unit(networks, one, "claims") for one in found]
    wanted += [paired(networks, CLAIMS, (0,), "compared-claims")]
    wanted += [separated(networks), conditions(networks, clean_and_noisy, PROBES)]
    wanted += [projected(networks, lambda m: shown(m, "sst2-validation"), {FAR[0]: lambda m: shown(m, FAR[0])})]
    shared = [claims.trunk(rough, seed, blocks) for blocks in SETTING.trunks for seed in SEEDS]
    shared += claims.trunks_without_training(rough)
    wanted += [results_unit(networks, one, "claims") for one in shared]
    return networks, wanted


def formatting() -> dict[str, Any]:
    """What length, capitals and marks alone tell: fitted on known texts, and on known and unknown validation texts."""

    def texts(file: str) -> list[Any]:
        rows = open_data(f"{TEXT}/{file}")
        return list(rows.inputs(np.arange(len(rows))))

    known, other = texts("sst2-train.parquet[:3000]"), texts("ag-news.parquet")
    unknown = {name: texts(f"{name}.parquet") for name in (*NEAR, *FAR)}
    unknown |= {name: texts(f"{name}.parquet[:{APART_ROWS}]") for name in APART}
    test = texts("sst2-validation.parquet")
    detectors: dict[str, FormattingDetector | FormattingClassifier] = {
        "formatting, known texts only": FormattingDetector.fit(known),
        "formatting, known and AG News": FormattingClassifier.fit(known, other),
    }
    return {
        "detectors": {
            name: separation(
                found.scores(test), {one: found.scores(rows) for one, rows in unknown.items()}, SETTING.groups
            )
            for name, found in detectors.items()
        }
    }


def main() -> None:
    options = asked(__doc__)
    networks, wanted = planned()
    run({networks.units: [name for name in wanted if options.only in name]}, 2, options.minutes)
    if not is_worker():
        spent = round(hours(networks.units, networks.results("hours")), 2)
        write_results(f"{SETTING.name}/hours", {"hours": spent, "provenance": provenance()})


if __name__ == "__main__":
    main()
