"""The theorems once at the size of a real two-tower model: CLIP ViT-B/32 with random weights, 240 heads."""

import copy
import random

import open_clip
import pytest
import torch

from hydra_ensembles import Backbone, HeadSet, Hydra, Member, ZeroShotClassifier, ablate, circuit_ranking, fuse, prune

pytestmark = pytest.mark.slow

CLASSES = ["cat", "dog", "newt", "owl"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    clip = open_clip.create_model("ViT-B-32", pretrained=None, pretrained_image=False)
    return ZeroShotClassifier.of(clip.eval(), CLASSES, open_clip.SimpleTokenizer()).eval()


def images(number, seed):
    return torch.randn(number, 3, 224, 224, generator=torch.Generator().manual_seed(seed))


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)  # logits are 14 times a similarity


@torch.no_grad()
def test_theorems_1_2_3_4_and_6(model, tmp_path):
    seen, every = images(2, 0), HeadSet.all(model)
    assert len(every) == 240
    own = model(seen)
    close(Backbone.of(model)(seen), own)
    members = [prune(model, every.without(random.Random(m).sample(list(every), 24))) for m in range(3)]
    apart = torch.stack([member(seen) for member in members], dim=1)
    assert (apart - own[:, None]).abs().amax(dim=(0, 2)).min() > 1e-3
    for m, member in enumerate(members):
        with ablate(model, member.heads):
            close(model(seen), apart[:, m])
    close(fuse(members, "average").members(seen), apart)
    assert torch.equal(Member.load(members[0].save(tmp_path / "member"))(seen), apart[:, 0])

    for seed, member in enumerate(members):  # as after a training: no two members have one number in common
        chance = torch.Generator().manual_seed(seed)
        for parameter in member.parameters():
            if parameter.is_floating_point():  # the tokens of prompts are none
                parameter.add_(1e-3 * torch.randn(parameter.shape, generator=chance))
    apart = torch.stack([member(seen) for member in members], dim=1)
    hydra = fuse(members, "grouped")
    close(hydra.members(seen), apart)
    hydra.save(tmp_path / "hydra")
    assert torch.equal(Hydra.load(tmp_path / "hydra").members(seen), hydra.members(seen))


def test_theorem_5(model):
    """Candidates of the last layer of both towers, of which one step tries all."""
    searched = copy.deepcopy(model).double()
    data = (images(8, 1).double(), torch.arange(8) % 4), images(8, 2).double()
    plain, fast = (
        circuit_ranking(searched, *data, objective="avg", remove=2, layers=[11], search=search)
        for search in ("plain", "fast")
    )
    assert fast.removed == plain.removed
    assert fast.scores == plain.scores
    assert {head.layer for head in fast.removed} == {11}
