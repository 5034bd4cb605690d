"""From answers to a results file: every figure of one method with one seed.

Shares are fractions here, as `evaluate` has them; the summary turns those that the paper shows in percent.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from evidence.asking import ANSWERS, KNOWN_VAL, SHIFTED, TRAIN, UNKNOWN_VAL, together
from evidence.comparing import save_draws
from evidence.methods import Row, file_name
from evidence.networks import Networks
from evidence.setting import Setting
from hydra_ensembles.evaluation import Answers, Evaluation
from hydra_ensembles.evaluation.detectors import Detectors, classifier_of, fit_detectors
from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.metrics import answer_metrics, separation_metrics
from hydra_ensembles.evaluation.protocol import ID_TEST
from hydra_ensembles.uncertainty import fit_temperature
from hydra_ensembles.uncertainty.temperature import Temperature

AVERAGED = ("near", "far")
RESAMPLES = 1000


def results_unit(networks: Networks, row: Row, folder: str = "") -> str:
    """Judge a row, and write `results/SETTING/FOLDER/METHOD-SEED.json`.

    Another unit, wanted only where the row is compared with others, writes how its figures move on other test rows.
    """
    name = file_name(row.method, row.seed)
    path = networks.results(f"draws/{name}", "safetensors")

    def draw(place: Path) -> None:
        said, known = together(networks, row.parts), next(iter(networks.setting.known_tests.values()))
        rows = {name: _judged(one, None) for name, one in said.items() if name != TRAIN}
        save_draws(path, networks.setting, evaluation(networks.setting, {**rows, ID_TEST: _known(said, known, None)}))

    networks.units.add(drawn(row), draw, row.parts, leaves=path)
    file = f"{folder}/{name}" if folder else name
    return networks.leave(f"rows/{name}", file, lambda place: figures(networks, row), row.parts)


def drawn(row: Row) -> str:
    """The unit that writes how a row's figures move on other test rows."""
    return f"draws/{file_name(row.method, row.seed)}"


def shifted_unit(networks: Networks, row: Row) -> str:
    """Judge a row on corrupted inputs, and write `results/SETTING/shift/METHOD-SEED.json` (Tables 13, 14)."""
    parts = [part.replace(ANSWERS, SHIFTED) for part in row.parts]
    name = file_name(row.method, row.seed)

    def work(place: Path) -> Mapping[str, Any]:
        by_set = {split: answer_metrics(_judged(one, None)) for split, one in together(networks, parts).items()}
        severities = sorted({int(split.rpartition("-")[2]) for split in by_set})
        means = {
            severity: {
                metric: fmean(one[metric] for split, one in by_set.items() if split.endswith(f"-{severity}"))
                for metric in ("accuracy", "brier", "nll", "ece")
            }
            for severity in severities
        }
        return {"method": row.method, "seed": row.seed, "severities": means, "sets": by_set}

    return networks.leave(f"shift-rows/{name}", f"shift/{name}", work, parts)


def figures(networks: Networks, row: Row) -> dict[str, Any]:
    """Every figure of a row, by column of known tests, plain and with a temperature."""
    setting, said = networks.setting, together(networks, row.parts)
    val = said[KNOWN_VAL]
    assert val.labels is not None
    fitted = fit_temperature(val.logits, val.labels).temperature
    detectors = _detectors(networks, row, said)
    rows = {name: _judged(one, None, detectors) for name, one in said.items() if name != TRAIN}
    unseen = {name: _not_searched(said[name], setting.searched) for name in (KNOWN_VAL, UNKNOWN_VAL)}
    columns: dict[str, Any] = {}
    for column, known in setting.known_tests.items():
        plain = evaluation(setting, {**rows, ID_TEST: _known(said, known, None, detectors)})
        apart = evaluation(setting, {**rows, ID_TEST: plain.judged[ID_TEST]}, ("apart",))
        scaled = _known(said, known, fitted)
        columns[column] = {
            "answers": plain.figures["answers"][ID_TEST],
            "tempered": answer_metrics(scaled),
            "diversity": plain.figures["diversity"],
            "ood": {part[4:]: sets for part, sets in plain.figures.items() if part.startswith("ood/")},
            "apart": {part[4:]: sets for part, sets in apart.figures.items() if part.startswith("ood/")},
        }
    cost = row.cost()
    return {
        "method": row.method,
        "seed": row.seed,
        "members": val.logits.shape[1],
        "heads": row.heads,
        "kept": [networks.load(unit).heads.to_json() for unit in _pruned(networks, row)],
        "drawn": _drawn_members(networks, row),
        "cost": cost.to_json(),
        "temperature": fitted.value,
        "validation": validation({name: _judged(one, None, detectors) for name, one in unseen.items()}),
        "columns": columns,
        "asked_in": sorted({networks.units.done(part).get("asked_in", "fp32") for part in row.parts}),
        "networks": {unit: networks.units.done(unit) for unit in _networks(networks, row)},
    }


def validation(rows: Mapping[str, Judged]) -> dict[str, Any]:
    """What choices may be made by: figures on the validation sets alone."""
    known, unknown = rows[KNOWN_VAL], rows[UNKNOWN_VAL]
    ood = {score: separation_metrics(known.scores[score], unknown.scores[score]) for score in known.scores}
    return {"answers": answer_metrics(known), "ood": ood}


def _not_searched(said: Answers, searched: int) -> Answers:
    """Without first rows that searches saw."""
    labels, features = (None if part is None else part[searched:] for part in (said.labels, said.features))
    return Answers(said.logits[searched:], labels, features=features)


def evaluation(setting: Setting, rows: Mapping[str, Judged], groups: tuple[str, ...] = AVERAGED) -> Evaluation:
    """Judged rows as an evaluation, with `near` and `far`, or with all other sets as `far`."""
    named = {group: list(setting.groups[group]) for group in groups}
    if groups != AVERAGED:
        named = {"far": [name for sets in named.values() for name in sets]}
    sets = [ID_TEST, *(name for names in named.values() for name in names)]
    return Evaluation({name: rows[name] for name in sets}, {"shifts": [], "near": [], **named}, resamples=RESAMPLES)


def _known(
    said: Mapping[str, Answers],
    sets: tuple[str, ...],
    temperature: Temperature | None,
    detectors: Detectors | None = None,
) -> Judged:
    parts = [said[name] for name in sets]
    labels = torch.cat([part.labels for part in parts if part.labels is not None])
    features = None if parts[0].features is None else torch.cat([p.features for p in parts if p.features is not None])
    joined = Answers(torch.cat([part.logits for part in parts]), labels, features=features)
    return _judged(joined, temperature, detectors)


def _judged(said: Answers, temperature: Temperature | None, detectors: Detectors | None = None) -> Judged:
    rows = judged(said.logits, said.labels, temperature)
    if detectors is None:
        return rows
    assert said.features is not None
    return replace(rows, scores={**rows.scores, **detectors.scores(said.features, said.logits)})


def _detectors(networks: Networks, row: Row, said: Mapping[str, Answers]) -> Detectors | None:
    """KNN, Mahalanobis and ViM of one network whose features were kept; they see no unknown input."""
    train = said.get(TRAIN)
    if train is None or len(row.parts) > 1 or train.features is None or train.labels is None:
        return None
    weight, bias = classifier_of(networks.load(row.parts[0].replace(ANSWERS, "networks/")))
    return fit_detectors(train.features, train.logits, train.labels, weight, bias)


def _pruned(networks: Networks, row: Row) -> list[str]:
    """The networks of a row that keep some heads only: a hydra's members, or those that are asked alone."""
    if row.members or row.heads == str(networks.setting.heads):
        return list(row.members)
    alone = [part.replace(ANSWERS, "networks/") for part in row.parts]
    return [unit for unit in alone if unit in networks.units.units]


def _drawn_members(networks: Networks, row: Row) -> list[int]:
    """Members of a hydra whose heads were drawn, as their ranking gave those of another."""
    chosen = {one for unit in row.members for one in networks.units.units[unit].after if one.startswith("heads/")}
    return sorted({m for one in chosen for m in networks.units.done(one).get("drawn", [])})


def _networks(networks: Networks, row: Row) -> list[str]:
    """The trained networks of a row."""
    units = networks.units.units
    return [*row.members, *(one for part in row.parts for one in units[part].after if one not in row.members)]
