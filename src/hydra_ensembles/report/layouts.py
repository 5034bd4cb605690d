"""The layouts of the paper's tables: which metrics stand in which columns, and in what shape."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from hydra_ensembles.evaluation.shift.names import SEVERITIES
from hydra_ensembles.report.cells import Column
from hydra_ensembles.report.shapes import (
    Layout,
    Sources,
    distances,
    methods_beside,
    methods_down,
    metrics_down,
    sets_beside,
)
from hydra_ensembles.report.summaries import Summary, SummaryError
from hydra_ensembles.report.table import Table


def paper_table(
    number: int,
    summary: Summary | Mapping[str, Summary],
    *,
    unmarked: Collection[str] = (),
    intervals: bool = False,
) -> Table:
    """One of the paper's tables from our own figures, in the paper's layout.

    Args:
        number: 1 to 28.
        summary: what `summarise` gives, or several of them by data set: blocks of rows, in Tables 24 and 27 columns.
        unmarked: methods that are never the best, such as oracles and controls.
        intervals: show 95 % intervals of what was measured once, where the summary has them.
    """
    if number not in LAYOUTS:
        raise SummaryError(f"the paper has no Table {number}; its tables are {min(LAYOUTS)} to {max(LAYOUTS)}")
    told = [summary] if "methods" in summary else [*summary.values()]
    if not told or not all(isinstance(one, Mapping) and "methods" in one for one in told):
        raise SummaryError("a table takes what summarise gives, or several of them by data set")
    layout = LAYOUTS[number]
    table = layout.shape(layout, Sources({"": summary} if "methods" in summary else summary, unmarked, intervals))
    caption = f"In the layout of the paper's Table {number} (there: {layout.of})."
    if any(column.better for column in [*table.columns, *(row.like for row in table.rows if row.like is not None)]):
        caption += " Best in bold, second best underlined."
    if intervals:
        caption += " In brackets the 95 % interval over resampled rows."
    return replace(table, title=layout.title, caption=caption)


def _in_group(group: str, *columns: Column) -> tuple[Column, ...]:
    return tuple(replace(column, group=group) for column in columns)


def _of(group: str, place: str) -> tuple[Column, ...]:
    return tuple(replace(column, key=f"{column.key}{place}", group=group) for column in SEPARATION)


def _severities(metric: Column) -> tuple[Column, ...]:
    levels = [replace(metric, key=f"{metric.key}_severity_{n}", heading=f"{metric.heading} at {n}") for n in SEVERITIES]
    return (*levels, replace(metric, key=f"{metric.key}_shifts", heading="Average"))


def _words(key: str, heading: str, group: str = "") -> Column:
    return Column(key, heading, group, is_text=True)


ACCURACY = Column("accuracy", "Acc", better="higher")
BRIER, NLL = Column("brier", "Brier", better="lower"), Column("nll", "NLL", better="lower")
# The paper's two decimals leave most models at 0.01.
ECE, AECE = (Column(key, name, better="lower", decimals=3) for key, name in (("ece", "ECE"), ("aece", "aECE")))
ECE_PERCENT, AECE_PERCENT = (
    replace(column, heading=f"{column.heading} %", decimals=2, factor=100) for column in (ECE, AECE)
)
SEPARATION = (
    Column("auroc", "AUROC", better="higher"),
    Column("fpr95", "FPR95", better="lower"),
    Column("aupr", "AUPR", better="higher"),
)
NEAR, FAR, AVERAGE = _of("Near-OOD average", "_near"), _of("Far-OOD average", "_far"), _of("OOD average", "")
ANSWERS = (ACCURACY, BRIER, NLL, ECE, AECE)
ZERO_SHOT = (ACCURACY, BRIER, NLL, ECE_PERCENT, AECE_PERCENT)
GROUPED_ANSWERS = (*_in_group("Classification", ACCURACY, BRIER, NLL), *_in_group("Calibration", ECE, AECE))
HEADS, TRAIN, PRUNING, MODEL = (_words(name.lower(), name) for name in ("Heads", "Train", "Pruning", "Model"))
VARIED = tuple(
    _words(f"varied_{key}", heading, "Varied across members")
    for key, heading in (("pruning", "Pruning"), ("seed", "Seed"), ("batch", "Batch order"), ("backprop", "Backprop."))
)
DIVERSITY = tuple(
    Column(f"{key}{place}", heading, group, better="higher", decimals=3)
    for group, place in (("Known", ""), ("Unknown", "_ood"))
    for key, heading in (("mutual_information", "MI"), ("disagreement", "DI"))
)
TIMES = {
    dtype: (Column(f"full_test_s_{dtype}", "Full test (s)", told), Column(f"batch_ms_{dtype}", "Per batch (ms)", told))
    for dtype, told in (("bf16", "BF16"), ("fp32", "FP32"))
}
SIZE = (
    Column("params", "Params (M)", "Model size", factor=1e-6),
    Column("mult_adds", "Mult-adds (G)", "Model size", factor=1e-9),
)
DISTANCES = (Column("euclidean", "Euclidean", better="higher"), Column("mahalanobis", "Mahalanobis", better="higher"))
CLASSES, NEAR_AND_FAR = "Classification and unknown inputs", "Near and far unknown inputs"

LAYOUTS: dict[int, Layout] = {
    1: Layout(CLASSES, "ImageNet-1K and CIFAR-100, ViT-B/16", (HEADS, *ANSWERS, *AVERAGE), methods_down),
    2: Layout(CLASSES, "SST-2, BERT", (HEADS, *ANSWERS, *AVERAGE), methods_down),
    3: Layout(CLASSES, "nine data sets, zero-shot, CLIP ViT-B/32", (HEADS, TRAIN, *ZERO_SHOT, *AVERAGE), methods_down),
    4: Layout(
        "Pruned without fine-tuning",
        "ImageNet-1K and CIFAR-100, ViT-B/16; SST-2, BERT",
        (MODEL, ACCURACY, ECE, *NEAR, *FAR),
        methods_down,
    ),
    5: Layout("Distances between centroids of known and unknown inputs", "CIFAR-100, ViT-B/16", DISTANCES, distances),
    6: Layout("Circuits by objective", "ImageNet-1K, ViT-B/16", (HEADS, ACCURACY, *NEAR, *FAR, *AVERAGE), methods_down),
    7: Layout("Inference cost", "ImageNet-1K, ViT-B/16", (*TIMES["bf16"], *TIMES["fp32"], *SIZE), methods_down),
    8: Layout("Sources of diversity", "ImageNet-1K, ViT-B/16", (*VARIED, *GROUPED_ANSWERS, *AVERAGE), methods_down),
    9: Layout("Diversity by its sources", "ImageNet-1K, ViT-B/16", (VARIED[0], *VARIED[2:], *DIVERSITY), methods_down),
    # Its "Float 16" times are Table 7's in bfloat16.
    10: Layout(
        "Number of members", "ImageNet-1K, ViT-B/16", (*TIMES["bf16"], *GROUPED_ANSWERS, *AVERAGE), methods_down
    ),
    11: Layout("Fused MLPs", "ImageNet-1K, ViT-B/16", (*GROUPED_ANSWERS, *AVERAGE), methods_down),
    12: Layout("Spread over seeds", "ImageNet-1K and CIFAR-100, ViT-B/16", (*ANSWERS, *AVERAGE), methods_down),
    13: Layout("Accuracy under shift, by severity", "ImageNet-C, ViT-B/16", _severities(ACCURACY), methods_down),
    14: Layout("Brier score under shift, by severity", "ImageNet-C, ViT-B/16", _severities(BRIER), methods_down),
    15: Layout(NEAR_AND_FAR, "ImageNet-1K, ViT-B/16", (HEADS, *NEAR, *FAR, *AVERAGE), methods_down),
    16: Layout(NEAR_AND_FAR, "CIFAR-100, ViT-B/16", (HEADS, *NEAR, *FAR, *AVERAGE), methods_down),
    17: Layout(NEAR_AND_FAR, "SST-2, BERT", (HEADS, *NEAR, *FAR, *AVERAGE), methods_down),
    18: Layout("Near unknown sets", "SST-2, BERT", SEPARATION, sets_beside, "near", ("yelp", "amazon")),
    # 19 and 20 are one table in two halves.
    19: Layout("Far unknown sets", "SST-2, BERT", SEPARATION, sets_beside, "far", ("newsgroups", "trec", "mnli")),
    20: Layout("Far unknown sets", "SST-2, BERT", SEPARATION, sets_beside, "far", ("rte", "wmt16")),
    21: Layout("Near unknown sets", "ImageNet-1K, ViT-B/16", SEPARATION, sets_beside, "near", ("ssb-hard", "ninco")),
    22: Layout(
        "Far unknown sets", "ImageNet-1K, ViT-B/16", SEPARATION, sets_beside, "far", ("inaturalist", "textures")
    ),
    23: Layout(
        "Far unknown sets",
        "CIFAR-100, ViT-B/16",
        SEPARATION,
        sets_beside,
        "far",
        ("mnist", "svhn", "textures", "places365"),
    ),
    24: Layout("Answers by data set", "zero-shot, CLIP ViT-B/32", (HEADS, TRAIN, *ZERO_SHOT), metrics_down),
    25: Layout(
        "Unknown sets", "ImageNet-1K, zero-shot, CLIP ViT-B/32", SEPARATION, methods_beside, sets=("ssb-hard", "ninco")
    ),
    26: Layout(
        "Unknown sets",
        "CIFAR-100, zero-shot, CLIP ViT-B/32",
        SEPARATION,
        methods_beside,
        sets=("cifar10", "tiny-imagenet"),
    ),
    27: Layout(
        "Answers by data set", "zero-shot, CLIP ViT-B/32", (PRUNING, TRAIN, ACCURACY, NLL, ECE_PERCENT), metrics_down
    ),
    28: Layout(NEAR_AND_FAR, "zero-shot, CLIP ViT-B/32", (PRUNING, TRAIN, *NEAR, *FAR, *AVERAGE), methods_down),
}
