"""A hydra as a graph: named tensors in, named tensors out, of any batch size and length of text.

Shapes: B batch, T tokens, M members, C classes.
"""

from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hydra_ensembles.backbones.stems import PatchStem, TokenStem
from hydra_ensembles.errors import HydraError
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.fusion.grouped import MemberStems
from hydra_ensembles.uncertainty import prediction_tensors

IMAGES, IDS, MASK, TYPES = "pixel_values", "input_ids", "attention_mask", "token_type_ids"
BATCH, TEXTS, TOKENS = "batch", "texts", "tokens"
_DEFER = "prefer_deferred_runtime_asserts_over_guards"
"""An option of torch.export that older ones have not."""
_ROWS, _TEXT_ROWS, _LENGTH = 3, 5, 7  # of the inputs to trace with: unlike each other, and none 1


class ExportError(HydraError):
    """A hydra that cannot be exported, or a file that does not answer as it does."""


class Graph(nn.Module):
    """`graph(*inputs)` is every field of a `Prediction` that the hydra has, as a tuple of tensors in this order.

    Images are `pixel_values` `(B, channels, height, width)`; texts `input_ids`, `attention_mask` and, where the model
    has types, `token_type_ids`, all `(B, T)`. Of two towers, the texts' are the classes, with a number of their own.
    """

    def __init__(self, hydra: Hydra):
        super().__init__()
        if not isinstance(hydra, Hydra):
            raise ExportError(f"a {type(hydra).__name__} cannot be exported; fuse members into a hydra first")
        if hydra.ends_in_features:
            raise ExportError("this hydra has no classifier, only features; fuse members that have one")
        self.hydra = hydra
        self.several = len(hydra.towers) > 1
        self.example: dict[str, Tensor] = {}
        """Inputs to trace and try it with, by name."""
        self.shapes: dict[str, dict[int, str]] = {}
        """By input, which of its dimensions have a name instead of a number."""
        self.max_tokens: int | None = None
        for tower in hydra.towers.values():
            stem: Any = tower.stem
            self._take(stem.stems[0] if isinstance(stem, MemberStems) else stem)

    @cached_property
    def outputs(self) -> list[str]:
        """Names of what it returns; it is run once to know them."""
        with torch.no_grad():
            return list(self._found(tuple(self.example.values())))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._found(inputs).values())

    def traced(self) -> ExportedProgram:
        """The graph by torch.export, its named dimensions free."""
        dims: dict[str, Any] = {BATCH: Dim(BATCH, min=1), TEXTS: Dim(TEXTS, min=1)}
        if self.max_tokens is not None:
            dims[TOKENS] = Dim(TOKENS, min=1, max=self.max_tokens)
        if _DEFER not in signature(torch.export.export).parameters:
            raise ExportError(f"torch {torch.__version__} is too old to trace a hydra: its export lacks '{_DEFER}'")
        named = tuple({place: dims[name] for place, name in of.items()} for of in self.shapes.values())
        with torch.no_grad():
            # Where members with parts of their own leave one tensor, torch 2.13 asks whether B * min(D, D * B) == D * B
            # and cannot see that it always is; deferred, it asks at run time.
            return torch.export.export(
                self,
                tuple(self.example.values()),
                dynamic_shapes=(named,),
                prefer_deferred_runtime_asserts_over_guards=True,
            )

    def _found(self, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        named: Any = dict(zip(self.example, inputs, strict=True))
        if self.several:
            named = {"vision": named.pop(IMAGES), "text": named}
        return prediction_tensors(self.hydra.members(named), self.hydra.fitted)

    def _take(self, stem: Any) -> None:
        """What a stem takes, as an example and with the names of its dimensions."""
        sample: Tensor = stem.sample()
        if isinstance(stem, PatchStem):
            self.example[IMAGES] = sample.expand(_ROWS, *sample.shape[1:]).contiguous()
            self.shapes[IMAGES] = {0: BATCH}
            return
        assert isinstance(stem, TokenStem)
        ids = sample.repeat(1, -(-_LENGTH // sample.shape[1]))[:, : min(_LENGTH, stem.max_tokens)]
        ids = ids.expand(_TEXT_ROWS if self.several else _ROWS, -1).contiguous()
        fields = {IDS: ids}
        if not self.several:
            fields |= {MASK: torch.ones_like(ids)} | ({} if stem.types is None else {TYPES: torch.zeros_like(ids)})
        self.max_tokens = stem.max_tokens
        self.example |= fields
        self.shapes |= {name: {0: TEXTS if self.several else BATCH, 1: TOKENS} for name in fields}
