"""The whole chain on real data: MiniLM on reduced SST-2, three circuits, three members, one hydra, saved and reloaded.

Run: python benchmarks/chain.py [DIRECTORY]     (minutes on 2 cores; needs the real data)
Writes results/chain.json. Everything in DIRECTORY is resumable: a killed run goes on where it was.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from command_line import words
from hydra_ensembles import (
    HeadRanking,
    HeadSet,
    Hydra,
    Member,
    circuit_ranking,
    fuse,
    load_model,
    prune,
    select_members,
)
from hydra_ensembles.data import Batches, batches_for, open_data
from hydra_ensembles.heads import own_logits
from hydra_ensembles.members import RECIPES, finetune, finetune_members
from hydra_ensembles.uncertainty import accuracy, auroc, ensemble_log_probs, log_confidence
from provenance import provenance, write_results
from real_text import KEPT, MAX_TOKENS, REFERENCE, TEXT

T = TypeVar("T")
OBJECTIVES, KEEP, THREADS = ("acc", "ood", "avg"), 36, 2
SIZES = {"train": 4000, "search": 64, "tune": 1000, "test": 872, "ood_test": 500}


def run(directory: Path, sizes: dict[str, int] = SIZES) -> dict[str, Any]:
    """Base model, circuits, members, hydra; test figures of the base, of the members and of the hydra."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        done = work()
        seconds[name] = round(time.perf_counter() - started, 1)
        return done

    base = timed("base", lambda: base_model(directory, sizes["train"]))
    rankings = timed("circuits", lambda: circuits(directory, base, sizes["search"]))
    chosen = select_members(rankings, keep=KEEP)
    members = timed("members", lambda: tuned(directory, base, list(chosen), sizes["tune"]))
    hydra = fuse(members)
    hydra.save(directory / "hydra")
    again = Hydra.load(directory / "hydra")
    known = texts(base, f"sst2-validation.parquet[:{sizes['test']}]")
    unknown = {name: texts(base, f"{name}.parquet[:{sizes['ood_test']}]", labels=False) for name in ("yelp", "trec")}
    same = all(torch.equal(hydra.members(batch.inputs), again.members(batch.inputs)) for batch in list(known)[:2])
    rows: dict[str, list[nn.Module]] = {"base": [base], "three members": list(members), "hydra": [again]}
    rows |= {f"member {objective}": [member] for objective, member in zip(OBJECTIVES, members, strict=True)}
    figures = timed("evaluation", lambda: {name: judged(models, known, unknown) for name, models in rows.items()})
    return {
        "figures_percent": figures,
        "reloaded_to_the_bit": same,
        "overlap": chosen.overlaps(),
        "divergence": chosen.divergences(),
        "validation_scores": {o: [r.start_score, r.scores[-1]] for o, r in zip(OBJECTIVES, rankings, strict=True)},
        "seconds": seconds | {"all": round(sum(seconds.values()), 1)},
        "sizes": sizes,
    }


def texts(
    model: nn.Module, reference: str, labels: bool = True, batch_size: int = 32, shuffle: bool = False
) -> Batches:
    """Sentences as the model takes them."""
    rows = open_data(f"{TEXT}/{reference}")
    return batches_for(model, rows, batch_size=batch_size, labels=labels, shuffle=shuffle, max_tokens=MAX_TOKENS)


def base_model(directory: Path, rows: int) -> Member:
    """MiniLM, all of it trained for one epoch."""
    path = directory / "base"
    if not (path / "config.json").exists():
        torch.manual_seed(0)
        model = load_model(REFERENCE, num_labels=2)
        recipe = replace(RECIPES["sst2-base"], epochs=1, precision="bf16", learning_rate=1e-4)
        train = texts(model, f"sst2-train.parquet[3000:{3000 + rows}]", shuffle=True)
        finetune(model, train, None, recipe, checkpoint=directory / "base-training")
        prune(model, HeadSet.all(model)).save(path)
    return Member.load(path)


def circuits(directory: Path, base: Member, rows: int) -> list[HeadRanking]:
    """One lazy search an objective, half of the heads removed."""
    known = texts(base, f"sst2-train.parquet[:{rows}]", batch_size=8)
    unknown = texts(base, f"ag-news.parquet[:{rows}]", labels=False, batch_size=8)
    return [
        circuit_ranking(
            base, known, unknown, objective, KEEP, search="lazy", journal=directory / f"circuit-{objective}.jsonl"
        )
        for objective in OBJECTIVES
    ]


def tuned(directory: Path, base: Member, heads: list[HeadSet], rows: int) -> list[Member]:
    """The members, each trained for one epoch with its own seed."""
    paths = [directory / f"member-{m}" for m in range(len(heads))]
    if not all((path / "config.json").exists() for path in paths):
        members = [prune(base, keep) for keep in heads]
        recipe = replace(RECIPES["sst2"], epochs=1, precision="bf16", learning_rate=5e-5)
        train = texts(base, f"sst2-train.parquet[7000:{7000 + rows}]", shuffle=True)
        finetune_members(members, train, None, recipe, checkpoint=directory / "member-training")
        for member, path in zip(members, paths, strict=True):
            member.save(path)
    return [Member.load(path) for path in paths]


@torch.inference_mode()
def judged(models: list[nn.Module], known: Batches, unknown: dict[str, Batches]) -> dict[str, float]:
    """Accuracy, and AUROC of the maximum softmax probability per OOD set, of the models' averaged probabilities."""

    def log_probs(batches: Batches) -> Tensor:
        return torch.cat([ensemble_log_probs(_member_logits(models, batch.inputs)) for batch in batches])

    answers = log_probs(known)
    labels = torch.cat([batch.labels for batch in known if batch.labels is not None])
    figures = {"accuracy": float(accuracy(answers.argmax(-1), labels))}
    for name, batches in unknown.items():
        figures[f"auroc_{name}"] = float(auroc(log_confidence(answers), log_confidence(log_probs(batches))))
    return {name: round(100 * value, 2) for name, value in figures.items()}


def _member_logits(models: list[nn.Module], inputs: Any) -> Tensor:
    parts = [m.members(inputs) if isinstance(m, Hydra) else own_logits(m, inputs)[:, None] for m in models]
    return torch.cat(parts, dim=1)


def main() -> None:
    given = words(__doc__, 1)
    torch.set_num_threads(THREADS)
    directory = Path(given[0]) if given else KEPT / "chain"
    directory.mkdir(parents=True, exist_ok=True)
    found = run(directory)
    write_results("chain", {**found, "provenance": provenance(packages=["transformers"], model=REFERENCE)})


if __name__ == "__main__":
    main()
