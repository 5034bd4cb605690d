"""Which change of the paper's recipe to keep: said by validation figures of seed 0 alone, then measured with all seeds.

The rule was written before any variant was judged: of those that cost at most 0.9 of the multiply-adds of DE(D)+ and
are at most half a point less accurate on the known validation rows, the one that tells unknown validation rows best.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from evidence.extras import extra, paired
from evidence.judging import file_name, results_unit
from evidence.methods import Row, row
from evidence.networks import Networks
from evidence.page import read

CHOSEN = "hydra (chosen)"
REFERENCE = "DE(D)+"
BESIDE = ("DE(D)", "DE(D)+", "single", "single+", "hydra (circuit)", "hydra (random heads)")
Maker: TypeAlias = Callable[[Networks, int], Row]
"""Makes a row with a seed."""
MOST_MULT_ADDS, LEAST_ACCURACY = 0.9, -0.005


IN_TABLE: tuple[Maker, ...] = (
    lambda networks, seed: row(networks, "hydra (circuit)", seed),
    lambda networks, seed: row(networks, "hydra (joint)", seed),
)
"""Candidates that have a row of their own in the table; variants are among the claims."""


def choice(networks: Networks, variants: Sequence[Maker]) -> str:
    """A unit that writes `results/SETTING/chosen.json`."""
    places = {make(networks, 0).method: "" for make in IN_TABLE} | {REFERENCE: ""}
    places |= {make(networks, 0).method: "claims/" for make in variants}
    after = [f"rows/{file_name(method, 0)}" for method in places]

    def work() -> Mapping[str, Any]:
        name = networks.setting.name
        figures = {
            method: validation_figures(read(name, f"{place}{file_name(method, 0)}")) for method, place in places.items()
        }
        return {"chosen": best_of(figures), "figures": figures}

    return extra(networks, "chosen", work, after)


def validation_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """What a results file says of the validation sets, and the cost."""
    known = result["validation"]
    return {
        "accuracy": known["answers"]["accuracy"],
        "nll": known["answers"]["nll"],
        "auroc": known["ood"]["msp"]["auroc"],
        "mult_adds": float(result["cost"]["mult_adds"]),
    }


def best_of(figures: Mapping[str, Mapping[str, float]]) -> str | None:
    """The candidate that the rule chooses; None where none is cheap and accurate enough.

    >>> cheap = {"accuracy": 0.9, "nll": 0.3, "auroc": 0.8, "mult_adds": 2.0}
    >>> figures = {"DE(D)+": {**cheap, "mult_adds": 3.0}, "plain": cheap, "better": {**cheap, "auroc": 0.9}}
    >>> best_of(figures), best_of({**figures, "dear": {**cheap, "auroc": 1.0, "mult_adds": 2.9}})
    ('better', 'better')
    """
    reference = figures[REFERENCE]
    can = {
        method: found["auroc"]
        for method, found in figures.items()
        if method != REFERENCE
        and found["mult_adds"] <= MOST_MULT_ADDS * reference["mult_adds"]
        and found["accuracy"] - reference["accuracy"] >= LEAST_ACCURACY
    }
    return max(can, key=lambda method: can[method], default=None)


def chosen_rows(networks: Networks, variants: Sequence[Maker], seeds: Sequence[int]) -> list[str]:
    """The rows of what was chosen, once it is, and their differences; a run after that measures them."""
    found = read(networks.setting.name, "chosen").get("chosen")
    if found is None:
        return []
    (make,) = (make for make in (*IN_TABLE, *variants) if make(networks, 0).method == found)
    rows = [results_unit(networks, replace(make(networks, seed), method=CHOSEN)) for seed in seeds]
    return [*rows, paired(networks, [(CHOSEN, other) for other in BESIDE], seeds, "compared-chosen")]
