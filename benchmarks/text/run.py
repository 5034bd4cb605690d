"""The evidence on text, from nothing to results files: hours on two cores, resumable at any point.

Run: python benchmarks/text/run.py [--minutes 60] [--only hydra]     (needs the real data)
     python benchmarks/text/table.py                                 (then: the table from results files, seconds)
Writes results/text/METHOD-SEED.json and more; what is done is passed over.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from evidence.judging import results_unit
from evidence.methods import ONE_SEED, SEEDS, SEEDS_OF, row
from evidence.networks import Networks
from evidence.units import Units
from evidence.workers import argument, run
from text.setting import SETTING


def planned() -> tuple[Networks, list[str]]:
    """All units, the most wanted first."""
    networks = Networks(SETTING, Units(SETTING.kept))
    three = [method for method, seeds in SEEDS_OF.items() if seeds == SEEDS]
    rows = [(method, seed) for seed in SEEDS for method in three] + [(method, 0) for method in ONE_SEED]
    return networks, [results_unit(networks, row(networks, method, seed)) for method, seed in rows]


def main() -> None:
    networks, wanted = planned()
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    run(networks.units, [name for name in wanted if only in name], 2, argument("--minutes", None))


if __name__ == "__main__":
    main()
