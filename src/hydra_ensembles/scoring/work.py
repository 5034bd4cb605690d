"""What a search spends, in block forwards, and the least that it could.

One block forward is the multiply-adds of one block with all its heads, for one input, all tokens. The stem and the
readout are not counted. Shapes: T tokens, S tokens computed.
"""

from collections.abc import Iterable

from hydra_ensembles.backbones import Backbone, Block, Tower
from hydra_ensembles.heads import Head, HeadSet
from hydra_ensembles.heads.cost import attention_cost, block_cost, mlp_cost, tokens_read


class Work:
    """A running sum of block forwards; `full` has every head that the model was built with."""

    def __init__(self, full: HeadSet, block_forwards: float = 0.0):
        self.full, self.block_forwards = full.full(), block_forwards

    def add(self, tower: str, layer: int, block: Block, T: int, mult_adds: float) -> None:
        """Count multiply-adds spent in a block on inputs of T tokens."""
        heads = len(self.full[tower][layer])
        self.block_forwards += mult_adds / block_cost(block, T, T, heads).mult_adds


def plain_block_forwards(candidates_by_step: Iterable[int], layers: int, rows: int) -> float:
    """Algorithm 1 as printed: every candidate of every step runs every block on every row."""
    return float(sum(candidates_by_step) * layers * rows)


def least_block_forwards(
    backbone: Backbone, start: HeadSet, removed: Iterable[Head], candidates: Iterable[Head], tokens: dict[str, int]
) -> float:
    """The least that reuse of prefixes allows for one input, for the ranking found.

    Every step passes once through the network, and every candidate computes what follows the attention of its layer,
    with the heads that are left and, in the last block, the tokens that are read.
    """
    left, keep, total = set(candidates), start, 0.0
    for gone in removed:
        for name, tower in backbone.towers.items():
            suffix = _suffixes(name, tower, keep, tokens[name])
            total += suffix[0][1]
            total += sum(suffix[head.layer][0] for head in left if head.tower == name)
        keep, left = keep.without([gone]), left - {gone}
    return total


def _suffixes(name: str, tower: Tower, keep: HeadSet, T: int) -> list[tuple[float, float]]:
    """By layer, the block forwards from behind its attention, and from its input, to the end."""
    found: list[tuple[float, float]] = []
    behind = 0.0
    for layer in reversed(range(len(tower.blocks))):
        block = tower.blocks[layer]
        assert isinstance(block, Block)
        S = tokens_read(tower.readout, T) if layer == len(tower.blocks) - 1 else T
        whole = block_cost(block, T, T, len(keep.full()[name][layer])).mult_adds
        finish = mlp_cost(block.mlp, S).mult_adds / whole
        attention = attention_cost(block, T, S, len(keep[name][layer])).mult_adds / whole
        found.append((behind + finish, behind + finish + attention))
        behind += finish + attention
    return found[::-1]
