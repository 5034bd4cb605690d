"""The claims that every setting has, and verdicts on those whose figures stand in results files of their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidence.ledger import FAILS, HOLDS, UNDECIDED, Claim, Found, difference_claim, figure_claim
from evidence.methods import SEEDS
from evidence.page import read
from evidence.summary import results_of

CLAIMED = "compared-claims"
"""Differences of one seed."""
CHOSEN = "chosen"
ONE_MEMBER = "hydra (circuit) above its first member alone, CircAvg, in AUROC"


def against(other: str, metric: str, direction: int, **more: Any) -> Callable[[str], Found | None]:
    """Of hydra (circuit), over all seeds."""
    return difference_claim(f"hydra (circuit) minus {other}", metric, direction, **more)


def claimed(pair: str, metric: str, direction: int, **more: Any) -> Callable[[str], Found | None]:
    """Of one seed."""
    return difference_claim(pair, metric, direction, CLAIMED, **more)


def controls(averages: Mapping[str, str]) -> list[Claim]:
    """What the hydra must stand against; `averages` are more of AUROC that it is asked for, by their names."""
    asked = {
        "control: hydra (circuit) within 0.5 of DE(D)+ in AUROC, or above": ("DE(D)+", 0.5),
        "control: hydra (circuit) above single+ in AUROC": ("single+", 0.0),
        "control: hydra (circuit) above random heads in AUROC": ("hydra (random heads)", 0.0),
    }
    found = []
    for says, (other, margin) in asked.items():
        found.append(Claim(says, "ours", "", against(other, "auroc", 1, margin=margin), "compared"))
        for metric, name in averages.items():
            found.append(Claim(f"… {name}", "ours", "", against(other, metric, 1, margin=margin), "compared"))
    says = "control: hydra (circuit) at no more than 0.9 of the multiply-adds of DE(D)+, with every seed"
    found.append(Claim(says, "ours", "", lambda setting: cheap(setting, "hydra (circuit)"), "hydra-circuit-SEED"))
    for one in ("single", "DE(D)"):
        look = difference_claim(f"{one}+ minus {one}", "auroc", 1)
        found.append(Claim(f"the second training alone lifts {one} in AUROC", "ours", "", look, "compared"))
    return found


def cheap(setting: str, method: str, most: float = 0.9, seeds: Sequence[int] = SEEDS) -> Found | None:
    """Does a method need so little of the arithmetic of DE(D)+, with every one of these seeds?"""
    results = results_of(setting) | results_of(f"{setting}/claims")
    ratios = [
        results[method, seed]["cost"]["mult_adds"] / results["DE(D)+", seed]["cost"]["mult_adds"]
        for seed in seeds
        if (method, seed) in results and ("DE(D)+", seed) in results
    ]
    if not ratios:
        return None
    shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    if min(ratios) <= most < max(ratios) or len(ratios) < len(seeds):
        return Found(shown, UNDECIDED)
    return Found(shown, HOLDS if max(ratios) <= most else FAILS)


def chosen(averages: Mapping[str, str]) -> list[Claim]:
    """The goal for users, asked of the hydra that validation data chose; `averages` as for `controls`."""

    def of_chosen(other: str, metric: str, margin: float) -> Callable[[str], Found | None]:
        def look(setting: str) -> Found | None:
            pair = f"{read(setting, CHOSEN).get('chosen')} minus {other}"
            return difference_claim(pair, metric, 1, f"compared-{CHOSEN}", margin=margin)(setting)

        return look

    def name(setting: str) -> Found | None:
        said = read(setting, CHOSEN)
        return Found(str(said["chosen"]), HOLDS if said["chosen"] else FAILS) if said else None

    def cost(setting: str) -> Found | None:
        said = read(setting, CHOSEN)
        return cheap(setting, said["chosen"]) if said.get("chosen") else None

    asked = {"within 0.5 of DE(D)+ in AUROC, or above": ("DE(D)+", 0.5), "above single+ in AUROC": ("single+", 0.0)}
    found = [Claim("goal: a hydra that validation data choose is cheap enough", "ours", "", name, CHOSEN)]
    found.append(Claim("goal: it needs at most 0.9 of DE(D)+'s multiply-adds, every seed", "ours", "", cost, CHOSEN))
    for says, (other, margin) in asked.items():
        for metric, ending in {"auroc": f"goal: it is {says}", **{m: f"… {n}" for m, n in averages.items()}}.items():
            found.append(Claim(ending, "ours", "", of_chosen(other, metric, margin), f"compared-{CHOSEN}"))
    return found


def one_member(where: str, paper: str) -> list[Claim]:
    """What three members give that the first does not; `where` the paper has it, and its difference in AUROC."""
    pair = "hydra (circuit) minus CircAvg"
    look = claimed("CircAvg minus single+", "auroc", 1)
    return [
        Claim(ONE_MEMBER, where, paper, claimed(pair, "auroc", 1), CLAIMED),
        Claim("… in accuracy", "ours", "", claimed(pair, "accuracy", 1), CLAIMED),
        Claim("… and below it in NLL", "ours", "", claimed(pair, "nll", -1, factor=1), CLAIMED),
        Claim("control: CircAvg alone above single+ in AUROC", "ours", "", look, CLAIMED),
    ]


def members() -> list[Claim]:
    """Where the members' difference comes from, and what fusing does to it (Tables 8, 10, 11)."""
    none = "hydra (sampled), differ in none"
    return [
        Claim(
            "fusing MLPs moves AUROC by less than 0.5",
            "Table 11",
            "+0.03",
            claimed("hydra (circuit) minus hydra (circuit), not fused", "auroc", 0, margin=0.5),
            CLAIMED,
        ),
        Claim(
            "other heads lift AUROC",
            "Table 8",
            "+0.71",
            claimed(f"hydra (sampled), differ in heads minus {none}", "auroc", 1),
            CLAIMED,
        ),
        Claim(
            "another batch order alone moves AUROC by less than 0.5",
            "Table 8",
            "+0.03",
            claimed(f"hydra (sampled), differ in order minus {none}", "auroc", 0, margin=0.5),
            CLAIMED,
        ),
        Claim(
            "five members have a higher AUROC than three",
            "Table 10",
            "+0.04",
            claimed("hydra (sampled), 5 members minus hydra (sampled)", "auroc", 1),
            CLAIMED,
        ),
    ]


def inside() -> list[Claim]:
    """What heads do (Table 5, Figure 4, B.1)."""
    return [
        Claim(
            "CircOOD's heads separate known and unknown more",
            "Table 5",
            "1.75 → 2.26, 3.03 → 3.32",
            figure_claim("separation", separates),
            "separation",
        ),
        Claim(
            "heads removed last separate more than those removed first",
            "Figure 4",
            "a picture",
            figure_claim("separation", heads_separate),
            "separation",
        ),
        Claim(
            "pruning is aligned with the gradient on noisy inputs",
            "B.1",
            "1.19, 0.37",
            figure_claim("proposition-1", aligned),
            "proposition-1",
        ),
        Claim(
            "the Hessian's diagonal is larger on noisy inputs, everywhere",
            "B.1",
            "0.45, 0.17",
            figure_claim("proposition-1", curved),
            "proposition-1",
        ),
        Claim(
            "so the loss gap to noisy inputs does not shrink",
            "Proposition 1",
            "≥ 0",
            figure_claim("proposition-1", widens),
            "proposition-1",
        ),
    ]


def beyond(trunk: int) -> list[Claim]:
    """Ours: joint selection and a shared trunk of half the blocks."""
    return [
        Claim(
            "joint selection has a higher AUROC than three circuits",
            "ours",
            "",
            claimed("hydra (joint) minus hydra (circuit)", "auroc", 1),
            CLAIMED,
        ),
        Claim(
            "a shared trunk of half the blocks moves AUROC by less than 0.5",
            "ours",
            "",
            claimed(f"hydra (circuit), trunk of {trunk} minus hydra (circuit)", "auroc", 0, margin=0.5),
            CLAIMED,
        ),
    ]


def separates(found: Mapping[str, Any]) -> Found:
    """Table 5: is CircOOD farther apart than the dense model, by both distances, in the last layer that both have?"""
    dense, circuit = found["last_layer"]["single"], found["last_layer"]["CircOOD"]
    gains = [circuit[name] - dense[name] for name in ("euclidean", "mahalanobis")]
    shown = ", ".join(f"{name} {dense[name]:.2f} → {circuit[name]:.2f}" for name in ("euclidean", "mahalanobis"))
    return Found(shown, HOLDS if min(gains) > 0 else FAILS if max(gains) < 0 else UNDECIDED)


def heads_separate(found: Mapping[str, Any]) -> Found:
    """Figure 4: do the heads removed last separate more than those removed first?"""
    sides = found["heads_of_single"]
    first, last = (sides[side]["mahalanobis"] for side in ("first removed", "last removed"))
    return Found(f"Mahalanobis {last:.2f} last, {first:.2f} first removed", HOLDS if last > first else FAILS)


def aligned(found: Mapping[str, Any]) -> Found:
    """B.1: alignment at least 0, for Taylor as in the paper and for CircAvg."""
    values = {name: found["sets"][name]["alignment"] for name in ("Taylor", "CircAvg")}
    shown = ", ".join(f"{name} {value:+.3f}" for name, value in values.items())
    return Found(shown, HOLDS if min(values.values()) >= 0 else FAILS)


def curved(found: Mapping[str, Any]) -> Found:
    """B.1: the diagonal of the difference of Hessians is positive; each number of it, says the paper."""
    one = found["sets"]["Taylor"]
    shown = f"mean {one['difference']:+.1e} ± {one['difference_error']:.1e}, {100 * one['positive']:.0f} % positive"
    return Found(shown, HOLDS if one["surely_negative"] == 0 and one["difference"] > 0 else FAILS)


def widens(found: Mapping[str, Any]) -> Found:
    """Proposition 1 itself: the loss gap between noisy and clean inputs does not shrink when heads are removed."""
    values = {name: found["sets"][name]["gap_change"] for name in ("Taylor", "CircAvg")}
    shown = ", ".join(f"{name} {value:+.3f}" for name, value in values.items())
    return Found(shown, HOLDS if min(values.values()) >= 0 else FAILS)
