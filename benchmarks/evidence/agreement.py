"""Claims that compare figures of results files pair by pair, over seeds or over numbers of heads.

Such a claim holds if every pair says so, it does not hold if every pair says the opposite, and else it is undecided;
fewer than three pairs decide nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, TypeAlias

from evidence.choosing import CONTROL_SEEDS
from evidence.ledger import FAILS, HOLDS, UNDECIDED, Claim, Found
from evidence.page import read
from evidence.summary import results_of
from evidence.verdicts import CHOSEN, ONE_MEMBER

Results: TypeAlias = Mapping[tuple[str, int], Mapping[str, Any]]
Pairs: TypeAlias = Callable[[Results], Iterator[tuple[float, float]]]
Pick: TypeAlias = Callable[[Mapping[str, Any]], float]
"""A figure of a column of a results file."""
FEWEST_PAIRS = 3
HYDRA, OTHER = "hydra (circuit)", "DE(D)"


def agreed(pairs: Sequence[tuple[float, float]]) -> str:
    """Is the first of each pair the larger?

    >>> more, less = (2.0, 1.0), (1.0, 2.0)
    >>> agreed([more] * 3), agreed([less] * 3), agreed([more] * 2), agreed([more, more, less])
    ('holds', 'does not hold here', 'undecided', 'undecided')
    """
    if len(pairs) < FEWEST_PAIRS:
        return UNDECIDED
    if all(first > second for first, second in pairs):
        return HOLDS
    return FAILS if all(first < second for first, second in pairs) else UNDECIDED


def agreement(
    pairs: Pairs, needed: Sequence[str], decimals: int = 2, last_seed: int = 0
) -> Callable[[str], Found | None]:
    """A claim that the first of each pair is larger; None until the rows that it needs are there, up to a seed."""

    def look(setting: str) -> Found | None:
        results = results_of(setting) | results_of(f"{setting}/claims")
        if any((method, last_seed) not in results for method in needed):
            return None
        found = list(pairs(results))
        means = [fmean(values) for values in zip(*found, strict=True)]
        above = sum(first > second for first, second in found)
        shown = f"{means[0]:.{decimals}f} against {means[1]:.{decimals}f} (more in {above} of {len(found)})"
        return Found(shown, agreed(found))

    return look


def one_member(where: str, paper: str) -> list[Claim]:
    """What three members give that the first of them does not, where the networks are gone that intervals need.

    One pair of figures decides nothing. `where` the paper has it, and its difference in AUROC.
    """

    def beside(first: str, second: str, pick: Pick, decimals: int = 2) -> Callable[[str], Found | None]:
        def look(setting: str) -> Found | None:
            results = results_of(setting)
            if any((method, 0) not in results for method in (first, second)):
                return None
            one, other = (pick(_column(results[method, 0])) for method in (first, second))
            return Found(f"{one:.{decimals}f} against {other:.{decimals}f}, one seed", UNDECIDED)

        return look

    def auroc(column: Mapping[str, Any]) -> float:
        return 100 * float(column["ood"]["msp"]["average"]["auroc"])

    def accuracy(column: Mapping[str, Any]) -> float:
        return 100 * float(column["answers"]["accuracy"])

    def nll(column: Mapping[str, Any]) -> float:
        return float(column["answers"]["nll"])

    file = "circavg-0"
    return [
        Claim(ONE_MEMBER, where, paper, beside(HYDRA, "CircAvg", auroc), file),
        Claim("… in accuracy", "ours", "", beside(HYDRA, "CircAvg", accuracy), file),
        Claim("… and below it in NLL", "ours", "", beside(HYDRA, "CircAvg", nll, 3), file),
        Claim("control: CircAvg alone above single+ in AUROC", "ours", "", beside("CircAvg", "single+", auroc), file),
    ]


def scores() -> list[Claim]:
    """What tells unknown inputs best, and what a temperature does; a pair a seed."""
    return [
        Claim(
            "mutual information of hydra (circuit) has a higher AUROC than its MSP",
            "ours",
            "",
            agreement(lambda found: _scored(found, "mutual_information"), [HYDRA]),
            "hydra-circuit-SEED",
        ),
        Claim(
            "energy of hydra (circuit) has a higher AUROC than its MSP",
            "ours",
            "",
            agreement(lambda found: _scored(found, "energy"), [HYDRA]),
            "hydra-circuit-SEED",
        ),
        Claim(
            "MSP of hydra (circuit) has a higher AUROC than Mahalanobis distance in single",
            "ours",
            "",
            agreement(_against_features, [HYDRA, "single"]),
            "hydra-circuit-SEED",
        ),
        Claim(
            "a temperature lowers the NLL of hydra (circuit) further",
            "ours",
            "",
            agreement(lambda found: _tempered(found, "nll"), [HYDRA], decimals=3),
            "hydra-circuit-SEED",
        ),
        Claim(
            "… and its ECE",
            "ours",
            "",
            agreement(lambda found: _tempered(found, "ece"), [HYDRA], decimals=3),
            "hydra-circuit-SEED",
        ),
    ]


def control_of_chosen(picks: Mapping[str, Pick]) -> list[Claim]:
    """Is the hydra that validation data chose above as many random heads? A pair a seed; `picks` by what a claim says.

    Intervals would need networks that are gone; two seeds decide nothing, but show their figures.
    """

    def claim(says: str, pick: Pick) -> Claim:
        def look(setting: str) -> Found | None:
            said = read(setting, CHOSEN)
            if not said.get("control"):
                return None
            first, second = said["chosen"], said["control"]

            def pairs(found: Results) -> Iterator[tuple[float, float]]:
                for seed in CONTROL_SEEDS:
                    one, other = (100 * pick(_column(found[method, seed])) for method in (first, second))
                    yield one, other

            return agreement(pairs, [first, second], last_seed=CONTROL_SEEDS[-1])(setting)

        return Claim(says, "ours", "", look, "claims/")

    return [claim(says, pick) for says, pick in picks.items()]


def seeds() -> list[Claim]:
    """Table 12: is hydra (circuit) steady over seeds?"""

    def spread(found: Results, method: str, metric: str) -> float:
        return stdev(_figure(found[method, seed], metric) for seed in _seeds(found, method))

    def spreads(found: Results) -> Iterator[tuple[float, float]]:
        for metric in ("accuracy", "auroc"):
            yield spread(found, OTHER, metric), spread(found, HYDRA, metric)

    return [
        Claim(
            "DE(D) varies more over seeds than hydra (circuit), in accuracy and in AUROC (deviation)",
            "Table 12",
            "± 0.04, ± 0.23",
            agreement(spreads, [HYDRA, OTHER], last_seed=2),
            "summary",
        )
    ]


def sweep(numbers: Sequence[int]) -> list[Claim]:
    """Figures 5, 6: CircAvg against Taylor with more and fewer heads; a pair a number of heads."""

    def claim(says: str, figure: str, ending: str, metric: str, first: str, second: str) -> Claim:
        def pairs(found: Results) -> Iterator[tuple[float, float]]:
            for number in numbers:
                one, other = (found[f"{kind} {number} heads{ending}", 0] for kind in (first, second))
                yield _figure(one, metric), _figure(other, metric)

        needed = [f"{kind} {number} heads{ending}" for kind in (first, second) for number in numbers]
        return Claim(says, figure, "a picture", agreement(pairs, needed), "claims/")

    untrained, circuit, taylor = ", no training", "CircAvg", "Taylor"
    return [
        claim(
            "untrained, CircAvg is more accurate than Taylor at every number of heads",
            "Figure 5",
            untrained,
            "accuracy",
            circuit,
            taylor,
        ),
        claim("… and has a higher AUROC", "Figure 5", untrained, "auroc", circuit, taylor),
        claim(
            "trained, Taylor is more accurate than CircAvg at every number of heads",
            "Figure 6",
            "",
            "accuracy",
            taylor,
            circuit,
        ),
        claim("… and CircAvg has a higher AUROC", "Figure 6", "", "auroc", circuit, taylor),
    ]


def diversity(sources: Sequence[str]) -> list[Claim]:
    """Table 9: which source makes members differ? Heads, or one of the others?"""
    heads, *others = (f"hydra (sampled), differ in {one}" for one in ("heads", *sources))

    def disagreement(found: Results, method: str) -> float:
        return float(_column(found[method, 0])["answers"]["disagreement"])

    def pairs(found: Results) -> Iterator[tuple[float, float]]:
        yield from ((disagreement(found, heads), disagreement(found, other)) for other in others)

    return [
        Claim(
            "members with other heads disagree more than those that differ in anything else",
            "Table 9",
            "0.11 against 0.00 to 0.02",
            agreement(pairs, [heads, *others], decimals=3),
            "claims/",
        )
    ]


def _scored(found: Results, score: str) -> Iterator[tuple[float, float]]:
    for seed in _seeds(found, HYDRA):
        by_score = _column(found[HYDRA, seed])["ood"]
        yield 100 * by_score[score]["average"]["auroc"], 100 * by_score["msp"]["average"]["auroc"]


def _against_features(found: Results) -> Iterator[tuple[float, float]]:
    for seed in _seeds(found, HYDRA):
        distance = _column(found["single", seed])["ood"]["mahalanobis"]
        yield _figure(found[HYDRA, seed], "auroc"), 100 * distance["average"]["auroc"]


def _tempered(found: Results, metric: str) -> Iterator[tuple[float, float]]:
    for seed in _seeds(found, HYDRA):
        column = _column(found[HYDRA, seed])
        yield column["answers"][metric], column["tempered"][metric]


def _seeds(found: Results, method: str) -> list[int]:
    return [seed for name, seed in found if name == method]


def _column(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures with the first set of known tests."""
    first: Mapping[str, Any] = next(iter(result["columns"].values()))
    return first


def _figure(result: Mapping[str, Any], metric: str) -> float:
    """In percent."""
    column = _column(result)
    found = column["answers"]["accuracy"] if metric == "accuracy" else column["ood"]["msp"]["average"][metric]
    return 100 * float(found)
