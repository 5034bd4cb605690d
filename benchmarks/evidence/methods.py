"""The rows of the table: by method and seed, whose answers count together, and what that costs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from evidence.asking import ask_hydra, ask_network, asked
from evidence.networks import OBJECTIVES, RANK, Networks
from evidence.setting import Setting
from hydra_ensembles import fuse
from hydra_ensembles.baselines import (
    BatchEnsemble,
    ClassifierEnsemble,
    DeepEnsemble,
    LoraEnsemble,
    McDropout,
    Mimo,
    PackedEnsemble,
    UnstructuredPruning,
)
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import Member
from hydra_ensembles.heads.cost import Cost

PASSES = 10
MOST_MEMBERS = 5
SEEDS = (0, 1, 2)
SEEDS_OF: dict[str, tuple[int, ...]] = {"single": SEEDS, "single+": SEEDS, "DE(D)": SEEDS, "DE(D)+": SEEDS}
SEEDS_OF |= {f"hydra ({kind})": SEEDS for kind in ("Taylor", "circuit", "random heads")}
ONE_SEED = ("Taylor", "CircAvg", "DE-heads", "MC Dropout", "LoRA", "hydra (sampled)", "hydra (joint)")
SEEDS_OF |= dict.fromkeys(ONE_SEED, (0,))
KINDS = {"Taylor": "taylor", "circuit": "circuit", "sampled": "sampled", "joint": "joint", "random heads": "random"}
"""Of hydras, by how their heads are chosen; with `, N heads` behind it, a method keeps so many."""
REBUILT: dict[str, Callable[[nn.Module, int], nn.Module]] = {
    "Packed-Ensembles": PackedEnsemble,
    "MIMO": lambda model, members: Mimo(model, members, input_repetition=0.5),
    "BatchEnsemble": BatchEnsemble,
}
"""Baselines that rebuild the pre-trained model; a setting says which of them it has."""


_TRUNK = re.compile(r", trunk of (\d+)")


def trunk_of(method: str) -> int | None:
    """Blocks that are shared by intent; None where a row's name speaks of none.

    >>> trunk_of("hydra (circuit), trunk of 4, no training"), trunk_of("hydra (circuit)")
    (4, None)
    """
    matched = _TRUNK.search(method)
    return int(matched[1]) if matched else None


def file_name(method: str, seed: int) -> str:
    """A method's results file; `+` is part of some names."""
    return f"{re.sub(r'[^a-z0-9+]+', '-', method.lower()).strip('-').replace('-+', '+')}-{seed}"


@dataclass(frozen=True)
class Row:
    """One method with one seed."""

    method: str
    seed: int
    parts: tuple[str, ...]
    """Units whose answers count together."""
    cost: Callable[[], Cost]
    heads: str
    """Kept, as the paper's tables have it."""
    members: tuple[str, ...] = ()
    """Networks of a hydra before fusion."""


def row(networks: Networks, method: str, seed: int) -> Row:
    """The units of a row are added to the networks' units."""
    setting, first = networks.setting, 10 * seed
    several = range(first, first + setting.members)
    whole, pruned = str(setting.heads), f"{setting.keep / setting.layers:g}"

    def alone(units: Sequence[str]) -> Callable[[], Cost]:
        return lambda: DeepEnsemble([networks.load(unit) for unit in units]).cost(setting.tokens)

    if method in ("single", "single+", "DE(D)", "DE(D)+"):
        make = networks.plus if method.endswith("+") else networks.base
        units = [make(one) for one in (several if method.startswith("DE") else [first])]
        # Detectors look at the features of training rows, of `single` alone.
        looked_at = None if setting.base is None else f"networks/base-{first}"
        parts = [ask_network(networks, unit, features=unit == looked_at) for unit in units]
        return Row(method, seed, tuple(parts), alone(units), whole)
    if method == "MC Dropout":
        unit = networks.dropping(first)

        def dropping() -> McDropout:
            return McDropout(networks.load(unit), PASSES, setting.dropout)

        part = asked(networks, f"mc-dropout-{seed}", dropping, (unit,))
        return Row(method, seed, (part,), lambda: dropping().cost(setting.tokens), whole)
    if method == "DE-heads":
        units = [networks.classifier(one) for one in several]
        part = ask_hydra(networks, f"classifiers-{seed}", units)

        def shared() -> Cost:
            return ClassifierEnsemble(networks.load(units[0]), setting.members).cost(setting.tokens)

        return Row(method, seed, (part,), shared, whole)
    if method == "LoRA":
        units = [networks.lora(one) for one in several]

        def adapted() -> Cost:
            return LoraEnsemble(networks.load(units[0]), setting.members, RANK).cost(setting.tokens)

        return Row(method, seed, tuple(ask_network(networks, unit) for unit in units), adapted, whole)
    if method in REBUILT or method == "unstructured":
        return _rebuilt_row(networks, method, seed)
    if method in ("Taylor", "CircAvg"):
        unit = members_of(networks, "taylor" if method == "Taylor" else "circuit", seed)[0]
        return Row(method, seed, (ask_network(networks, unit),), alone([unit]), pruned)
    kind, keep = hydra_of(networks, method)
    units, heads = members_of(networks, kind, seed, keep), f"{keep / setting.layers:g}x{setting.members}"
    return hydra_row(networks, method, named(networks, kind, keep), seed, units, heads)


def hydra_of(networks: Networks, method: str) -> tuple[str, int]:
    """How the heads of a hydra are chosen, and how many stay."""
    matched = re.fullmatch(r"hydra \((.+)\)(?:, (\d+) heads)?", method)
    assert matched is not None, f"'{method}' is not known"
    return KINDS[matched[1]], networks.setting.keep if matched[2] is None else int(matched[2])


def hydra_row(
    networks: Networks, method: str, kind: str, seed: int, units: Sequence[str], heads: str, mlp: str = "average"
) -> Row:
    """Members fused into one network."""
    name = f"hydra-{kind}-{seed}" if mlp == "average" else f"hydra-{kind}-{mlp}-{seed}"
    part = ask_hydra(networks, name, units, mlp)

    def fused() -> Cost:
        members = [networks.load(unit) for unit in units]
        return cost_of_hydra(networks, members, mlp)

    return Row(method, seed, (part,), fused, heads, tuple(units))


def cost_of_hydra(networks: Networks, members: Sequence[Member], mlp: str = "average") -> Cost:
    """Parameters of the fused network as it is; multiply-adds with a full last block and its trunk."""
    return network_cost(fuse(members, mlp=mlp, last_block="full"), networks.setting.load(0), networks.setting.tokens)


def _rebuilt_row(networks: Networks, method: str, seed: int) -> Row:
    """A baseline with a network of its own."""
    setting, first = networks.setting, 10 * seed

    def start() -> Any:
        if method == "unstructured":
            base = networks.load(networks.base(first))
            return UnstructuredPruning(base, setting.sparsity, "hessian", setting.calibration(base, 0))
        return REBUILT[method](setting.load(first), setting.members)

    slug = re.sub("[^a-z]", "", method.lower())
    unit = networks.sparse(seed, start) if method == "unstructured" else networks.baseline(slug, first, start)

    def build() -> Any:
        return networks.load_method(unit, start)

    part = asked(networks, f"{slug}-{seed}", build, (unit,))
    return Row(method, seed, (part,), lambda: build().cost(setting.tokens), str(setting.heads))


def members_of(networks: Networks, kind: str, seed: int, keep: int | None = None) -> list[str]:
    """The trained members of a kind of hydra."""
    chosen, name = heads_of(networks, kind, seed, keep), named(networks, kind, keep)
    return [networks.member(name, seed, m, chosen) for m in range(networks.setting.members)]


def named(networks: Networks, kind: str, keep: int | None) -> str:
    """A kind of hydra with another number of heads than usual has another name."""
    return kind if keep in (None, networks.setting.keep) else f"{kind}{keep}"


def heads_of(networks: Networks, kind: str, seed: int, keep: int | None = None) -> str:
    """The unit that chooses the heads of a kind of hydra."""
    setting, name = networks.setting, named(networks, kind, keep)
    keep = keep or setting.keep
    if kind == "taylor":
        scope = taylor_scope(setting, keep)
        samples = setting.members if scope == "global" else setting.samples or setting.members
        rankings = [networks.taylor(seed, sample, keep, scope) for sample in range(samples)]
        pool = {"pool": setting.pool} if scope == "global" else {}
        members = min(setting.members, samples)
        return networks.selection(name, seed, rankings, how="calibration", keep=keep, members=members, **pool)
    if kind == "circuit":
        rankings = [networks.circuit(seed, one, setting.to_remove) for one in OBJECTIVES]
        return networks.selection(name, seed, rankings, keep=keep)
    if kind == "sampled":
        # Five, for the claim on their number; the first three are the same as of three.
        ranking = long_ranking(networks, seed)
        return networks.selection(
            name, seed, [ranking], how="sample", pool=setting.pool, members=MOST_MEMBERS, keep=keep
        )
    if kind == "joint":
        ranking = networks.circuit(seed, "avg", setting.to_remove)
        return networks.selection(name, seed, [ranking], how="joint", keep=keep)
    if kind == "random":
        return networks.random_heads(name, seed, keep)
    raise KeyError(kind)


def taylor_scope(setting: Setting, keep: int) -> str:
    """Per layer wherever that is possible at another number of heads than usual, as the paper has it."""
    return setting.taylor_scope if keep == setting.keep or keep % setting.layers else "layer"


def long_ranking(networks: Networks, seed: int) -> str:
    """CircAvg, searched on until a pool is removed (B.5)."""
    setting = networks.setting
    shorter = networks.circuit(seed, "avg", setting.to_remove)
    return networks.circuit(seed, "avg", setting.pool, "circuit-avg-long", shorter)
