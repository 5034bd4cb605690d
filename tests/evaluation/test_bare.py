"""The bare reference does as much arithmetic as the hydra, and refuses what it does not know."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from families import BY_NAME, model_of
from hydra_ensembles.evaluation import contest
from hydra_ensembles.evaluation.bare import Bare, BareError


def counted(run):
    """Attention as plain products, which are counted as those of linear layers are."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("last_block", ["read", "full"])
@pytest.mark.parametrize("trunk", [0, 1, 3])
def test_it_multiplies_and_adds_as_often_as_the_hydra(trunk, last_block):
    images = BY_NAME["timm"].inputs(2, 0, 0)
    runs = contest(model_of("timm"), images, keep=2, members=3, trunk=trunk, last_block=last_block)
    assert counted(runs.contestants["hydra"]) == counted(runs.contestants["bare"]) > 0


@pytest.mark.parametrize("name", ["timm-mean", "timm-dinov2", "timm-rms", "timm-swiglu", "bert", "open_clip"])
def test_other_arithmetic_is_refused_and_a_contest_goes_on_without(name):
    case = BY_NAME[name]
    runs = contest(model_of(name), case.inputs(2, 5, 0), keep=2)
    assert "bare" not in runs.contestants
    with pytest.raises(BareError, match="the bare reference is written for"):
        Bare(runs.hydra, case.inputs(2, 5, 0))
