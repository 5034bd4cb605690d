"""`evaluate`: one pass over each set of a protocol gives every figure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydra_ensembles.data import Batches
from hydra_ensembles.data.fingerprints import rows_digest, source_of
from hydra_ensembles.evaluation.answers import AnswerError, Answers, Model, answers, model_digest, networks
from hydra_ensembles.evaluation.detectors import Detectors, classifier_of, fit_detectors
from hydra_ensembles.evaluation.judged import Judged, judged, rows_in_slice
from hydra_ensembles.evaluation.protocol import ID_TEST, Protocol, ProtocolError
from hydra_ensembles.evaluation.results import Evaluation, EvaluationError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.optional import made_with
from hydra_ensembles.store import StoreError
from hydra_ensembles.uncertainty import SCORES, predict
from hydra_ensembles.uncertainty.decisions import DECISIONS
from hydra_ensembles.uncertainty.fitted import Fitted

Ask = Callable[[str, Batches, bool], Answers]
"""From a set's name, its batches, and whether its labels count."""


def evaluate(
    model: Model | Mapping[str, Answers],
    protocol: Protocol,
    *,
    detectors: bool = False,
    fitted: Fitted | None = None,
    keep: str | Path | None = None,
    score: str = "msp",
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> Evaluation:
    """Every figure of a model on the sets of a protocol.

    Args:
        model: a hydra, a member, any classifier, several of them that answer together; or kept answers by set.
        protocol: the sets.
        detectors: score unknown inputs also by KNN, Mahalanobis and ViM; on one network, fitted on `id_train`, or
            else on `id_val`; no unknown input is seen for that.
        fitted: temperature, threshold and quantile to apply; a hydra brings its own.
        keep: a directory for the answers by set; what is there of the same model and data is not asked again.
        score: the score whose figures get intervals.
        resamples: of the bootstrap; 0 for no intervals.
        seed: of the bootstrap.
        progress: show bars; by default on a terminal.
    """
    if not isinstance(protocol, Protocol):
        raise EvaluationError(
            f"evaluate takes a Protocol of sets, as of Protocol(data); found {type(protocol).__name__}"
        )
    known = [*SCORES, *(field.name for field in fields(Detectors) if detectors)]
    if score not in known:
        raise EvaluationError(f"score '{score}' is not known here; known are {', '.join(known)}")
    if resamples < 0:
        raise EvaluationError(f"there are no {resamples} resamples; 0 for no intervals, 1000 for good ones")
    fitted = fitted or (model.fitted if isinstance(model, Hydra) else Fitted())
    seen = [*protocol.seen, *_chosen_with(model, protocol)]
    ask = _asking(model, detectors, None if keep is None else Path(keep), progress)
    free = _detectors(model, protocol, ask) if detectors else None
    sets: dict[str, Judged] = {}
    decisions: dict[str, dict[str, float]] = {}
    who: dict[str, Any] = {}
    dtype: torch.dtype | None = None
    for name, batches in protocol.tests.items():
        has_labels = name == ID_TEST or name in protocol.shifts
        found = ask(name, batches, has_labels)
        rows = judged(found.logits, found.labels, fitted.temperature)
        if free is not None:
            assert found.features is not None
            rows = replace(rows, scores={**rows.scores, **free.scores(found.features, found.logits)})
        sets[name] = rows
        if fitted.ood is not None or fitted.conformal is not None:
            decisions[name] = _decisions(found.logits, rows.right, fitted)
        answered = {"model": found.model, "members": found.logits.shape[1], "classes": found.logits.shape[2]}
        if who and who != answered:
            raise EvaluationError(f"the answers for set '{name}' are not those of the model that answered '{ID_TEST}'")
        who, dtype = answered, found.logits.dtype
    about = {**who, "fitted": fitted.to_json(), "decisions": decisions}
    about |= {"allow_seen": protocol.allow_seen, "seen": seen}
    about["made_with"] = made_with(dtype)
    digests = {name: rows_digest(batches) for name, batches in protocol.tests.items()}
    return Evaluation(sets, protocol.groups, digests, about, resamples, seed, score)


def _asking(model: Model | Mapping[str, Answers], features: bool, keep: Path | None, progress: bool | None) -> Ask:
    if isinstance(model, Mapping):
        return lambda name, batches, has_labels: _labelled(name, _kept(model, name, batches), has_labels)
    digest = model_digest(model)

    def ask(name: str, batches: Batches, has_labels: bool) -> Answers:
        place = None if keep is None else keep / name
        known = None if place is None else _read(place)
        asked = (batches.digest, digest, features)
        lacks_labels = has_labels and known is not None and known.labels is None  # the set was an unknown one before
        if known is not None and not lacks_labels and (known.digest, known.model, known.features is not None) == asked:
            return _labelled(name, known, has_labels)
        try:
            found = answers(
                model,
                batches,
                labels=has_labels,
                features=features,
                digest=False,
                progress=progress,
                title=f"answering {name}",
            )
        except AnswerError as error:
            raise AnswerError(f"set '{name}': {error}") from None
        found = replace(_labelled(name, found, has_labels), digest=batches.digest, model=digest)
        if place is not None:
            found.save(place)
        return found

    return ask


def _read(place: Path) -> Answers | None:
    """Answers that are there and whole; a run that was killed while it wrote leaves others."""
    try:
        return Answers.load(place)
    except (StoreError, AnswerError):
        return None


def _kept(kept: Mapping[str, Answers], name: str, batches: Batches) -> Answers:
    if name not in kept:
        raise EvaluationError(f"there are no kept answers for set '{name}'; there are {', '.join(kept) or 'none'}")
    found = kept[name]
    if len(found) != batches.num_rows:
        raise EvaluationError(f"set '{name}' has {batches.num_rows} rows, its kept answers are for {len(found)}")
    if found.digest is not None and found.digest != batches.digest:
        raise EvaluationError(
            f"the kept answers for set '{name}' are to other rows, or to the same prepared or batched otherwise; "
            "ask the model again"
        )
    return found


def _labelled(name: str, found: Answers, has_labels: bool) -> Answers:
    """With labels where they count, without them where they mean nothing."""
    if has_labels and found.labels is None:
        told = f"set '{name}' has no labels, or its answers were kept without; known inputs are judged against theirs"
        raise ProtocolError(told)
    return found if has_labels else replace(found, labels=None)


def _detectors(model: Model | Mapping[str, Answers], protocol: Protocol, ask: Ask) -> Detectors:
    one = networks(model)[0] if not isinstance(model, Mapping) and len(networks(model)) == 1 else None
    if not isinstance(one, nn.Module) or isinstance(one, Hydra):
        raise EvaluationError("KNN, Mahalanobis and ViM are for one network; give one model, or detectors=False")
    name = "id_train" if protocol.id_train is not None else "id_val"
    known: Any = getattr(protocol, name)
    if known is None:
        raise EvaluationError(
            "KNN, Mahalanobis and ViM are fitted on known inputs; give the protocol id_train= or id_val="
        )
    weight, bias = classifier_of(one)
    found = ask(name, known, True)
    assert found.features is not None
    assert found.labels is not None
    return fit_detectors(found.features, found.logits, found.labels, weight, bias)


def _decisions(logits_RMC: Tensor, right_R: Tensor | None, fitted: Fitted) -> dict[str, float]:
    """The share of rows accepted, abstained from and called unknown; of labelled sets, how often accepted are right."""
    decided: list[str] = []
    for logits in logits_RMC.split(rows_in_slice(logits_RMC)):
        decided += predict(logits, fitted).decision or []
    counts = Counter(decided)
    shares = {name: counts[name] / len(decided) for name in DECISIONS}
    if right_R is None or not counts["accept"]:
        return shares
    is_accepted = torch.tensor([decision == "accept" for decision in decided])
    return shares | {"accuracy of accepted": float(right_R[is_accepted].mean())}


def _chosen_with(model: Model | Mapping[str, Answers], protocol: Protocol) -> Iterator[str]:
    """OOD test sets that the heads of a hydra may have been chosen with, by what the hydra knows: ends of paths."""
    past = model.provenance.get("chosen_with", []) if isinstance(model, Hydra) else []
    ends = [str(one["source"]) for one in past if one.get("source")]
    # Many sets are called data/test.npz: one that the protocol has was compared by its whole path.
    unseen = [end for end in ends if not _ends_in(protocol.ood_val, end)]
    for name, batches in {**protocol.near, **protocol.far}.items():
        if end := next((end for end in unseen if _ends_in(batches, end)), None):
            told = f"test set '{name}' is called as the set that the heads of this hydra were chosen with ({end})"
            if not protocol.allow_seen:
                raise ProtocolError(f"{told}; leave it out, or say allow_seen=True (recipe: data.allow_seen)")
            yield told


def _ends_in(data: Any, end: str) -> bool:
    """Does a set come from a path with this end?"""
    source = None if data is None else source_of(data)
    return source is not None and Path(source).parts[-len(Path(end).parts) :] == Path(end).parts
