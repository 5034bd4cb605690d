"""Stems: from images or token ids to the first state. Shapes: B batch, T tokens, D width."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydra_ensembles.backbones.parts import Norm, Part, UnsupportedBackbone, through
from hydra_ensembles.backbones.state import State
from hydra_ensembles.errors import HydraError


class InputError(HydraError):
    """The inputs do not fit the backbone."""


def _pixels(inputs: Any) -> Tensor:
    """The images of a mapping."""
    if not isinstance(inputs, Mapping):
        raise InputError(f"this backbone takes a tensor of images, found {type(inputs).__name__}; see data.prepare")
    if not isinstance(inputs.get("pixel_values"), Tensor):
        raise InputError(f"this backbone takes images, or 'pixel_values'; found {sorted(inputs)}")
    return inputs["pixel_values"]  # type: ignore[no-any-return]


def images_for(model: nn.Module, inputs: Any) -> Tensor:
    """The images of a tensor or a mapping, as the model's own forward takes them: in the dtype of its convolution.

    Whole numbers, token ids too, stay as they are.
    """
    images = inputs if isinstance(inputs, Tensor) else _pixels(inputs)
    if not images.is_floating_point():
        return images
    conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return images if conv is None else images.to(conv.weight.dtype)


class PatchStem(Part):
    """Images `(B, C, height, width)`, or a mapping with `pixel_values`, to patch tokens behind prefix tokens.

    Prefix tokens are CLS, then registers. The position table covers all tokens, or the patches alone
    (`positions_on="patches"`).
    """

    facts: ClassVar[tuple[str, ...]] = ("patch_size", "image_size", "positions_on")

    def __init__(
        self,
        conv: nn.Conv2d,
        image_size: tuple[int, int],
        positions: nn.Parameter | None,
        positions_on: str = "all",
        cls_token: nn.Parameter | None = None,
        registers: nn.Parameter | None = None,
        norm_patches: Norm | None = None,
        norm: Norm | None = None,
    ):
        super().__init__()
        is_padded = conv.padding != "valid" and bool(set(conv.padding) - {0})
        if conv.stride != conv.kernel_size or is_padded or set(conv.dilation) != {1} or conv.groups != 1:
            raise UnsupportedBackbone(f"the patch convolution {conv} does not cut the image into patches side by side")
        self.weight, self.bias = conv.weight, conv.bias
        self.patch_size: list[int] = list(conv.kernel_size)
        self.image_size, self.positions_on = list(image_size), positions_on
        self.positions, self.cls_token, self.registers = positions, cls_token, registers
        self.norm_patches, self.norm = norm_patches, norm

    @property
    def width(self) -> int:
        return len(self.weight)

    def sample(self) -> Tensor:
        """One random image that fits, to try the model with."""
        shape = (1, self.weight.shape[1], *self.image_size)
        image = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        return image.to(self.weight)

    @property
    def num_patches(self) -> int:
        (height, width), (ph, pw) = self.image_size, self.patch_size
        return (height // ph) * (width // pw)

    @property
    def num_prefix(self) -> int:
        return sum(p.numel() // self.width for p in (self.cls_token, self.registers) if p is not None)

    @property
    def num_tokens(self) -> int:
        return self.num_prefix + self.num_patches

    def forward(self, inputs: Tensor | Mapping[str, Any]) -> State:
        images = inputs if isinstance(inputs, Tensor) else _pixels(inputs)
        if not images.is_floating_point():
            raise InputError(f"images of {images.dtype} are not prepared yet; data.prepare(model, images) does it")
        channels = self.weight.shape[1]
        if images.ndim != 4 or list(images.shape[1:]) != [channels, *self.image_size]:
            raise InputError(
                f"this backbone takes images of shape (batch, {channels}, {self.image_size[0]}, "
                f"{self.image_size[1]}), found {tuple(images.shape)}; resize them first"
            )
        x = (
            F.conv2d(images.to(self.weight.dtype), self.weight, self.bias, stride=self.patch_size)
            .flatten(2)
            .transpose(1, 2)
        )
        x = through(self.norm_patches, x)
        # Under autocast patches are bf16 and the rest fp32: what flows on is then fp32, as in the model itself.
        positions = None if self.positions is None else self.positions.reshape(-1, self.width)
        if positions is not None and self.positions_on == "patches":
            x = x + positions
        prefix = [
            p.reshape(1, -1, self.width).expand(x.shape[0], -1, -1)
            for p in (self.cls_token, self.registers)
            if p is not None
        ]
        x = torch.cat([*prefix, x], dim=1)
        if positions is not None and self.positions_on == "all":
            x = x + positions
        return State(through(self.norm, x))


class Rotary(NamedTuple):
    """By how much queries and keys of patches turn."""

    table: Tensor
    """Cosines and sines `(2, patches, K)`."""
    settings: dict[str, Any]
    """What the table was computed from, as JSON: a model that is built again must have the same."""


class RotaryPatchStem(PatchStem):
    """Patches whose queries and keys turn by their position; prefix tokens do not."""

    facts = (*PatchStem.facts, "rotary_settings")
    tables = ("rotary",)
    rotary: Tensor

    def __init__(self, conv: nn.Conv2d, image_size: tuple[int, int], rotary: Rotary, **others: Any):
        super().__init__(conv, image_size, **others)
        self.register_buffer("rotary", rotary.table.detach())
        self.rotary_settings = json.loads(json.dumps(rotary.settings))  # as it comes back from a store

    def forward(self, inputs: Tensor | Mapping[str, Any]) -> State:
        state = super().forward(inputs)
        cos, sin = self.rotary.to(state.tokens.device)
        cos, sin = F.pad(cos, (0, 0, self.num_prefix, 0), value=1.0), F.pad(sin, (0, 0, self.num_prefix, 0))
        return state._replace(rotary=(cos, sin))


class TokenStem(Part):
    """Token ids `(B, T)`, or a mapping with `input_ids` and perhaps `attention_mask`, `token_type_ids`.

    `padding_id`: positions count only the tokens that are not this one, starting behind it (RoBERTa).
    `hidden_id`: without an `attention_mask`, tokens that are this one are not attended to (open_clip's BERT).
    `pool`: where an index readout looks, `"argmax"` (the highest id) or `"eos"` (the first `eos_id`).
    """

    facts = ("causal", "padding_id", "pool", "eos_id", "hidden_id")
    hidden_id: int | None = None

    def __init__(
        self,
        words: nn.Embedding,
        positions: nn.Parameter,
        types: nn.Embedding | None = None,
        norm: Norm | None = None,
        causal: bool = False,
        padding_id: int | None = None,
        pool: str | None = None,
        eos_id: int | None = None,
        hidden_id: int | None = None,
    ):
        super().__init__()
        self.hidden_id = hidden_id
        self.words, self.positions, self.norm = words.weight, positions, norm
        self.types = None if types is None else types.weight
        self.causal, self.padding_id, self.pool, self.eos_id = causal, padding_id, pool, eos_id

    @property
    def width(self) -> int:
        return self.words.shape[1]

    def sample(self) -> Tensor:
        """One random text that fits, to try the model with; of full length where an index readout looks for its end."""
        length = self.max_tokens if self.pool is not None else min(8, self.max_tokens)
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.randint(len(self.words), (1, length), generator=generator, device="cpu").to(self.words.device)

    @property
    def max_tokens(self) -> int:
        return len(self.positions) - (0 if self.padding_id is None else self.padding_id + 1)

    def forward(self, inputs: Tensor | Mapping[str, Any]) -> State:
        fields: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        for name in fields:
            if name not in ("input_ids", "attention_mask", "token_type_ids", "labels") and fields[name] is not None:
                raise InputError(
                    f"'{name}' is not an input of this backbone; it takes input_ids, attention_mask and token_type_ids"
                )
        if fields.get("input_ids") is None:
            raise InputError(f"this backbone takes 'input_ids'; found {sorted(fields)}")
        ids = fields["input_ids"]
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
            found = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise InputError(
                f"this backbone takes token ids of shape (batch, tokens), found {found}; its tokeniser makes them"
            )
        if ids.shape[1] > self.max_tokens:
            raise InputError(
                f"this backbone takes at most {self.max_tokens} tokens, found {ids.shape[1]}; truncate the text"
            )
        if not torch.compiler.is_compiling():
            self._check_numbers(ids, fields)
        x = F.embedding(ids, self.words)
        if self.types is not None:
            types = fields.get("token_type_ids")
            x = x + F.embedding(torch.zeros_like(ids) if types is None else types, self.types)
        x = x + F.embedding(self._position_ids(ids), self.positions)
        x = through(self.norm, x)
        mask = fields.get("attention_mask")
        if mask is None and self.hidden_id is not None:
            mask = ids != self.hidden_id
        return State(x, _additive(mask, x.dtype), self.causal, pool=self._pool(ids))

    def _check_numbers(self, ids: Tensor, fields: Mapping[str, Any]) -> None:
        """Refuse what would end in an error of torch's; on a GPU nothing is waited for, so tokens are not looked at."""
        if ids.shape[1] == 0:
            raise InputError("these texts have no tokens at all; a tokeniser marks where an empty text ends")
        mask, types = (fields.get(name) for name in ("attention_mask", "token_type_ids"))
        for name, beside in (("attention_mask", mask), ("token_type_ids", types)):
            if beside is not None and beside.shape != ids.shape:
                raise InputError(f"{name} has shape {tuple(beside.shape)}, input_ids {tuple(ids.shape)}")
        if ids.device.type == "cpu" and ids.numel():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= len(self.words):
                raise InputError(
                    f"tokens are numbers from 0 to {len(self.words) - 1} here, found {low} to {high}; take this "
                    "model's own tokeniser, and mark padding in attention_mask"
                )
            if types is not None and self.types is not None and not 0 <= types.min() <= types.max() < len(self.types):
                raise InputError(
                    f"token_type_ids are numbers from 0 to {len(self.types) - 1} here, found {int(types.min())} to "
                    f"{int(types.max())}; take this model's own tokeniser"
                )

    def _position_ids(self, ids: Tensor) -> Tensor:
        if self.padding_id is None:
            return torch.arange(ids.shape[1], device=ids.device)
        real = (ids != self.padding_id).long()
        return real.cumsum(dim=1) * real + self.padding_id

    def _pool(self, ids: Tensor) -> Tensor | None:
        if self.pool is None:
            return None
        if self.pool == "argmax":
            return ids.argmax(dim=-1)
        assert self.eos_id is not None
        return torch.eq(ids, self.eos_id).int().argmax(dim=-1)


def _additive(attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """1 for a token, 0 for padding `(B, T)`, as something to add to attention scores `(B, 1, 1, T)`."""
    if attention_mask is None:
        return None
    # Finite, not -inf: a row of padding alone must not become NaN. Halved, so that it stays finite cast to bf16.
    hidden = torch.finfo(dtype).min / 2
    return (1 - attention_mask[:, None, None].to(dtype)) * hidden
