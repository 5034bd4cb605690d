"""The rows of the table: by method and seed, whose answers count together, and what that costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.asking import ask_dropout, ask_hydra, ask_network
from evidence.networks import OBJECTIVES, Networks
from hydra_ensembles import fuse
from hydra_ensembles.baselines import ClassifierEnsemble, DeepEnsemble, LoraEnsemble, McDropout
from hydra_ensembles.evaluation.costs import network_cost
from hydra_ensembles.heads import Member
from hydra_ensembles.heads.cost import Cost

PASSES = 10
MOST_MEMBERS = 5
SEEDS = (0, 1, 2)
SEEDS_OF: dict[str, tuple[int, ...]] = {"single": SEEDS, "single+": SEEDS, "DE(D)": SEEDS, "DE(D)+": SEEDS}
SEEDS_OF |= {f"hydra ({kind})": SEEDS for kind in ("Taylor", "circuit", "random heads")}
ONE_SEED = ("DE-heads", "MC Dropout", "LoRA", "Taylor", "CircAvg", "hydra (sampled)", "hydra (joint)")
SEEDS_OF |= dict.fromkeys(ONE_SEED, (0,))


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
        parts = [ask_network(networks, unit, features=unit == f"networks/base-{first}") for unit in units]
        return Row(method, seed, tuple(parts), alone(units), whole)
    if method == "MC Dropout":
        base = networks.base(first)
        part = ask_dropout(networks, f"dropout-{seed}", base, PASSES)
        return Row(method, seed, (part,), lambda: McDropout(networks.load(base), PASSES).cost(setting.tokens), whole)
    if method == "DE-heads":
        units = [networks.classifier(one) for one in several]
        part = ask_hydra(networks, f"classifiers-{seed}", units)

        def shared() -> Cost:
            return ClassifierEnsemble(networks.load(units[0]), setting.members).cost(setting.tokens)

        return Row(method, seed, (part,), shared, whole)
    if method == "LoRA":
        units = [networks.lora(one) for one in several]

        def adapted() -> Cost:
            ensemble = LoraEnsemble(networks.load(units[0]), setting.members)
            ensemble.adapter_params = networks.units.done(units[0])["adapter_params"]
            return ensemble.cost(setting.tokens)

        return Row(method, seed, tuple(ask_network(networks, unit) for unit in units), adapted, whole)
    if method in ("Taylor", "CircAvg"):
        unit = members_of(networks, "taylor" if method == "Taylor" else "circuit", seed)[0]
        return Row(method, seed, (ask_network(networks, unit),), alone([unit]), pruned)
    kind = {"Taylor": "taylor", "random heads": "random"}.get(method[7:-1], method[7:-1])
    return hydra_row(networks, method, kind, seed, members_of(networks, kind, seed), f"{pruned}x{setting.members}")


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


def members_of(networks: Networks, kind: str, seed: int) -> list[str]:
    """The trained members of a kind of hydra."""
    chosen = heads_of(networks, kind, seed)
    return [networks.member(kind, seed, m, chosen) for m in range(networks.setting.members)]


def heads_of(networks: Networks, kind: str, seed: int) -> str:
    """The unit that chooses the heads of a kind of hydra."""
    setting = networks.setting
    remove = setting.layers * setting.heads - setting.keep
    if kind == "taylor":
        rankings = [networks.taylor(seed, sample) for sample in range(setting.members)]
        pool = {"pool": setting.pool} if setting.taylor_scope == "global" else {}
        chosen = networks.selection(kind, seed, rankings, how="calibration", **pool)
    elif kind == "circuit":
        chosen = networks.selection(kind, seed, [networks.circuit(seed, one, remove) for one in OBJECTIVES])
    elif kind == "sampled":
        ranking = networks.circuit(seed, "avg", setting.pool, "circuit-avg-long", networks.circuit(seed, "avg", remove))
        # Five, for the claim on their number; the first three are the same as of three.
        chosen = networks.selection(kind, seed, [ranking], how="sample", pool=setting.pool, members=MOST_MEMBERS)
    elif kind == "joint":
        ranking = networks.circuit(seed, "avg", remove)
        chosen = networks.selection(kind, seed, [ranking], how="joint")
    elif kind == "random":
        chosen = networks.random_heads(seed)
    else:
        raise KeyError(kind)
    return chosen
