"""All results of the evidence on zero-shot classification: one file per method and seed, finished ones passed over.

Run: python benchmarks/clip/run.py [--minutes 160] [--only TEXT] [--weights DIR | --weights NAME:TAG]
Writes results/clip/*.json. Two workers with one thread each; models, rankings and answers are kept in benchmarks/.kept.
`--only` makes what has TEXT in its name, and what that needs (`--only models` trains and no more).

With `--weights DIR` nothing is trained: the same is done to a two-tower model in DIR, in open_clip's format or in that
of transformers, or to open_clip's NAME with its pre-trained weights TAG, with one seed; results are in
results/clip-DIR-HASH, where HASH is that of the files in DIR, or in results/clip-NAME-TAG.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clip.judging import file, results_unit, write
from clip.methods import METHODS, Networks
from clip.setting import KEPT, SEEDS, TASK, TOY, WRITTEN
from clip.task import Model
from evidence.units import Units
from evidence.workers import asked, hours, is_worker, run


def planned(weights: str | None) -> tuple[Networks, list[str], str]:
    """All units, the most wanted first, and the folder of the results."""
    folder = "clip" if weights is None else f"clip-{Model.at(weights).name}"
    networks = Networks(Units(KEPT / folder), TASK, WRITTEN / folder / "journals", weights)
    rows = {
        seed: [results_unit(networks, method, seed, folder) for method in METHODS]
        for seed in (SEEDS if weights is None else (0,))
    }
    scores = networks.scores_by_layer(0)

    def figure_7(_: Path) -> None:
        write(folder, "taylor-map", json.loads((networks.units.directory(scores) / "map.json").read_text()))

    drawn = networks.units.add("extras/taylor-map", figure_7, (scores,), leaves=file(folder, "taylor-map"))
    wanted = [*(row for some in rows.values() for row in some), drawn]
    # Models come before the rows that need them; they are named here for `--only models`.
    for seed, some in rows.items():
        wanted += [] if all(networks.units.is_done(row) for row in some) else networks.trained(seed)
    return networks, wanted, folder


def main() -> None:
    options = asked(__doc__, "--weights")
    networks, wanted, folder = planned(options.weights)
    run({networks.units: [one for one in wanted if options.only in one]}, 1 if TOY else 2, options.minutes)
    if not is_worker():
        write(folder, "hours", {"hours": round(hours(networks.units, file(folder, "hours")), 2)})


if __name__ == "__main__":
    main()
