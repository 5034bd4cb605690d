"""A family of one's own: what a user writes, in one screen."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from families import perturbed
from hydra_ensembles import Backbone, HeadSet, Member, ablate, prune, register_backbone
from hydra_ensembles.backbones import Block, Origin, Tower, UnsupportedBackbone
from hydra_ensembles.backbones.attention import Attention, SplitQKV
from hydra_ensembles.backbones.backbone import _families
from hydra_ensembles.backbones.checks import own_block
from hydra_ensembles.backbones.parts import FeedForward, norm_of
from hydra_ensembles.backbones.readouts import Readout, projection_of
from hydra_ensembles.backbones.stems import TokenStem
from hydra_ensembles.backbones.surgery import channels_of, keep_columns, keep_rows


class TinyBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, self.heads, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        z = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, dim=-1) @ v
        x = x + self.o(z.transpose(1, 2).reshape(B, T, self.heads * 8))
        return x + self.down(torch.relu(self.up(self.norm(x))))


class TinyModel(nn.Module):
    def __init__(self, width: int = 16, layers: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Parameter(torch.randn(10, width))
        self.blocks = nn.ModuleList(TinyBlock(width, width // 8) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


class TinyFamily:
    def recognises(self, model: nn.Module) -> bool:
        return isinstance(model, TinyModel)

    def view(self, model: TinyModel) -> Backbone:
        stem = TokenStem(model.words, model.places)
        readout = Readout("mean", projection_of(model.head))
        return Backbone({"text": Tower(stem, [self.block(b) for b in model.blocks], readout)})

    def block(self, b: TinyBlock) -> Block:
        return Block(
            Attention(SplitQKV(b.q, b.k, b.v), b.o, head_dim=8),
            FeedForward(b.up, b.down, "relu"),
            norm_attention=None,
            norm_mlp=norm_of(b.norm, "norm"),
            own=own_block(b),
            shrink=partial(self.shrink, b),
        )

    def shrink(self, b: TinyBlock, keep: Sequence[int]) -> None:
        channels = channels_of(keep, 8)
        for layer in (b.q, b.k, b.v):
            keep_rows(layer, channels)
        keep_columns(b.o, channels)
        b.heads = len(keep)

    def own_forward(self, model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs)

    def origin(self, model: TinyModel) -> Origin:
        kwargs = {"width": model.words.embedding_dim, "layers": len(model.blocks), "classes": model.head.out_features}
        return Origin("tiny", "TinyModel", kwargs)

    def build(self, origin: Origin) -> nn.Module:
        return TinyModel(**origin.kwargs)


@pytest.fixture
def registered():
    register_backbone("tiny", TinyFamily())
    yield
    _families.pop("tiny")


def test_what_is_no_family_is_not_registered():
    with pytest.raises(UnsupportedBackbone, match="the family 'x' has no recognises, view, own_forward, origin, build"):
        register_backbone("x", object())


@pytest.mark.usefixtures("registered")
def test_a_registered_family_is_read_ablated_pruned_and_stored(tmp_path):
    torch.manual_seed(0)
    model, ids = perturbed(TinyModel()).eval(), torch.randint(0, 20, (3, 7))
    keep = HeadSet.of({"text": [[1], []]}, {"text": [2, 2]})
    with torch.no_grad():
        torch.testing.assert_close(Backbone.of(model)(ids), model(ids), rtol=1e-5, atol=1e-5)
        member = prune(model, keep)
        with ablate(model, keep):
            torch.testing.assert_close(member(ids), model(ids), rtol=1e-5, atol=1e-5)
        again = Member.load(member.save(tmp_path / "tiny"))
        assert torch.equal(again(ids), member(ids))
