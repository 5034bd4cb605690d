"""From answers to a results file for each method and seed, with three columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clip.methods import WHOLE, Method, Networks, by_tower
from clip.setting import WRITTEN
from evidence.asking import KNOWN_VAL
from evidence.methods import file_name
from hydra_ensembles import HeadSet
from hydra_ensembles.evaluation import Answers, Evaluation
from hydra_ensembles.evaluation.answers import load_answers
from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.metrics import answer_metrics
from hydra_ensembles.evaluation.protocol import ID_TEST
from hydra_ensembles.store import whole
from hydra_ensembles.uncertainty import fit_temperature
from hydra_ensembles.uncertainty.temperature import Temperature
from provenance import provenance

PACKAGES = ("open_clip_torch", "timm", "transformers", "torchmetrics", "torch-uncertainty")


def results_unit(networks: Networks, method: Method, seed: int, folder: str) -> str:
    """Judge a method, and write `FOLDER/METHOD-SEED.json`."""
    asked, name = networks.asked(method.kind, seed), file_name(method.name, seed)

    def work(place: Path) -> None:
        found = figures(networks, method, seed, asked)
        for column, evaluation in found.pop("evaluations").items():
            evaluation.save(place / column)
        write(folder, name, found)

    return networks.units.add(f"rows/{name}", work, list(dict.fromkeys(asked.values())), leaves=file(folder, name))


def file(folder: str, name: str) -> Path:
    return WRITTEN / folder / f"{name}.json"


def write(folder: str, name: str, found: Mapping[str, Any]) -> None:
    """A results file."""
    path = file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as draft:
        draft.write_text(json.dumps({**found, "provenance": provenance(packages=PACKAGES)}, indent=1) + "\n")


def figures(networks: Networks, method: Method, seed: int, asked: Mapping[str, str]) -> dict[str, Any]:
    """Every figure of a method by column, plain and at the temperature that the first column's validation rows want."""
    task = networks.task
    said = {column: of_column(networks, unit, column, method.kind) for column, unit in asked.items()}
    val = said[task.first][KNOWN_VAL]
    assert val.labels is not None
    fitted = fit_temperature(val.logits, val.labels).temperature
    plain = fitted if method.tempered else None
    columns: dict[str, Any] = {}
    evaluations: dict[str, Evaluation] = {}
    for column in asked:
        about = task.columns[column]
        known = said[column][about.known]
        logits, labels = known.logits[about.first_row :], known.labels
        assert labels is not None
        labels = labels[about.first_row :]
        rows = {ID_TEST: judged(logits, labels, plain)}
        rows |= {name: _unknown(said[column][name], plain) for name in about.unknown}
        groups = {"shifts": [], "near": list(about.near), "far": list(about.far)}
        evaluation = evaluations[column] = Evaluation(rows, groups, resamples=0)
        columns[column] = {
            "answers": evaluation.figures["answers"][ID_TEST],
            "tempered": answer_metrics(judged(logits, labels, fitted)),
            "diversity": evaluation.figures["diversity"],
            "ood": {part[4:]: sets for part, sets in evaluation.figures.items() if part.startswith("ood/")},
            "apart": {},
        }
    return {
        "method": method.name,
        "seed": seed,
        "members": val.logits.shape[1],
        "heads": _heads(networks, method, seed),
        "cost": networks.cost(method.kind, seed).to_json(),
        "temperature": fitted.value,
        "kept": [heads.to_json() for heads in _kept(networks, method, seed)],
        "removed": [by_tower(set(heads.full()) - set(heads)) for heads in _kept(networks, method, seed)],
        "columns": columns,
        "networks": {unit: networks.units.done(unit) for unit in networks.trained(seed)},
        "evaluations": evaluations,
    }


def of_column(networks: Networks, unit: str, column: str, kind: str) -> dict[str, Answers]:
    """Answers to the sets of a column, with the logits of its own classes."""
    task, about = networks.task, networks.task.columns[column]
    together = (column,) if kind == "errors" else next(group for group in task.asked.values() if column in group)
    start = len(task.classes(*together[: together.index(column)]))
    chosen = slice(start, start + len(task.classes(column)))
    wanted = {about.known, *about.unknown, *((KNOWN_VAL,) if column == task.first else ())}
    return {
        name: Answers(
            found.logits[..., chosen],
            found.labels if name in (about.known, KNOWN_VAL) else None,
            found.digest,
            found.model,
        )
        for name, found in load_answers(networks.units.directory(unit)).items()
        if name in wanted
    }


def _unknown(found: Answers, temperature: Temperature | None) -> Judged:
    return judged(found.logits, None, temperature)


def _kept(networks: Networks, method: Method, seed: int) -> list[HeadSet]:
    """The heads of each pruned member."""
    return [] if method.kind in WHOLE else networks.head_sets(method.kind, seed)


def _heads(networks: Networks, method: Method, seed: int) -> str:
    """Kept in both towers, times members."""
    sets = _kept(networks, method, seed) or [HeadSet.all(networks.classifier(seed))]
    return str(len(sets[0])) if len(sets) == 1 else f"{len(sets[0])}x{len(sets)}"
