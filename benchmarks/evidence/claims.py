"""The paper's other claims, and ours beyond it, as rows: one seed each, in `results/SETTING/claims/`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evidence.asking import ask_network, asked
from evidence.methods import (
    KINDS,
    MOST_MEMBERS,
    Row,
    cost_of_hydra,
    heads_of,
    hydra_row,
    long_ranking,
    members_of,
    named,
    taylor_scope,
)
from evidence.networks import OBJECTIVES, Networks
from hydra_ensembles import fuse
from hydra_ensembles.baselines import DeepEnsemble
from hydra_ensembles.heads import Member
from hydra_ensembles.heads.cost import Cost

SOURCES = {"heads": (1, 0, 0), "order": (0, 1, 0), "dropout": (0, 0, 1), "order, dropout": (0, 1, 1), "none": (0, 0, 0)}
"""What members differ in, for Tables 8 and 9; all three at once is `hydra (sampled)`."""
CIRCUITS = {"avg": "CircAvg", "acc": "CircAcc", "ood": "CircOOD"}


def without_training(networks: Networks) -> Iterator[Row]:
    """Tables 4 and 6: heads removed, nothing trained."""
    setting = networks.setting
    for place, objective in enumerate(OBJECTIVES):
        yield _untrained(networks, f"{CIRCUITS[objective]}, no training", "circuit", place, setting.keep)
    yield _untrained(networks, "Taylor, no training", "taylor", 0, setting.keep)
    yield _untrained(networks, "random heads, no training", "random", 0, setting.keep)


def swept(networks: Networks, trained: bool = True, in_table: Sequence[int] = ()) -> Iterator[Row]:
    """Figures 5 and 6: Taylor and CircAvg with more and fewer heads, before and after training.

    `in_table` are numbers of heads with which the table has hydras: their first members are those asked about here.
    """
    setting = networks.setting
    for keep in setting.swept:
        for name, kind in (("CircAvg", "circuit"), ("Taylor", "taylor")):
            if kind == "taylor" and setting.taylor_scope == "layer" and keep % setting.layers:
                continue
            is_usual = keep == setting.keep or keep in in_table
            if is_usual:
                chosen = heads_of(networks, kind, 0, keep)
            else:
                scope, taylor = taylor_scope(setting, keep), kind == "taylor"
                order = networks.taylor(0, 0, keep, scope) if taylor else long_ranking(networks, 0)
                chosen = networks.selection(f"swept-{kind}-{keep}", 0, [order], members=1, keep=keep)
            yield _pruned_row(networks, f"{name} {keep} heads, no training", chosen, 0, keep)
            if trained:
                unit = (
                    members_of(networks, kind, 0, keep)[0]
                    if is_usual
                    else networks.member(f"swept-{kind}{keep}", 0, 0, chosen)
                )
                heads = _per_layer(networks, keep)
                yield Row(f"{name} {keep} heads", 0, (ask_network(networks, unit),), _alone(networks, [unit]), heads)


def not_fused(networks: Networks, names: Sequence[str] = ("circuit", "Taylor")) -> Iterator[Row]:
    """Table 11: members before their MLPs are averaged."""
    for name in names:
        units = members_of(networks, KINDS[name], 0)
        parts = tuple(ask_network(networks, unit) for unit in units)
        yield Row(f"hydra ({name}), not fused", 0, parts, _alone(networks, units), _heads(networks))


def sources(networks: Networks, names: Sequence[str] = tuple(SOURCES)) -> Iterator[Row]:
    """Tables 8 and 9: members of hydra (sampled) that differ in some things only."""
    chosen, usual = heads_of(networks, "sampled", 0), members_of(networks, "sampled", 0)
    for name, (heads, order, dropout) in ((name, SOURCES[name]) for name in names):
        units = []
        for m in range(networks.setting.members):
            which = (m * heads, m * order, m * dropout)
            same = len(set(which)) == 1
            unit = (
                usual[which[0]]
                if same
                else networks.varied(
                    f"varied-{''.join(map(str, which))}", which[0], chosen, usual[0], which[1], which[2]
                )
            )
            units.append(unit)
        kind = f"varied-{'-'.join(str(flag) for flag in (heads, order, dropout))}"
        yield hydra_row(networks, f"hydra (sampled), differ in {name}", kind, 0, units, _heads(networks))


def member_counts(networks: Networks) -> Iterator[Row]:
    """Table 10: two and five members; three are hydra (sampled)."""
    chosen = heads_of(networks, "sampled", 0)
    units = [networks.member("sampled", 0, m, chosen) for m in range(MOST_MEMBERS)]
    for number in (2, MOST_MEMBERS):
        heads = f"{networks.setting.keep / networks.setting.layers:g}x{number}"
        yield hydra_row(networks, f"hydra (sampled), {number} members", f"sampled-{number}", 0, units[:number], heads)


def trunk(networks: Networks, seed: int, blocks: int, heads: str = "circuit") -> Row:
    """Ours: the first blocks are shared, circuits are searched behind them, or heads drawn."""
    keep = networks.setting.trunks[blocks]
    kind = _kind(f"trunk{blocks}", heads)
    if heads == "circuit":
        chosen = _trunk_heads(networks, seed, blocks, keep)
    else:
        assert heads == "random heads", heads
        chosen = networks.random_heads(kind, seed, keep, behind=blocks)
    units = [networks.member(kind, seed, m, chosen, freeze_blocks=blocks) for m in range(networks.setting.members)]
    return hydra_row(networks, f"hydra ({heads}), trunk of {blocks}", kind, seed, units, _heads(networks))


def trunks_without_training(networks: Networks) -> Iterator[Row]:
    """Ours: a trunk of any length, behind it the usual share of heads, nothing trained."""
    setting = networks.setting
    for blocks in range(setting.layers):
        keep = round(setting.keep * (setting.layers - blocks) / setting.layers)
        chosen = _trunk_heads(networks, 0, blocks, keep) if blocks else heads_of(networks, "circuit", 0)

        def members(chosen: str = chosen) -> list[Member]:
            return [networks.pruned(0, m, chosen) for m in range(setting.members)]

        part = asked(
            networks,
            f"hydra-untrained-trunk{blocks}-0",
            lambda members=members: fuse(members()),  # type: ignore[misc]
            (networks.base(0), chosen),
        )
        yield Row(
            f"hydra (circuit), trunk of {blocks}, no training",
            0,
            (part,),
            lambda members=members: cost_of_hydra(networks, members()),  # type: ignore[misc]
            _heads(networks),
        )


def _trunk_heads(networks: Networks, seed: int, blocks: int, keep: int) -> str:
    """Three circuits behind a trunk."""
    setting = networks.setting
    remove = (setting.layers - blocks) * setting.heads - keep
    rankings = [
        networks.circuit(
            seed,
            objective,
            remove,
            f"circuit-{objective}-trunk{blocks}",
            layers=range(blocks, setting.layers),
        )
        for objective in OBJECTIVES
    ]
    return networks.selection(f"trunk{blocks}", seed, rankings, keep=keep, trunk=blocks)


def grouped(networks: Networks, seed: int, keep: int | None = None, heads: str = "circuit") -> Row:
    """Ours: every member keeps its own MLPs."""
    units, kind = members_of(networks, KINDS[heads], seed, keep), named(networks, KINDS[heads], keep)
    method = f"{_method(networks, heads, keep)}, grouped"
    return hydra_row(networks, method, kind, seed, units, _heads(networks, keep), "grouped")


def from_pretrained(networks: Networks, seed: int, mlp: str, keep: int | None = None, heads: str = "circuit") -> Row:
    """Ours: members start from the pre-trained network, not the trained one, and get its whole training."""
    chosen, kind = heads_of(networks, KINDS[heads], seed, keep), named(networks, _kind("fresh", heads), keep)
    units = [networks.pretrained_member(kind, seed, m, chosen) for m in range(networks.setting.members)]
    method = f"{_method(networks, heads, keep)}, from pre-trained, {mlp}"
    return hydra_row(networks, method, kind, seed, units, _heads(networks, keep), mlp)


def trained_otherwise(
    networks: Networks,
    seed: int,
    name: str,
    kind: str,
    heads: str = "circuit",
    keep: int | None = None,
    **recipe: Any,
) -> Row:
    """Ours: a hydra with another training after pruning; `heads` says how they are chosen."""
    kind = _kind(kind, heads)
    chosen = heads_of(networks, KINDS[heads], seed, keep)
    units = [networks.member(kind, seed, m, chosen, **recipe) for m in range(networks.setting.members)]
    method = f"{_method(networks, heads, keep)}, {name}"
    return hydra_row(networks, method, kind, seed, units, _heads(networks, keep))


def control_otherwise(networks: Networks, seed: int, method: str, name: str, kind: str, **recipe: Any) -> Row:
    """`single+` or `DE(D)+` with another second training."""
    number = networks.setting.members if method.startswith("DE") else 1
    units = [networks.plus(10 * seed + m, kind, **recipe) for m in range(number)]
    parts = tuple(ask_network(networks, unit) for unit in units)
    return Row(f"{method}, {name}", seed, parts, _alone(networks, units), str(networks.setting.heads))


def own_bases(networks: Networks, seed: int, keep: int, mlp: str, heads: str = "circuit") -> Row:
    """Ours: each member comes from another network of DE(D), with the heads that were chosen for the first."""
    kind = f"{_kind('ownbase', heads)}{keep}"
    chosen = heads_of(networks, KINDS[heads], seed, keep)
    units = [networks.member(kind, seed, m, chosen, base=10 * seed + m) for m in range(networks.setting.members)]
    name = f"hydra ({heads}), own bases, {keep} heads, {mlp}"
    return hydra_row(networks, name, kind, seed, units, _heads(networks, keep), mlp)


def other_search(networks: Networks, name: str, **other: Any) -> Iterator[Row]:
    """CircAvg searched on other rows, before and after training."""
    setting = networks.setting
    slug = name.replace(" ", "-")
    ranking = networks.circuit(0, "avg", setting.to_remove, f"circuit-avg-{slug}", **other)
    chosen = networks.selection(slug, 0, [ranking], members=1)
    yield _pruned_row(networks, f"CircAvg, {name}, no training", chosen, 0, setting.keep)
    unit = networks.member(slug, 0, 0, chosen)
    part = ask_network(networks, unit)
    yield Row(f"CircAvg, {name}", 0, (part,), _alone(networks, [unit]), _per_layer(networks, setting.keep))


def _untrained(networks: Networks, method: str, kind: str, m: int, keep: int) -> Row:
    return _pruned_row(networks, method, heads_of(networks, kind, 0), m, keep)


def _pruned_row(networks: Networks, method: str, chosen: str, m: int, keep: int) -> Row:
    name = f"pruned-{chosen.removeprefix('heads/')}-{m}"

    def build() -> Member:
        return networks.pruned(0, m, chosen)

    part = asked(networks, name, build, (networks.base(0), chosen))
    return Row(
        method, 0, (part,), lambda: DeepEnsemble([build()]).cost(networks.setting.tokens), _per_layer(networks, keep)
    )


def _kind(kind: str, heads: str) -> str:
    """Networks of a variant with other heads than circuits have another name."""
    return kind if heads == "circuit" else f"{kind}-{KINDS[heads]}"


def _alone(networks: Networks, units: Sequence[str]) -> Callable[[], Cost]:
    return lambda: DeepEnsemble([networks.load(unit) for unit in units]).cost(networks.setting.tokens)


def _per_layer(networks: Networks, keep: int) -> str:
    return f"{keep / networks.setting.layers:g}"


def _heads(networks: Networks, keep: int | None = None) -> str:
    return f"{_per_layer(networks, keep or networks.setting.keep)}x{networks.setting.members}"


def _method(networks: Networks, heads: str, keep: int | None) -> str:
    return f"hydra ({heads})" if keep in (None, networks.setting.keep) else f"hydra ({heads}), {keep} heads"
