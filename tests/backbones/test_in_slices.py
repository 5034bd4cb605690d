"""A layer applied to a part of its rows at a time is the layer."""

import pytest
import torch
from torch import Tensor, nn

from hydra_ensembles.backbones import parts
from hydra_ensembles.backbones.parts import FeedForward, in_slices


@pytest.mark.parametrize("shape", [(7, 4), (2, 5, 4), (1, 1, 4)])
@pytest.mark.parametrize("slice_bytes", [16, 48, 10**6])
def test_a_layer_in_slices_is_the_layer(monkeypatch, shape, slice_bytes):
    monkeypatch.setattr(parts, "SLICE_BYTES", slice_bytes)
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 6), torch.randn(shape)
    calls: list[int] = []

    def counted(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return layer(rows)  # type: ignore[no-any-return]

    with torch.no_grad():
        torch.testing.assert_close(in_slices(counted, x, hidden=4), layer(x))
    size = x[..., 0].numel() * 16
    assert len(calls) == (1 if size <= slice_bytes else -(-size // slice_bytes))


def test_with_gradients_nothing_is_sliced_or_overwritten(monkeypatch):
    monkeypatch.setattr(parts, "SLICE_BYTES", 16)
    torch.manual_seed(0)
    mlp, x = FeedForward(nn.Linear(4, 8), nn.Linear(8, 4), "gelu"), torch.randn(5, 4)
    x.requires_grad_()
    y = mlp(x)
    y.square().sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), y.detach())
        torch.testing.assert_close(mlp(x), y.detach())  # x itself is as it was


@pytest.mark.parametrize("slice_bytes", [16, 64, 10**6])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_added_slice_by_slice_it_is_the_sum_to_the_bit(monkeypatch, slice_bytes, is_transposed):
    monkeypatch.setattr(parts, "SLICE_BYTES", slice_bytes)
    torch.manual_seed(0)
    mlp, rows = FeedForward(nn.Linear(4, 8), nn.Linear(8, 4), "gelu"), torch.randn(2, 5, 4)
    x = torch.randn(2, 4, 5).transpose(1, 2) if is_transposed else torch.randn(2, 5, 4)
    with torch.no_grad():
        expected = x + mlp(rows)
        found = mlp(rows, onto=x)
    assert found is x
    assert torch.equal(found, expected)
