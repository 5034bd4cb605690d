"""The tables of the evidence on images, rebuilt from results files in seconds.

Run: python benchmarks/vision/table.py
Writes results/vision/summary.json and benchmarks/vision/README.md with its pictures.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from evidence.choosing import CONTROL_SEEDS
from evidence.methods import SEEDS, SEEDS_OF
from evidence.page import (
    choice_table,
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
from evidence.pictures import COSTS, Pictures, as_markdown, draw_all, pictures, sweeps
from evidence.summary import first_seed, results_of, shifts_of, summary_of
from hydra_ensembles.report import paper_table
from provenance import RESULTS
from vision import imagenet
from vision.architectures import ARCHITECTURES, setting_of
from vision.run import STRONGER
from vision.setting import FAR, NEAR, SETTING

NAME, README = "vision", Path(__file__).parent / "README.md"
PICTURES = README.parent / "pictures"
IMAGENET = imagenet.SETTING.name
COLUMN = "test"
WITHOUT = "auroc_without_mnist"

OPENING = """\
# Evidence on images: DeiT-Ti on CIFAR-100

How well each method tells unknown images from known ones, against what it costs. Names are explained
[below](#how-it-was-made), what the figures mean for the paper's claims in
[docs/evidence.md](../../docs/evidence.md).{missing}"""
MADE = """\
## How it was made

Everything here is made from results files by `python benchmarks/vision/table.py` (seconds). `python
benchmarks/vision/run.py` makes the results files and took {hours:.1f} hours of one core; it can be killed
at any time and goes on where it was, and passes over what is done. A second call measures with all seeds what the first
has chosen, and its control, as many random heads, with two of them; `latency.py` and `architectures.py` beside it make
the times and the last tables.

DeiT-Ti/16 (12 layers of 3 heads, 192 wide), pre-trained on ImageNet, is trained for three epochs on 35,000 images of
CIFAR-100 at 96 pixels. Members keep 30 of 36 heads (rows that say so, 24) and are trained for one more epoch as the
paper's D.2 says (SGD, last five blocks, label smoothing 0.1; but the classifier is not set to zero first), and so are
the controls: `single+` and `DE(D)+` are `single` and `DE(D)` after the same second training. `single` and `single+`
choose between two learning rates by validation NLL, once, with seed 0, and what is trained as they are takes theirs:
every pruned member has the rate that is best for the control. Members `from pre-trained` have heads that are searched
in the trained network, but start from the pre-trained one and are trained once, as `single` is; `grouped` keeps every
member's own MLPs instead of averaging them. MIMO and Packed-Ensembles choose between those of `single` and a higher
one, LoRA between higher ones; what trains all of one network (MC Dropout, BatchEnsemble) has the rate of `single`,
DE-heads one of its own. Rows without label smoothing keep the rate that was chosen with it. Taylor scores at 30 heads
are compared across layers (36 heads cannot lose six layer by layer), at 24 within each layer. Where two samples give
the same heads, a member's are drawn from the first of its ranking{drawn}. Circuits are searched on 1,000 + 1,000
validation images (CIFAR-100 and Tiny-ImageNet), so they have seen unknown images; KNN, Mahalanobis and ViM have not.
Known test images: CIFAR-100's 10,000{shared}. Unknown: near = CIFAR-10; far = textures, MNIST, Fashion-MNIST; the
average is over these four, unweighted, and once more without MNIST, which swings most between seeds. All sets are
brought to 32 pixels first.
Scores are MSP unless said. {answered} Multiply-adds are counted with full last blocks. The second training leaves the
first seven blocks as they are, so members share those first blocks in which they keep the same heads, and fusing finds
them: that is why a hydra with 30 heads may cost less than one with 24, and why cost depends on the seed. Times are
those of networks with the heads of seed 0. Behind ± stands one standard deviation over seeds, those of three that are
measured; rows without it have one seed.

The paper's Deep Ensembles on images are pre-trained three times; `DE(D)` here, as its Deep Ensembles (D) on text, is
three trainings from one pre-trained network, so the paper's +3.4 over Deep Ensembles is not quite the same question.
The budget asked for was ten hours of this machine; the processors that were there, unlike the one it was estimated on,
multiply no faster in bf16 than in fp32, and it takes longer. There is no Figure 7 here: it compares the towers of CLIP.

Baselines that are not quite their papers': Packed-Ensembles starts from slices of the pre-trained weights, in layers of
our own, as torch-uncertainty's have no place for them; MIMO has a new stem and classifier on the pre-trained blocks and
sees each batch once a step (the paper: four times), half of the images with itself; MC Dropout is a network of its own,
trained with dropout 0.1, as DeiT has none; KNN, Mahalanobis and ViM are fitted on training images as they are trained
on, half of them mirrored; `unstructured` removes as many weights as six heads have, at once, by the second-order score
of Optimal Brain Apoptosis."""
TABLES = "## Differences, other scores, other inputs"


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


def results_shown() -> dict[tuple[str, int], dict[str, Any]]:
    """Results of the first tables: the methods, and what was chosen and its control once these have their seeds."""
    claimed, chosen = results_of(f"{NAME}/claims"), read(NAME, "chosen")
    last = {"chosen": SEEDS[-1], "control": CONTROL_SEEDS[-1]}
    several = {chosen.get(key) for key, seed in last.items() if (chosen.get(key), seed) in claimed}
    return results_of(NAME) | {key: found for key, found in claimed.items() if key[0] in several}


def summaries() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The table, the claims, and the claims on ImageNet images."""
    results, latency = results_of(NAME), read(NAME, "latency").get("ratios", {})
    claimed = results_of(f"{NAME}/claims")
    first = ordered(summary_of(results_shown(), COLUMN, SETTING.groups, latency, averages=SETTING.averages))
    every = first_seed(claimed | results)
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
    drawn = [f"{method}, seed {seed}" for (method, seed), result in sorted(results.items()) if result.get("drawn")]
    shared = [says for told in read(NAME, "protocol").get("seen", {}).values() for says in told]
    parts = [OPENING.format(missing=missing(results)), shown.pop(COSTS, "")]
    parts += [main_table(first, "Known test: CIFAR-100", {WITHOUT: "AUROC without MNIST"}).markdown()]
    parts += [
        MADE.format(
            hours=spent,
            answered=ANSWERED.get(named, ""),
            drawn=f" ({'; '.join(drawn)})" if drawn else "",
            shared=f" (`results/vision/protocol.json`: {'; '.join(shared)})" if shared else "",
        ),
        TABLES,
    ]
    for name in ("compared", "compared-chosen"):
        if found := read(NAME, name):
            parts += [difference_table(found["differences"]).markdown()]
    if found := read(NAME, "chosen"):
        parts += [choice_table(found).markdown()]
    parts += [paper_table(16, first).markdown(), sets_table(first, (*NEAR, *FAR), "AUROC by unknown set").markdown()]
    parts += [score_table(results_shown(), COLUMN, list(first["methods"])).markdown(), tempered_table(first).markdown()]
    if shifts := shifts_of(NAME):
        for metric, title in (
            ("accuracy", "Corrupted images: accuracy (Table 13)"),
            ("brier", "Brier score (Table 14)"),
        ):
            parts += [shift_table(shifts, metric, title).markdown()]
    parts += [claims_table(claims, names, title).markdown() for title, names in claims_of(claims, BEYOND).items()]
    parts += shown.values()
    if found := read(NAME, "compared-claims"):
        parts += [difference_table(found["differences"]).markdown()]
    if others["methods"]:
        parts += [ON_IMAGENET]
        parts += [claims_table(others, list(others["methods"]), "Heads removed (Tables 4, 6; Figure 5)").markdown()]
        if found := read(IMAGENET, "compared-claims"):
            parts += [difference_table(found["differences"]).markdown()]
        parts += as_markdown(on_imagenet(others), PICTURES.name).values()
    if tables := architectures():
        parts += [OTHER_ARCHITECTURES, *tables]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def on_imagenet(others: Mapping[str, Any]) -> Pictures:
    """Figure 5 on ImageNet images."""
    return sweeps(others, "-imagenet", ", ImageNet images")


def missing(results: Mapping[tuple[str, int], Any]) -> str:
    """A sentence on rows of the table that are not measured yet."""
    planned = {**SEEDS_OF, **dict.fromkeys((*SETTING.more_methods, *STRONGER), (0,))}
    left = {method: [str(seed) for seed in seeds if (method, seed) not in results] for method, seeds in planned.items()}
    named = [f"{method} (seed {', '.join(seeds)})" for method, seeds in left.items() if seeds]
    return f" Not measured yet: {'; '.join(named)}." if named else ""


def architectures() -> list[str]:
    """A table for each architecture that went through the chain."""
    found = {name: results_of(setting_of(name).name) for name in ARCHITECTURES}
    return [
        main_table(ordered(summary_of(results, COLUMN, SETTING.groups, {})), name).markdown()
        for name, results in found.items()
        if results
    ]


ON_IMAGENET = """\
## ImageNet images, nothing trained

DeiT-Ti with its own 1,000 classes, images at 224 pixels in their own resolution, 24 of 36 heads kept. Known test
images: 1,000; unknown: textures (600), the first 1,000 of MNIST and of Fashion-MNIST; all of them far. Circuits see 500
other ImageNet images and 500 other textures, so textures are no kind of image that they have never seen; Taylor scores
see the same 500 ImageNet images."""
OTHER_ARCHITECTURES = """\
## Other architectures, at smoke size

DeiT-Ti's weights in torchvision's and in transformers' ViT, and in a timm network in the manner of DINOv2 (LayerScale
and four registers, which start new), each through the whole chain with the same code: 2,000 training images, two
epochs, searches on 64 + 64 images, 1,000 known and 500 unknown test images a set (`python
benchmarks/vision/architectures.py`). They show that nothing is special to one family, not how good any of them is. The
first two are the same network in two libraries, so their rows should agree but for rounding."""
BEYOND = {
    "Label smoothing (none in the second training)": [
        *("single+", "single+, no smoothing", "DE(D)+", "DE(D)+, no smoothing"),
        *(
            f"hydra ({kind}){ending}"
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
    first, claims, others = summaries()
    draw_all({**pictures(NAME, first, claims), **on_imagenet(others)}, PICTURES)
    print("wrote benchmarks/results/vision/summary.json, benchmarks/vision/README.md and its pictures")


if __name__ == "__main__":
    words(__doc__)
    main()
