"""The first screen: what was compared and what came of it, in plain words, for a reader who has not read the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra_ensembles.evaluation.protocol import AVERAGE, GROUPS, ID_TEST, SHIFTS
from hydra_ensembles.report.cautions import cautions, scattered
from hydra_ensembles.report.runs import BASE, HYDRA, MEMBERS, Run
from hydra_ensembles.report.verdicts import UNDECIDED, Verdict, verdict_in_a_sentence, verdict_of
from hydra_ensembles.report.words import listed, many, milliseconds, of_100, percent, short, times

_NINETY = (0.85, 0.95)
_ENOUGH = 20


@dataclass(frozen=True)
class Answer:
    """A question that a reader has, its answer in one number and in a few sentences."""

    key: str
    question: str
    figure: str
    text: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class FirstScreen:
    """What a run says on the first screen."""

    name: str
    title: str
    question: str
    verdict: str
    compared: str
    models: Mapping[str, str]
    """What each is, in a few words."""
    labels: Mapping[str, str]
    """What each is called in figures."""
    answers: Sequence[Answer]
    warnings: Sequence[str]


def first_screen(run: Run, labels: Mapping[str, str], seeds: int = 1) -> FirstScreen:
    """What to say of one run; `seeds` is how many runs of its recipe the report has."""
    told = run.models[run.subject]
    answers = [_right(run), _believable(run)]
    if f"ood/{told['score']}" in told["figures"]:
        answers.append(_unknown(run))
    if told["about"].get("decisions"):
        answers.append(_decides(run))
    if run.subject in run.costs.get("models", {}):
        answers.append(_cost(run))
    number = told["about"]["members"]
    return FirstScreen(
        run.name,
        f"{run.name}: a hydra of {number} against one network" if run.subject == HYDRA and run.base else run.name,
        _question(run),
        verdict_in_a_sentence(run),
        _compared(run),
        _models(run),
        labels,
        answers,
        cautions(run, seeds),
    )


def _models(run: Run) -> dict[str, str]:
    """Each model in a few words."""
    found = {}
    for name, told in run.models.items():
        members = told["about"]["members"]
        known = {
            BASE: "the one network that everything started from",
            MEMBERS: f"{members} copies of it, each with other attention heads removed, run one after another; "
            "their probabilities are averaged",
            HYDRA: f"the same {members} pruned copies fused into one network that answers in one pass",
        }
        other = "one network" if members == 1 else f"an ensemble of {members}, averaged"
        found[name] = known.get(name, other) if run.recipe else other
    return found


def _question(run: Run) -> str:
    """What it is all about, for a reader who has never heard of it."""
    number = run.models[run.subject]["about"]["members"]
    if run.subject == HYDRA and run.base:
        return (
            f"From one trained network, {number} copies were made; from each, other small parts (attention heads) were "
            f"removed, and the copies were fused into a single network, the hydra. Are {number} opinions in one better "
            "than the one network by itself, and what do they cost?"
        )
    what = "one network" if number == 1 else f"an ensemble of {number} networks"
    return f"How good are the answers of {what}, and how far can its confidence be believed?"


def _compared(run: Run) -> str:
    told = run.models[run.subject]
    rows, groups = told["rows"], told["groups"]
    classes = told["about"].get("classes")
    parts = [f"{many(rows[ID_TEST], 'labelled input')} of the kind it was trained for"]
    if classes:
        parts[0] += f" ({many(classes, 'class', 'classes')})"
    shifts, unknown = groups.get(SHIFTS, ()), [name for group in GROUPS for name in groups.get(group, ())]
    if shifts:
        parts.append(f"the same inputs corrupted in {many(len(shifts), 'way')}")
    if unknown:
        total = sum(rows[name] for name in unknown)
        parts.append(
            f"{many(total, 'input')} from {many(len(unknown), 'set')} it was never meant for ({listed(unknown)})"
        )
    return f"Tested on {listed(parts)}."


def _right(run: Run) -> Answer:
    figures, base = _answers(run, run.subject), _base(run)
    text = f"{of_100(figures['accuracy'])} of 100 answers are right"
    text += f"; of the one network's, {of_100(base['accuracy'])}" if base else ""
    shifted = run.models[run.subject]["figures"]["answers"].get(SHIFTS)
    if shifted:
        before = f" (one network: {of_100(_answers(run, run.base, SHIFTS)['accuracy'])})" if run.base else ""
        text += f". On corrupted inputs, {of_100(shifted['accuracy'])}{before}"
    return Answer(
        "right",
        "How often is it right?",
        percent(figures["accuracy"]),
        f"{text}.",
        verdict_of(run, "answers", ID_TEST, "accuracy"),
    )


def _believable(run: Run) -> Answer:
    figures, base = _answers(run, run.subject), _base(run)
    text = ""
    ninety = _said_ninety(run)
    if ninety is not None:
        share, rows = ninety
        text = f"When it says about 90 %, it is right {percent(share, 0)} of the time ({rows:,} such answers). "
    off = f"{100 * figures['ece']:.1f}"
    text += f"On average, stated confidence and share of right answers lie {off} percentage points apart"
    text += f" (one network: {100 * base['ece']:.1f})" if base else ""
    evaluation = run.evaluations.get(run.subject)
    if evaluation is not None:
        gap = float(evaluation.judged[ID_TEST].confidence.mean()) - figures["accuracy"]
        if abs(gap) >= 0.01:
            text += f"; on the whole it is too {'sure of itself' if gap > 0 else 'careful'}"
    whole = verdict_of(run, "answers", ID_TEST, "nll")
    if whole is not None:
        than = "cannot be told apart from" if whole.word == UNDECIDED else f"are {whole.word} than"
        text += f". Its probabilities taken as a whole (NLL) {than} one network's"
    return Answer(
        "believable",
        "When it says 90 %, is it right 90 % of the time?",
        f"{off} points off",
        f"{text}.",
        verdict_of(run, "answers", ID_TEST, "ece"),
    )


def _unknown(run: Run) -> Answer:
    told = run.models[run.subject]
    part = f"ood/{told['score']}"
    figures = told["figures"][part]
    base = run.models[run.base]["figures"].get(part) if run.base else None
    share = figures[AVERAGE]["auroc"]
    text = "Shown one known and one unknown input, it ranks the unknown one as stranger in "
    text += f"{of_100(share)} of 100 pairs (coin toss: 50"
    text += f"; one network: {of_100(base[AVERAGE]['auroc'])})" if base else ")"
    if all(group in figures for group in GROUPS):
        near, far = (of_100(figures[group]["auroc"]) for group in GROUPS)
        text += f": {near} where the two look much alike, {far} where they do not"
    return Answer(
        "unknown",
        "Does it notice inputs it cannot know?",
        f"{of_100(share)} of 100 pairs",
        f"{text}.",
        verdict_of(run, part, AVERAGE, "auroc"),
    )


def _decides(run: Run) -> Answer:
    told = run.models[run.subject]
    decisions: Mapping[str, Mapping[str, float]] = told["about"]["decisions"]
    known = decisions[ID_TEST]
    text = f"Of 100 inputs it knows, it answers {of_100(known['accept'])}"
    if "accuracy of accepted" in known:
        text += f" ({percent(known['accuracy of accepted'], 0)} of these rightly)"
    text += f", says “not sure” to {of_100(known['abstain'])} and calls {of_100(known['out-of-distribution'])} unknown"
    unknown = [decisions[name] for group in GROUPS for name in told["groups"].get(group, ()) if name in decisions]
    if unknown:
        answered, found = (
            sum(one[what] for one in unknown) / len(unknown) for what in ("accept", "out-of-distribution")
        )
        text += f". Of 100 it cannot know, it still answers {of_100(answered)} and calls {of_100(found)} unknown"
    return Answer("decides", "What does it do when unsure?", f"answers {of_100(known['accept'])} of 100", f"{text}.")


def _cost(run: Run) -> Answer:
    costs: Mapping[str, Any] = run.costs["models"]
    mine, base = costs[run.subject], costs.get(run.base or "")
    settings = run.costs.get("settings", {})
    measured = f"measured at batch {settings.get('batch')} on {many(settings.get('threads') or 1, 'thread')}"
    time = _milliseconds(mine)
    if base is None:
        figure = f"{short(mine['mult_adds'])} multiply-adds"
        text = f"{short(mine['params'])} parameters, {figure} an input"
        text += f", {milliseconds(time)} a batch ({measured})" if time else ""
        return Answer("cost", "What does it cost?", f"{milliseconds(time)} a batch" if time else figure, f"{text}.")
    arithmetic, size = (times(mine[what] / base[what]) for what in ("mult_adds", "params"))
    before = _milliseconds(base)
    if not time or not before:
        text = f"{arithmetic} the arithmetic and {size} the parameters of one network; time was not measured"
        return Answer("cost", "What does it cost?", f"{arithmetic} the arithmetic", f"{text}.")
    text = f"{times(time / before)} the time, {arithmetic} the arithmetic and {size} the parameters of one network"
    apart = _milliseconds(costs.get(MEMBERS, {}))
    if apart and run.subject != MEMBERS:
        text += f"; its members one after another take {times(apart / before)} the time"
    text += f" ({measured})"
    if scattered(run):
        text += ". The times scattered widely, so rely on the arithmetic"
    figure = f"{arithmetic} the arithmetic" if scattered(run) else f"{times(time / before)} the time"
    return Answer("cost", "What does it cost?", figure, f"{text}.")


def _milliseconds(cost: Mapping[str, Any]) -> float | None:
    """The median time of a batch; None where it was not measured."""
    found = cost.get("latency_ms")
    return None if found is None else float(found["median"])


def _said_ninety(run: Run) -> tuple[float, int] | None:
    """Of the answers given with about 90 % confidence, the share that is right, and how many there are."""
    evaluation = run.evaluations.get(run.subject)
    if evaluation is None:
        return None
    rows = evaluation.judged[ID_TEST]
    assert rows.right is not None
    about = (rows.confidence >= _NINETY[0]) & (rows.confidence < _NINETY[1])
    number = int(about.sum())
    return (float(rows.right[about].mean()), number) if number >= _ENOUGH else None


def _answers(run: Run, model: str | None, row: str = ID_TEST) -> Mapping[str, float]:
    found: Mapping[str, float] = run.models[model or run.subject]["figures"]["answers"][row]
    return found


def _base(run: Run) -> Mapping[str, float] | None:
    return _answers(run, run.base) if run.base else None
