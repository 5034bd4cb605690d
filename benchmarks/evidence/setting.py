"""A setting: the pre-trained model, its data and its training, on which all methods are compared."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from hydra_ensembles.data import Batches
from hydra_ensembles.members import Recipe

_MULTIPLIES_IN_BF16 = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
FASTER = os.environ.get("HYDRA_TRAIN_IN") or ("bf16" if _MULTIPLIES_IN_BF16 else "fp32")
"""In which networks are trained: a processor that does not multiply in bf16 takes four times as long with it.

`HYDRA_TRAIN_IN=fp32` trains on any processor as on those: for rows beside others that were trained so.
"""


@dataclass(frozen=True)
class Setting:
    """Everything that the methods have in common.

    Data are functions of a model, which says how its inputs are prepared.
    """

    name: str
    kept: Path
    """Where networks, rankings and answers are kept; not part of the repository."""
    load: Callable[[int], nn.Module]
    """The pre-trained model with a new classifier, drawn with a seed."""
    train: Callable[[nn.Module, int], Batches]
    """All training rows, in the order of a seed."""
    tune: Callable[[nn.Module, int], Batches]
    """The rows of the training after pruning."""
    calibration: Callable[[nn.Module, int], Batches]
    """The m-th of several disjoint samples of training rows, for Taylor scores."""
    known_val: Callable[[nn.Module], Batches]
    unknown_val: Callable[[nn.Module], Batches]
    known_search: Callable[[nn.Module], Batches]
    unknown_search: Callable[[nn.Module], Batches]
    tests: Callable[[nn.Module], Mapping[str, Batches]]
    """Every test set by name; known ones first."""
    known_tests: Mapping[str, tuple[str, ...]]
    """By name of a column: the sets that are known inputs there."""
    groups: Mapping[str, tuple[str, ...]]
    """`near` and `far`, which make the average, and `apart`."""
    base: Recipe | None
    """None: the pre-trained model is taken as it is, and nothing is trained."""
    post: Recipe | None
    """The training after pruning, which controls get too."""
    rates: tuple[float, ...]
    """Learning rates of whatever starts from the pre-trained model."""
    layers: int
    heads: int
    """Of each layer, before pruning."""
    keep: int
    pool: int
    """Heads that a ranking removes of which members lose some (B.5: R)."""
    rates_of: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Those of kinds of networks that need others."""
    samples: int | None = None
    """Disjoint samples for Taylor rankings per layer, of which the first that differ are taken; None: one a member."""
    searched: int = 0
    """First validation rows, which choices between variants do not see, as searches did."""
    post_rates: tuple[float, ...] | None = None
    """Those of the training after pruning; None: the same."""
    same_rate: str | None = None
    """`"plus"`: second trainings have the rate that is best for unpruned networks; None: each kind has its own best."""
    swept: tuple[int, ...] = ()
    """Heads kept in Figures 5 and 6."""
    trunks: Mapping[int, int] = field(default_factory=dict)
    """By number of shared blocks, half and two thirds of all: heads kept behind them, the usual share."""
    removed: int | None = None
    """Heads that a circuit's ranking removes; None: all but those kept."""
    taylor_scope: str = "layer"
    """`"layer"`: a Taylor ranking removes as many heads in every layer; `"global"`: wherever they count least."""
    more_methods: tuple[str, ...] = ()
    """Rows of the table that only this setting has, of one seed."""
    sparsity: float = 0.0
    """The share of weights that unstructured pruning removes."""
    dropout: float | None = None
    """Of MC Dropout; None: the pre-trained model has dropout of its own, and `single` is asked with it."""
    shifts: Callable[[nn.Module], Mapping[str, Batches]] | None = None
    """Corrupted test sets by name, `corruption/severity`."""
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More averages of AUROC, by name: over these unknown sets."""
    tokens: int | None = None
    """Of an input whose multiply-adds are counted."""
    members: int = 3
    asked_in: str = "fp32"
    """`"bf16"`: every network answers under autocast, in less than half of the time; searches stay in fp32."""

    @property
    def all_heads(self) -> int:
        return self.layers * self.heads

    @property
    def to_remove(self) -> int:
        """Heads that a circuit's ranking removes."""
        return self.all_heads - self.keep if self.removed is None else self.removed
