"""The tables of the evidence on images, rebuilt from results files in seconds.

Run: python benchmarks/vision/table.py
Writes results/vision/summary.json and benchmarks/vision/README.md with its pictures.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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
    shift_table,
    tempered_table,
)
from evidence.pictures import COSTS, as_markdown, draw_all, pictures
from evidence.summary import first_seed, results_of, shifts_of, summary_of
from hydra_ensembles.report import paper_table
from provenance import RESULTS
from vision import imagenet
from vision.setting import FAR, NEAR, SETTING

NAME, README = "vision", Path(__file__).parent / "README.md"
PICTURES = README.parent / "pictures"
IMAGENET = imagenet.SETTING.name
COLUMN = "test"
WITHOUT = "auroc_without_mnist"

OPENING = """\
# Evidence on images: DeiT-Ti on CIFAR-100

Everything here is made from results files by `python benchmarks/vision/table.py` (seconds). `python
benchmarks/vision/run.py` makes the results files from nothing and takes {hours:.1f} hours of one core so far; it can
be killed at any time and goes on where it was, and passes over what is done. What the figures mean for the paper's
claims is in [docs/evidence.md](../../docs/evidence.md).

DeiT-Ti/16 (12 layers of 3 heads, 192 wide), pre-trained on ImageNet, is trained for three epochs on 35,000 images of
CIFAR-100 at 96 pixels. Members keep 30 of 36 heads (rows that say so, 24) and are trained for one more epoch as the
paper's D.2 says (SGD, last five blocks, label smoothing 0.1; but the classifier is not set to zero first), and so are
the controls: `single+` and `DE(D)+` are `single` and `DE(D)` after the same second training. `single` and `single+`
choose between two learning rates by validation NLL, once, with seed 0, and what is trained as they are takes theirs:
every pruned member has the rate that is best for the control. LoRA, MIMO and Packed-Ensembles choose between higher
ones; BatchEnsemble and DE-heads have one. Circuits are searched on 1,000 + 1,000 validation images (CIFAR-100 and
Tiny-ImageNet), so they have seen unknown images; KNN, Mahalanobis and ViM have not. Known test images: CIFAR-100's
10,000. Unknown: near = CIFAR-10; far = textures, MNIST, Fashion-MNIST; the average is over these four, unweighted, and
once more without MNIST, which swings most between seeds. All sets are brought to 32 pixels first. Scores are MSP unless
said. {answered} Multiply-adds are counted with full last blocks.

Baselines that are not quite their papers': Packed-Ensembles starts from slices of the pre-trained weights, in layers of
our own, as torch-uncertainty's have no place for them; MIMO has a
new stem and classifier on the pre-trained blocks and sees each batch once a step (the paper: four times); MC Dropout
is a network of its own, trained with dropout 0.1, as DeiT has none; `unstructured` removes as many weights as six
heads have, at once, by the second-order score of Optimal Brain Apoptosis.
"""


ANSWERED = {
    "fp32": "Networks were trained and answer in fp32.",
    "bf16": """\
Networks were trained in bf16 and answer under bf16 autocast with classifiers in fp32; what the latter changes is in
`results/vision/precision.json`.""",
    "bf16, fp32": """\
Networks were trained, and answer, in bf16 (classifiers in fp32) where a processor multiplies in it, else in fp32; each
results file says in which. What the difference makes in answers is in `results/vision/precision.json`.""",
}
"""By the precisions that results files name."""


def summaries() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The table, the claims, and the claims on ImageNet images."""
    results, latency = results_of(NAME), read(NAME, "latency").get("ratios", {})
    first = ordered(summary_of(results, COLUMN, SETTING.groups, latency, averages=SETTING.averages))
    every = first_seed(results_of(f"{NAME}/claims") | results)
    claims = summary_of(every, COLUMN, SETTING.groups, {}, averages=SETTING.averages)
    on_imagenet = results_of(IMAGENET) | results_of(f"{IMAGENET}/claims")
    others = summary_of(on_imagenet, COLUMN, imagenet.SETTING.groups, {}, averages=imagenet.SETTING.averages)
    return first, claims, others


def page() -> str:
    """The README."""
    results = results_of(NAME)
    first, claims, others = summaries()
    shown = as_markdown(pictures(NAME, first, claims), PICTURES.name)
    spent = sum(read(name, "hours").get("hours", 0.0) for name in (NAME, IMAGENET))
    named = ", ".join(sorted({one for result in results.values() for one in result["asked_in"]}))
    parts = [OPENING.format(hours=spent, answered=ANSWERED.get(named, "")), shown.pop(COSTS, "")]
    parts += [main_table(first, "Known test: CIFAR-100", {WITHOUT: "AUROC without MNIST"}).markdown()]
    if found := read(NAME, "compared"):
        parts += [difference_table(found["differences"]).markdown()]
    parts += [paper_table(16, first).markdown(), sets_table(first, (*NEAR, *FAR), "AUROC by unknown set").markdown()]
    parts += [score_table(results, COLUMN, METHODS).markdown(), tempered_table(first).markdown()]
    if shifts := shifts_of(NAME):
        for metric, title in (
            ("accuracy", "Corrupted images: accuracy (Table 13)"),
            ("brier", "Brier score (Table 14)"),
        ):
            parts += [shift_table(shifts, metric, title).markdown()]
    parts += [claims_table(claims, names, title).markdown() for title, names in claims_of(claims, BEYOND).items()]
    if others["methods"]:
        parts += ["## ImageNet images, nothing trained"]
        parts += [claims_table(others, list(others["methods"]), "Heads removed (Tables 4, 6; Figure 5)").markdown()]
        if found := read(IMAGENET, "compared-claims"):
            parts += [difference_table(found["differences"]).markdown()]
    return "\n\n".join(part for part in [*parts, *shown.values()] if part.strip()) + "\n"


BEYOND = {
    "Label smoothing (none in the second training)": [
        *("single+", "single+, no smoothing", "DE(D)+", "DE(D)+, no smoothing"),
        *(
            f"hydra ({kind}), 24 heads{ending}"
            for kind in ("circuit", "Taylor", "random heads")
            for ending in ("", ", no smoothing")
        ),
    ],
}


def as_json() -> str:
    """The summary, by method and metric."""
    return json.dumps(summaries()[0], indent=1) + "\n"


def main() -> None:
    (RESULTS / NAME / "summary.json").write_text(as_json())
    README.write_text(page())
    first, claims, _ = summaries()
    draw_all(pictures(NAME, first, claims), PICTURES)
    print("wrote benchmarks/results/vision/summary.json, benchmarks/vision/README.md and its pictures")


if __name__ == "__main__":
    main()
