"""Which change of the paper's recipe to keep: said by validation figures of seed 0 alone, then measured with all seeds.

The rule was written before any variant was judged: of those that cost at most 0.9 of the multiply-adds of DE(D)+ and
are at most 1.5 points less accurate than DE(D) on known validation rows, the one that tells unknown validation rows
best; where none is so accurate, the best of those that are so cheap. Rows that circuits were searched on do not count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from evidence.extras import extra, paired
from evidence.judging import results_unit
from evidence.methods import Row, file_name
from evidence.networks import Networks
from evidence.page import read

CIRCUIT, CONTROL = "circuit", "random heads"
CONTROL_SEEDS = (0, 1)
COSTS_AS, ACCURATE_AS = "DE(D)+", "DE(D)"
BESIDE = ("DE(D)", "DE(D)+", "single", "single+", "hydra (circuit)", "hydra (random heads)")
Maker: TypeAlias = Callable[[Networks, int, str], Row]
"""Makes a row with a seed; last, how heads are chosen: by circuits, or at random for its control."""
MOST_MULT_ADDS, LEAST_ACCURACY = 0.9, -0.015


def choice(networks: Networks, in_table: Sequence[Maker], variants: Sequence[Maker]) -> str:
    """A unit that writes `results/SETTING/chosen.json`; candidates have rows in the table or among the claims."""
    places = {make(networks, 0, CIRCUIT).method: "" for make in in_table} | {COSTS_AS: "", ACCURATE_AS: ""}
    places |= {make(networks, 0, CIRCUIT).method: "claims/" for make in variants}
    controls = {make(networks, 0, CIRCUIT).method: make(networks, 0, CONTROL).method for make in (*in_table, *variants)}
    after = [f"rows/{file_name(method, 0)}" for method in places]

    def work() -> Mapping[str, Any]:
        name = networks.setting.name
        figures = {
            method: validation_figures(read(name, f"{place}{file_name(method, 0)}")) for method, place in places.items()
        }
        chosen = best_of(figures)
        scores = {} if chosen is None else figures[chosen]["scores"]
        score = max(scores, key=lambda one: scores[one], default=None)
        return {"chosen": chosen, "control": controls.get(chosen or ""), "score": score, "figures": figures}

    return extra(networks, "chosen", work, after)


def validation_figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a results file says of the validation sets, and the cost."""
    known = result["validation"]
    return {
        "accuracy": known["answers"]["accuracy"],
        "nll": known["answers"]["nll"],
        "auroc": known["ood"]["msp"]["auroc"],
        "scores": {score: found["auroc"] for score, found in known["ood"].items()},
        "mult_adds": float(result["cost"]["mult_adds"]),
    }


def best_of(figures: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The candidate that the rule chooses; None where none is cheap enough.

    >>> cheap = {"accuracy": 0.9, "auroc": 0.8, "mult_adds": 2.0}
    >>> figures = {"DE(D)+": {**cheap, "mult_adds": 3.0}, "DE(D)": cheap, "plain": cheap}
    >>> figures["better"] = {**cheap, "auroc": 0.9}
    >>> best_of(figures), best_of({**figures, "dear": {**cheap, "auroc": 1.0, "mult_adds": 2.9}})
    ('better', 'better')
    >>> best_of({**figures, "rough": {**cheap, "accuracy": 0.8, "auroc": 1.0}})
    'better'
    """
    most = MOST_MULT_ADDS * figures[COSTS_AS]["mult_adds"]
    least = figures[ACCURATE_AS]["accuracy"] + LEAST_ACCURACY
    candidates = {method: found for method, found in figures.items() if method not in (COSTS_AS, ACCURATE_AS)}
    cheap = {method: found for method, found in candidates.items() if found["mult_adds"] <= most}
    accurate = {method: found for method, found in cheap.items() if found["accuracy"] >= least}
    return max(accurate or cheap, key=lambda method: cheap[method]["auroc"], default=None)


def chosen_maker(networks: Networks, makers: Sequence[Maker]) -> Maker | None:
    """How what was chosen is made, once it is."""
    found = read(networks.setting.name, "chosen").get("chosen")
    return next((make for make in makers if make(networks, 0, CIRCUIT).method == found), None)


def chosen_rows(
    networks: Networks, in_table: Sequence[Maker], variants: Sequence[Maker], seeds: Sequence[int]
) -> list[str]:
    """The rows of what was chosen and of its control, once it is, and differences; a run after that measures them.

    The control is compared seed by seed, as it stands in its results files, with the first seeds only: each takes three
    trainings from the pre-trained network.
    """
    make = chosen_maker(networks, (*in_table, *variants))
    if make is None:
        return []
    folder = "" if make in in_table else "claims"
    rows = [make(networks, seed, CIRCUIT) for seed in seeds]
    rows += [make(networks, seed, CONTROL) for seed in CONTROL_SEEDS if seed in seeds]
    chosen = rows[0].method
    pairs = [(chosen, other) for other in BESIDE if other != chosen]
    judged = [results_unit(networks, one, folder) for one in rows]
    return [*judged, paired(networks, pairs, seeds, "compared-chosen")]
