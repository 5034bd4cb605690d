"""The table of the evidence on text, rebuilt from results files in seconds.

Run: python benchmarks/text/table.py
Writes results/text/summary.json and benchmarks/text/README.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.page import (
    METHODS,
    claims_of,
    claims_table,
    difference_table,
    main_table,
    ordered,
    read,
    score_table,
    sets_table,
    tempered_table,
)
from evidence.pictures import COSTS, as_markdown, draw_all, pictures
from evidence.summary import first_seed, results_of, summary_of
from hydra_ensembles.report import Column, Figure, Row, Table, paper_table
from provenance import RESULTS
from text.setting import APART, FAR, NEAR, SETTING

NAME, README = "text", Path(__file__).parent / "README.md"
PICTURES = README.parent / "pictures"
GROUPS = {"near": NEAR, "far": FAR}
FIRST, BOTH = "validation", "validation + test"
TRUNKS = [f"hydra (circuit), trunk of {blocks}" for blocks in SETTING.trunks]
"""Ours, with three seeds like the paper's methods, and so among them."""

OPENING = """\
# Evidence on text: MiniLM on SST-2

Everything here is made from results files by `python benchmarks/text/table.py` (seconds). `python
benchmarks/text/run.py` makes the results files from nothing and took {hours:.1f} hours of one core; it can be
killed at any time and goes on where it was, and passes over what is done, which results files say: networks are not
part of the repository, and are trained again where a results file is missing. What the figures mean for the paper's
claims is in [docs/evidence.md](../../docs/evidence.md).

Pre-trained MiniLM-L6 (6 layers of 12 heads, 384 wide) is trained for one epoch on SST-2 without its first 3,000 rows,
which are validation. Members keep 36 of 72 heads and are trained for one more epoch on 16,000 rows, and so are the
controls: `single+` and `DE(D)+` are `single` and `DE(D)` after the same second training. Every method chooses between
the same two learning rates (3e-5, 1e-4) by validation NLL, once, with seed 0. Circuits are searched on 512 + 512
validation rows (SST-2 and AG News), so they have seen unknown texts; KNN, Mahalanobis and ViM have not. Known test
rows are GLUE's validation set (872); the second table adds SST-2's test set. Unknown: near = Yelp, Amazon; far = 20
Newsgroups, TREC, RTE, WMT16; the average is over these six, unweighted. Scores are MSP unless said. Texts are cut at
128 tokens, and multiply-adds are counted for 128 tokens with full last blocks. The claims of one seed below the table
answer in bf16 or fp32 (each results file says which), which changes hardly anything: `results/text/precision.json`.
Networks were trained in bf16, on a processor that multiplies in it. Those behind a trunk, but for seed 0 of half the
blocks, were trained in fp32 on another, from bases of the same seeds and rates that it trained again, so what they lose
or gain beside hydra (circuit) holds what the bases differ in, too. Proposition 1 was looked at later, in a network of
the same seed and rate that another processor trained in fp32, with heads searched in it; the two are not the same to
the bit.
Times are of one run, with as many heads as a method keeps, drawn at random: its own may lie otherwise over the layers.
"""


MORE = {
    "CircAvg searched on phrases of any length and of at least 12 words": [
        *("CircAvg", "CircAvg, long phrases", "CircAvg, no training", "CircAvg, long phrases, no training")
    ],
}


def summaries() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The table with GLUE's validation set, with both test sets, and the claims."""
    results, claimed = results_of(NAME), results_of(f"{NAME}/claims")
    latency = read(NAME, "latency").get("ratios", {})
    shown = results | {one: result for one, result in claimed.items() if one[0] in TRUNKS}
    first, both = (ordered(summary_of(shown, column, GROUPS, latency)) for column in (FIRST, BOTH))
    claims = summary_of(first_seed(claimed | results), FIRST, GROUPS, {})
    return first, both, claims


def page() -> str:
    """The README."""
    results = results_of(NAME)
    first, both, claims = summaries()
    shown = as_markdown(pictures(NAME, first, claims), PICTURES.name)
    parts = [OPENING.format(hours=read(NAME, "hours").get("hours", 0.0)), shown.pop(COSTS)]
    parts += [main_table(first, "Known test: GLUE validation").markdown()]
    parts += [main_table(both, "Known test: GLUE validation and SST-2 test").markdown()]
    if found := read(NAME, "compared"):
        parts += [difference_table(found["differences"]).markdown()]
    parts += [paper_table(17, first).markdown(), sets_table(first, (*NEAR, *FAR), "AUROC by unknown set").markdown()]
    parts += [sets_table(first, APART, "AUROC on sets that are not part of the average").markdown()]
    if found := read(NAME, "formatting"):
        parts += [formatting_table(found["detectors"]).markdown()]
    parts += [score_table(results, FIRST, METHODS).markdown(), tempered_table(first).markdown()]
    parts += [claims_table(claims, names, title).markdown() for title, names in claims_of(claims, MORE).items()]
    parts += list(shown.values())
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def formatting_table(detectors: dict[str, Any]) -> Table:
    """How far length, capitals and marks alone get."""
    columns = [Column(name, name, decimals=2, factor=100) for name in (*NEAR, *FAR, "near", "far", "average")]
    rows = [
        Row(name, {c.key: Figure(sets[c.key]["auroc"]) for c in columns if c.key in sets})
        for name, sets in detectors.items()
    ]
    return Table(columns, rows, title="AUROC of formatting alone", row_heading="Detector")


def as_json() -> str:
    """The summary, by method and metric."""
    first, both, _ = summaries()
    return json.dumps({**first, "columns": {BOTH: both}}, indent=1) + "\n"


def main() -> None:
    (RESULTS / NAME / "summary.json").write_text(as_json())
    README.write_text(page())
    first, _, claims = summaries()
    draw_all(pictures(NAME, first, claims), PICTURES)
    print("wrote benchmarks/results/text/summary.json, benchmarks/text/README.md and its pictures")


if __name__ == "__main__":
    words(__doc__)
    main()
