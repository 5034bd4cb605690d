"""What a network costs: parameters and multiply-adds, of one network and of a hydra before it is built.

Multiply-adds are those of matrix products, the patch convolution, QK^T and AV, per input; norms, activations and
softmax are not counted. Shapes: T tokens, S tokens read, D width, H heads, K head dim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from hydra_ensembles.backbones import Backbone, Block, Tower
from hydra_ensembles.backbones.parts import FeedForward, Norm, Scale
from hydra_ensembles.backbones.readouts import Readout
from hydra_ensembles.backbones.stems import PatchStem
from hydra_ensembles.backbones.zero_shot import Prompted
from hydra_ensembles.heads.head_set import HeadSet, HeadSetError

DEFAULT_TEXT_TOKENS = 128


@dataclass(frozen=True)
class Cost:
    """Parameters, and multiply-adds per input."""

    params: int
    mult_adds: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.params + other.params, self.mult_adds + other.mult_adds)

    def to_json(self) -> dict[str, int]:
        """The two numbers by name."""
        return {"params": self.params, "mult_adds": self.mult_adds}


NOTHING = Cost(0, 0)


def tokens_of(tower: Tower, text_tokens: int | None = None) -> int:
    """Tokens per input: fixed for images and causal text (its context length), 128 for other text unless said."""
    stem = tower.stem
    if isinstance(stem, PatchStem):
        return stem.num_tokens
    if isinstance(stem, Prompted):
        return int(stem.prompts.shape[-1])
    return min(text_tokens or (stem.max_tokens if stem.causal else DEFAULT_TEXT_TOKENS), stem.max_tokens)


def single_cost(backbone: Backbone, keep: HeadSet | None = None, text_tokens: int | None = None) -> Cost:
    """One network, with the heads it has or with fewer."""
    return hydra_cost(backbone, [HeadSet.all(backbone) if keep is None else keep], text_tokens=text_tokens)


def hydra_cost(
    backbone: Backbone,
    keeps: Sequence[HeadSet],
    trunk: int | Mapping[str, int] = 0,
    last_block: str = "full",
    text_tokens: int | None = None,
) -> Cost:
    """Members fused into one network, for members that were fine-tuned after pruning.

    Attention, norms and classifier are each member's own, the stem is shared, MLPs are averaged and run once a
    member. The first `trunk` blocks (one number, or one a tower) are shared and keep all their heads.
    `last_block="read"` computes only the tokens that the readout reads there.
    """
    total = NOTHING
    for name, tower in backbone.towers.items():
        shared = trunk if isinstance(trunk, int) else trunk.get(name, 0)
        found = _tower_cost(tower, [keep[name] for keep in keeps], shared, last_block, text_tokens)
        # A tower that looks at prompts runs once, not once an input.
        total += Cost(found.params, 0) if name in backbone.fixed else found
    if backbone.contrast is not None:
        total += Cost(len(keeps) * _params(backbone.contrast), 0)
    return total


def _tower_cost(
    tower: Tower, keeps: Sequence[Sequence[Sequence[int]]], trunk: int, last_block: str, text_tokens: int | None
) -> Cost:
    """One tower of all members; `keeps` are each member's heads by layer."""
    T, total = tokens_of(tower, text_tokens), stem_cost(tower)
    for layer, block in enumerate(tower.blocks):
        assert isinstance(block, Block)
        is_last_read = layer == len(tower.blocks) - 1 and last_block == "read"
        S = tokens_read(tower.readout, T) if is_last_read else T
        if layer < trunk:
            total += block_cost(block, T, S)
            continue
        mlp = mlp_cost(block.mlp, S)
        total += Cost(mlp.params, len(keeps) * mlp.mult_adds)
        for keep in keeps:
            total += attention_cost(block, T, S, len(keep[layer])) + Cost(norm_params(block), 0)
    for _ in keeps:
        total += readout_cost(tower.readout, T)
    return total


def stem_cost(tower: Tower) -> Cost:
    """The patch convolution; looking tokens up costs no multiply-adds."""
    stem = tower.stem
    return Cost(_params(stem), stem.num_patches * stem.weight.numel() if isinstance(stem, PatchStem) else 0)


def block_cost(block: Block, T: int, S: int, heads: int | None = None) -> Cost:
    """Attention with `heads` heads (all, by default), norms and MLP."""
    return attention_cost(block, T, S, heads) + Cost(norm_params(block), 0) + mlp_cost(block.mlp, S)


def attention_cost(block: Block, T: int, S: int, heads: int | None = None) -> Cost:
    """Queries of S tokens over keys and values of T, with `heads` heads."""
    attention = block.attention
    H = attention.num_heads if heads is None else heads
    K, D = attention.head_dim, attention.out.out_features
    gate = 0 if attention.gate is None else S * D * K
    per_head = S * D * K + 2 * T * D * K + 2 * S * T * K + S * K * D + gate
    # Rows of W_q, W_k, W_v, columns of W_O and their like belong to a head; W_O's bias and q/k-norms to the layer.
    layer_params = sum(_params(m) for m in (attention.q_norm, attention.k_norm) if m is not None)
    layer_params += 0 if attention.out.bias is None else attention.out.bias.numel()
    head_params = (_params(attention) - layer_params) // max(attention.num_heads, 1)
    return Cost(layer_params + H * head_params, H * per_head)


def mlp_cost(mlp: FeedForward, S: int) -> Cost:
    """The linear layers of an MLP on S tokens; a norm inside it counts with the block's norms."""
    layers = [layer for layer in (mlp.fc_in, mlp.fc_gate, mlp.fc_out) if layer is not None]
    return Cost(sum(_params(layer) for layer in layers), S * sum(layer.weight.numel() for layer in layers))


def norm_params(block: Block) -> int:
    """Norms and LayerScale of a block, those inside attention left out."""
    inside = {id(m) for m in block.attention.modules()}
    return sum(_params(m) for m in block.modules() if isinstance(m, Norm | Scale) and id(m) not in inside)


def readout_cost(readout: Readout, T: int) -> Cost:
    """Pooling, hidden layer and classifier."""
    mult_adds = sum(p.weight.numel() for p in (readout.hidden, readout.classifier) if p is not None)
    if (pool := readout.latent) is not None:
        tokens, D = T - readout.skip, pool.out.out_features
        if pool.qkv is not None:
            mult_adds += (1 + 2 * tokens) * pool.qkv.weight.numel() // 3
        else:
            assert pool.kv is not None
            mult_adds += 0 if pool.q is None else pool.q.weight.numel()
            mult_adds += tokens * pool.kv.weight.numel()
        mult_adds += 2 * tokens * D + pool.out.weight.numel()
        mult_adds += 0 if pool.mlp is None else mlp_cost(pool.mlp, 1).mult_adds
    return Cost(_params(readout), mult_adds)


def predict_costs(
    backbone: Backbone, keep: int, members: int, trunk: int = 0, text_tokens: int | None = None
) -> Mapping[str, Cost]:
    """One network, one pruned member, the hydra of M members, and the hydra as it would really run.

    `keep` heads in every layer. `hydra` has no trunk and a full last block: the paper's Table 7. `hydra_default` has
    the trunk asked for and computes in the last block only what the readout reads.
    """
    heads = HeadSet.first(backbone, keep)
    fewest = min(len(tower.blocks) for tower in backbone.towers.values())
    if members < 1:
        raise HeadSetError(f"a hydra needs at least one member, asked for {members}")
    if not 0 <= trunk <= fewest:
        raise HeadSetError(f"a trunk of {trunk} blocks does not fit the model, which has {fewest}")
    return {
        "single": single_cost(backbone, text_tokens=text_tokens),
        "member": single_cost(backbone, heads, text_tokens),
        "hydra": hydra_cost(backbone, [heads] * members, text_tokens=text_tokens),
        "hydra_default": hydra_cost(backbone, [heads] * members, trunk, "read", text_tokens),
    }


def tokens_read(readout: Readout, T: int) -> int:
    return 1 if readout.pool in ("first", "last", "index") else T - readout.skip


def _params(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
