"""The tables of the evidence on zero-shot classification, rebuilt from results files in seconds.

Run: python benchmarks/clip/table.py [FOLDER]
Writes summary.json into results/FOLDER, and for `clip` benchmarks/clip/README.md; FOLDER is `clip`, or that of a run
with `--weights`, whose tables are printed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clip.claims import claims_table
from clip.methods import METHODS
from clip.setting import SEEDS, TASK, TOY, WRITTEN
from command_line import words
from evidence.page import main_table, read, score_table, sets_table, tempered_table
from evidence.summary import results_of, summary_of
from hydra_ensembles.report import Column, Figure, Row, Table

README = (Path(TOY) if TOY else Path(__file__).parent) / "README.md"
ERRORS = "error predictor (ViLU-style)"
LEFT_OUT = {
    ERRORS: ("brier", "nll", "nll_tempered", "brier_tempered", "ece_tempered", "aece_tempered"),
    "Laplace (BayesVLM-style)": ("nll_tempered", "brier_tempered", "ece_tempered", "aece_tempered"),
}
"""As in the paper: an error predictor says nothing of other classes, and neither is put at a temperature."""
TITLES = {
    "cifar100": "CIFAR-100: supervised by its prompts",
    "cifar10": "CIFAR-10: transfer, never trained on",
    "imagenet": "ImageNet images: known to the image tower from its first training, class names new",
}

OPENING = """\
# Evidence on zero-shot classification: two towers made of DeiT-Ti and MiniLM

Everything here is made from results files by `python benchmarks/clip/table.py` (seconds). `python
benchmarks/clip/run.py` makes the results files from nothing{hours}; it can be killed at any time and goes on where it
was. `--weights DIR` does the same to a two-tower model of one's own. The table of candidates is made of what `python
benchmarks/clip/candidates.py` measures.

There are no CLIP weights here. DeiT-Ti/16 (ImageNet, 12 layers of 3 heads) and MiniLM-L6 (6 layers of 12 heads) are
joined through open_clip's custom-tower configuration with new projections to 256 features, and trained at 96 pixels for
500 steps, each of 128 images of CIFAR-100 against the prompts of all its classes and 64 images of Flickr8k with a
caption each; contrastive both ways{training}. After that nothing is trained: 11 of 108 heads go (the
paper: 24 of 240), chosen once a model on 1,000 + 1,000 validation images of CIFAR-100 and Tiny-ImageNet, and the same
heads are asked about all columns. Where the image tower alone is pruned it loses as many, 11 of its 36: nearly a third,
where the paper's 24 of 144 are a sixth. Taylor takes them wherever they count least; the paper takes two of each layer,
which 11 heads of 12 layers cannot be.

The control: as many heads of both towers, drawn at random.

One prompt, "a photo of a {{}}.". A temperature comes from CIFAR-100's validation rows for all columns. The Laplace
approximation takes its curvature from 1,024 training images of CIFAR-100, as Taylor scores do, and its prior from
validation rows. The error predictor is trained for each column, on validation rows of CIFAR-100, on the first 1,000
rows of CIFAR-10's test set, which are no test rows then, and on 500 validation images of ImageNet. Circuits have seen
unknown images, the other methods have not.

Unknown images: for CIFAR-100 near = CIFAR-10, far = textures, MNIST, Fashion-MNIST, as in the evidence on images; for
the other columns textures, MNIST, Fashion-MNIST, for ImageNet's 1,000 images 1,000 of each at most. For CIFAR all sets
are brought to 32 pixels first. The average is over sets, unweighted; scores are MSP unless said. Parameters of a hydra
are without the text tower, whose class embeddings it keeps instead. What this model can and cannot show is in
[docs/zero-shot.md](../../docs/zero-shot.md).
"""


def summaries(folder: str) -> dict[str, dict[str, Any]]:
    """By column, the methods in their order, without what a method does not say."""
    results = results_in(folder)
    check_one_model_a_seed(results)
    found = {}
    for column, about in TASK.columns.items():
        summary = summary_of(results, column, about.groups, {})
        methods = {one.name: summary["methods"][one.name] for one in METHODS if one.name in summary["methods"]}
        found[column] = {
            **summary,
            "methods": {
                name: {metric: value for metric, value in metrics.items() if metric not in LEFT_OUT.get(name, ())}
                for name, metrics in methods.items()
            },
        }
    return found


def results_in(folder: str) -> dict[tuple[str, int], dict[str, Any]]:
    """By method and seed; a seed that lacks a row waits, so that all methods are those of the same models.

    Where no seed is whole, as of one's own weights, everything is taken.
    """
    found = results_of(str(WRITTEN / folder))
    whole = {seed for _, seed in found if all((one.name, seed) in found for one in METHODS)}
    return {(method, seed): result for (method, seed), result in found.items() if not whole or seed in whole}


def check_one_model_a_seed(results: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """Trained again on another processor, a model is another one; its rows cannot stand beside those of the first."""
    first: dict[str, tuple[str, str]] = {}
    for (method, seed), result in results.items():
        for unit, said in result["networks"].items():
            other, weights = first.setdefault(unit, (f"{method}, seed {seed}", said["weights"]))
            if said["weights"] != weights:
                raise SystemExit(
                    f"'{other}' and '{method}, seed {seed}' come from different {unit}; "
                    "delete the results files of one of them and run benchmarks/clip/run.py"
                )


def as_json(folder: str = "clip") -> str:
    """`{"methods": {name: {column: {metric: {"mean", "std", "seeds"}}}}}`."""
    found = summaries(folder)
    names = found["cifar100"]["methods"]
    methods = {
        name: {
            column: {metric: value for metric, value in summary["methods"][name].items() if metric != "heads"}
            for column, summary in found.items()
        }
        for name in names
    }
    return json.dumps({"methods": methods, "heads": {name: names[name]["heads"] for name in names}}, indent=1) + "\n"


def tables(folder: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Every table, as Markdown."""
    results = results_in(folder)
    parts = [claims_table(results, TITLES).markdown()]
    for column, summary in found.items():
        sets = list(TASK.columns[column].unknown)
        parts += [main_table(summary, TITLES[column]).markdown()]
        parts += [sets_table(summary, sets, f"{column}: AUROC by unknown set").markdown()]
        scored = [name for name in summary["methods"] if name not in LEFT_OUT]
        parts += [score_table(results, column, scored, f"{column}: average OOD AUROC by score").markdown()]
    parts += [tempered_table(found["cifar10"]).markdown().replace("Temperature", "cifar10: temperature", 1)]
    parts += [removed_table(folder).markdown()]
    if scores := read(str(WRITTEN / folder), "taylor-map"):
        parts += [layer_table(scores["layers"]).markdown()]
    if measured := read(str(WRITTEN / folder), "candidates"):
        parts += [candidates_table(measured).markdown()]
    return parts


def removed_table(folder: str) -> Table:
    """Where heads go, by member; means over seeds."""
    columns = [Column(f"{tower} {m}", tower, f"member {m}", decimals=1) for m in (1, 2, 3) for tower in TOWERS]
    by_method: dict[str, dict[str, list[float]]] = {}
    for (method, _), result in results_in(folder).items():
        for m, counts in enumerate(result["removed"], start=1):
            for tower in TOWERS:
                by_method.setdefault(method, {}).setdefault(f"{tower} {m}", []).append(counts[tower])
    rows = [
        Row(one.name, {key: Figure(fmean(values)) for key, values in by_method[one.name].items()})
        for one in METHODS
        if one.name in by_method and not one.tempered
    ]
    return Table(columns, rows, title="Heads removed", caption="Members in the order avg, acc, ood.")


TOWERS = ("vision", "text")


def layer_table(layers: dict[str, list[list[float]]]) -> Table:
    """Figure 7: the towers' Taylor scores are of different sizes."""
    deepest = max(len(rows) for rows in layers.values())
    columns = [Column(str(layer), f"layer {layer}", decimals=2, factor=1e6) for layer in range(deepest)]
    rows = [
        Row(tower, {str(layer): Figure(fmean(scores)) for layer, scores in enumerate(layers[tower])})
        for tower in TOWERS
    ]
    title = "Taylor scores by layer, in millionths (Figure 7)"
    return Table(columns, rows, title=title, row_heading="Tower", caption="Means over heads, seed 0.")


def candidates_table(measured: dict[str, Any]) -> Table:
    """A head of the text tower beside one of the image tower, tried in a search."""
    columns = [
        Column("vision_s", "image tower", "seconds", decimals=3),
        Column("text_s", "text tower", "seconds", decimals=3),
        Column("share", "text / image", decimals=1, factor=100, unit=" %"),
    ]
    rows = [
        Row(f"layer {layer}", {column.key: Figure(found[column.key]) for column in columns})
        for layer, found in measured["layers"].items()
    ]
    caption = (
        f"ViT-B/32 shapes, {measured['images']} images, {measured['classes']} classes with one prompt, one thread. "
        "In the last layer both towers compute one token an input. Of every candidate "
        f"{measured['join_s']:.3f} s are the meeting of the towers, in batches of {measured['batch']}."
    )
    return Table(columns, rows, title="What a candidate costs", row_heading="Head in", caption=caption)


def training_time(folder: str) -> str:
    """With how many seeds, and how long the trainings took, each on one core."""
    minutes = {
        unit: about["training_seconds"] / 60
        for result in results_in(folder).values()
        for unit, about in result["networks"].items()
    }
    if not minutes:
        return ""
    least, most = min(minutes.values()), max(minutes.values())
    took = f"{least:.0f}" if len(minutes) == 1 else f"{least:.0f} to {most:.0f}"
    seeds = f"{len(minutes)} seeds" if len(minutes) == len(SEEDS) else f"{len(minutes)} of {len(SEEDS)} seeds so far"
    return f", with {seeds}, in {took} minutes on one thread each, alone or beside other work"


def page() -> str:
    """The README beside this script."""
    spent = read(str(WRITTEN / "clip"), "hours").get("hours")
    hours = f" and took {spent:.1f} hours of one core" if spent is not None else ""
    said = OPENING.format(hours=hours, training=training_time("clip")).split("\n\n")
    opening = "\n\n".join(fill(part, 120, break_long_words=False, break_on_hyphens=False) for part in said)
    return "\n\n".join([opening, *tables("clip", summaries("clip"))]) + "\n"


def main() -> None:
    folder = (words(__doc__, 1) or ["clip"])[0]
    found = summaries(folder)
    if not found["cifar100"]["methods"]:
        raise SystemExit(f"results/{folder} has no results yet; run benchmarks/clip/run.py first")
    (WRITTEN / folder / "summary.json").write_text(as_json(folder))
    if folder == "clip":
        README.write_text(page())
        print(f"wrote results/{folder}/summary.json and README.md")
    else:
        print(*tables(folder, found), sep="\n\n")


if __name__ == "__main__":
    main()
