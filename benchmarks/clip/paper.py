"""The paper's Tables 3 and 24 to 28, on its nine data sets, with CLIP weights in a directory.

Run: python benchmarks/clip/paper.py --weights ViT-B-32:laion2b_s34b_b79k [--minutes 160] [--only TEXT]
With `--tables` only the tables are printed, from results files in results/clip-paper.

Weights are open_clip's NAME:TAG, fetched by open_clip, or a directory with a two-tower model, in open_clip's format or
in that of transformers.
`TORCHVISION_DATA` is where torchvision's data sets lie, `OPENOOD` where the folders of OpenOOD's unknown sets lie
(`ssb_hard`, `ninco`, `inaturalist`, `texture`, `places365`, `tin`, and `openimage_o` for choosing heads alone).
Weights and data of this size could not be had where this was written: it is tried with small sets only.

Not as in the paper: hydras whose image tower alone is pruned have circuits from ImageNet too, not from CIFAR-100 beside
it, and there is no fine-tuning on LAION, so that Tables 27 and 28 have three rows of their four. The error predictor
and the Laplace approximation are ours.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clip.judging import file, results_unit, write
from clip.methods import METHODS, Method, Networks
from clip.setting import KEPT, WRITTEN
from clip.task import Column, Sizes, Task
from evidence.summary import results_of, summary_of
from evidence.units import Units
from evidence.workers import asked, hours, is_worker, run
from hydra_ensembles.report import paper_table

FOLDER = "clip-paper"
FEWER = "hydra (circuit), 6 heads fewer"
ALL = (*METHODS, Method(FEWER, "circuit-more"))
TRAINED = ("Laplace (BayesVLM-style)", "error predictor (ViLU-style)")
PRUNED = {"hydra (circuit)": "Vision+Text", FEWER: "Vision+Text", "hydra (circuit, vision only)": "Vision"}
"""The rows of Tables 27 and 28."""
ANSWERS = ("accuracy", "brier", "nll", "ece", "aece")


def vision(name: str) -> str:
    return f"torchvision:{name}"


def openood(*names: str) -> dict[str, str]:
    return {name: f"${{OPENOOD}}/{name}" for name in names}


TASK = Task(
    columns={
        "IN-1K": Column(
            "imagenet",
            vision("ImageNet:val"),
            vision("ImageNet:train"),
            openood("ssb_hard", "ninco"),
            openood("inaturalist", "texture"),
        ),
        "C100": Column(
            "cifar100",
            vision("CIFAR100:test"),
            vision("CIFAR100:train"),
            {"cifar10": vision("CIFAR10:test"), **openood("tin")},
            {"mnist": vision("MNIST:test"), "svhn": vision("SVHN:test"), **openood("texture", "places365")},
            first_size=32,
        ),
        "C10": Column("cifar10", vision("CIFAR10:test"), vision("CIFAR10:train"), first_size=32),
        "Food": Column("food101", vision("Food101:test"), vision("Food101:train")),
        "SUN": Column("sun397", "hf:tanganke/sun397:test", "hf:tanganke/sun397:train"),
        "Pet": Column("pets", vision("OxfordIIITPet:test"), vision("OxfordIIITPet:trainval")),
        "DTD": Column("dtd", vision("DTD:test"), vision("DTD:train")),
        # These two have no splits: all rows are test rows, and no error predictor can be trained.
        "EuroSat": Column("eurosat", vision("EuroSAT:"), None),
        "Caltech": Column("caltech101", vision("Caltech101:"), None),
    },
    asked={name: (name,) for name in ("IN-1K", "C100", "C10", "Food", "SUN", "Pet", "DTD", "EuroSat", "Caltech")},
    first="IN-1K",
    train=vision("ImageNet:train"),
    known_val=vision("ImageNet:train"),
    unknown_val="${OPENOOD}/openimage_o",
    sizes=Sizes(searched=1000, calibration=1024, fitted=5000, most=50000),
    more=6,
)


def summaries(results: Mapping[tuple[str, int], Any], columns: Mapping[str, Column]) -> dict[str, dict[str, Any]]:
    """By column, all methods that have it, with the paper's words on training and pruning."""
    found: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        there = {key: result for key, result in results.items() if name in result["columns"]}
        summary = summary_of(there, name, column.groups, {})
        for method, metrics in summary["methods"].items():
            metrics["train"] = "✓" if method in TRAINED else ""
            metrics["pruning"] = PRUNED.get(method, "")
            if method == TRAINED[1]:
                metrics.pop("nll")
                metrics.pop("brier")
        ordered = [one.name for one in ALL if one.name in summary["methods"]]
        found[name] = {**summary, "methods": {method: summary["methods"][method] for method in ordered}}
    return found


def tables(found: Mapping[str, Mapping[str, Any]], first: str, second: str) -> dict[int, str]:
    """By number, the paper's tables that these columns make; `first` and `second` have unknown sets."""
    average: dict[str, Any] = {}
    for method, metrics in found[first]["methods"].items():
        by_column = [summary["methods"].get(method, {}) for summary in found.values()]
        average[method] = {**metrics}
        for metric in ANSWERS:
            average[method].pop(metric, None)
            if all(metric in one for one in by_column):  # an average over fewer sets would compare with no other
                values = [one[metric]["mean"] for one in by_column]
                average[method][metric] = {"mean": fmean(values), "std": None, "seeds": 1}
    hydras = {name: _only(summary, PRUNED) for name, summary in found.items()}
    made = {
        3: paper_table(3, {**found[first], "methods": average}),
        24: paper_table(24, found),
        25: paper_table(25, found[first]),
        26: paper_table(26, found[second]),
        27: paper_table(27, hydras),
        28: paper_table(28, {name: hydras[name] for name in (first, second)}),
    }
    return {number: table.markdown() for number, table in made.items()}


def _only(summary: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {**summary, "methods": {name: summary["methods"][name] for name in names if name in summary["methods"]}}


def main() -> None:
    options = asked(__doc__, "--weights", flags=["--tables"])
    if not options.tables:
        if options.weights is None:
            raise SystemExit("give --weights DIR, --weights NAME:TAG, or --tables")
        networks = Networks(Units(KEPT / FOLDER), TASK, WRITTEN / FOLDER / "journals", options.weights)
        wanted = [results_unit(networks, method, 0, FOLDER) for method in ALL]
        run({networks.units: [one for one in wanted if options.only in one]}, 2, options.minutes)
        if is_worker():
            return
        write(FOLDER, "hours", {"hours": round(hours(networks.units, file(FOLDER, "hours")), 2)})
    if found := results_of(str(WRITTEN / FOLDER)):
        first, second, *_ = TASK.columns
        print(*tables(summaries(found, TASK.columns), first, second).values(), sep="\n\n")


if __name__ == "__main__":
    main()
