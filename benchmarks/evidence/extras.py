"""What stands beside the rows of a table: is the protocol honest, what formatting alone gives, paired differences."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from evidence.asking import ANSWERS, in_precision, prepared
from evidence.comparing import compared
from evidence.methods import Row, file_name
from evidence.networks import Networks
from hydra_ensembles import Protocol, fuse
from hydra_ensembles.evaluation import Answers, answers
from hydra_ensembles.evaluation.answers import load_answers
from hydra_ensembles.evaluation.metrics import separation_metrics
from hydra_ensembles.uncertainty.decisions import ood_scores
from hydra_ensembles.uncertainty.known_rows import finest


def extra(networks: Networks, name: str, work: Callable[[], Mapping[str, Any]], after: Sequence[str] = ()) -> str:
    """A unit that writes `results/SETTING/NAME.json`."""
    return networks.leave(f"extras/{name}", name, lambda place: work(), after)


def honest(networks: Networks) -> str:
    """Do test sets share rows with what trains, chooses or fits? What is shared is told."""
    base, setting = networks.base(0), networks.setting

    def work() -> Mapping[str, Any]:
        model = networks.load(base)
        tests = setting.tests(model)
        said = {}
        for column, known in setting.known_tests.items():
            for name in known:
                used = {"id_val": setting.known_val(model), "ood_val": setting.unknown_val(model)}
                if setting.base is not None:
                    used["id_train"] = setting.train(model, 0)
                near, far = ({one: tests[one] for one in setting.groups[group]} for group in ("near", "far"))
                far |= {one: tests[one] for one in setting.groups["apart"]}
                # Not refused: sets apart may share rows, and the docs say so.
                found = Protocol(tests[name], near, far, **used, allow_seen=True)  # type: ignore[arg-type]
                said[f"{column}: {name}"] = list(found.seen)
        return {"seen": said, "rows": {name: batches.num_rows for name, batches in tests.items()}}

    return extra(networks, "protocol", work, (base,))


def paired(networks: Networks, pairs: Sequence[tuple[str, str]], seeds: Sequence[int], name: str = "compared") -> str:
    """Differences between methods on the same rows."""
    rows = [f"draws/{file_name(method, seed)}" for seed in seeds for method in dict.fromkeys(sum(pairs, ()))]
    return extra(networks, name, lambda: {"differences": compared(networks, pairs, seeds)}, rows)


def separation(known: Tensor, unknown: Mapping[str, Tensor], groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """AUROC, FPR95 and AUPR of a detector by set, and their means over near, far and both."""
    sets = {name: separation_metrics(known, scores) for name, scores in unknown.items()}
    averaged = {group: groups[group] for group in ("near", "far")}
    averaged["average"] = [*groups["near"], *groups["far"]]
    means = {
        group: {metric: fmean(sets[name][metric] for name in names) for metric in ("auroc", "fpr95", "aupr")}
        for group, names in averaged.items()
    }
    return {**sets, **means}


def rounding(networks: Networks, asked: Row) -> str:
    """What it changes that networks answer in bf16: one network or hydra, asked again in the other precision."""
    setting, (kept,) = networks.setting, asked.parts

    def work() -> Mapping[str, Any]:
        plain, known = setting.load(0), next(iter(setting.known_tests.values()))
        members = [networks.load(unit) for unit in asked.members or (kept.replace(ANSWERS, "networks/"),)]
        other = "fp32" if setting.asked_in == "bf16" else "bf16"
        model = prepared(fuse(members) if asked.members else members[0], plain, other, setting.members)
        with in_precision(other):
            again = {name: answers(model, batches, progress=False) for name, batches in setting.tests(plain).items()}
        said: dict[str, Any] = {}
        for precision, found in ((setting.asked_in, load_answers(networks.units.directory(kept))), (other, again)):
            scores = {name: ood_scores("msp", finest(found[name].logits)) for name in again}
            unknown = {name: score for name, score in scores.items() if name not in known}
            inside = torch.cat([scores[name] for name in known])
            right = torch.cat([found[name].logits.mean(1).argmax(-1).eq(_labels(found[name])) for name in known])
            auroc = separation(inside, unknown, setting.groups)["average"]["auroc"]
            said[precision] = {"accuracy": float(right.double().mean()), "auroc": auroc}
        return {"method": asked.method, "answered_in": said}

    return extra(networks, "precision", work, (kept,))


def _labels(found: Answers) -> Tensor:
    assert found.labels is not None
    return found.labels
