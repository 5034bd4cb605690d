"""What is special to rotary position embeddings in a store: tables are no parameters, and come from settings."""

import pytest
import torch
from torch import nn

from families import BY_NAME, _eva, model_of, perturbed
from hydra_ensembles import Backbone, HeadSet, Hydra, fuse, prune
from hydra_ensembles.store import StoreError

NAMES = ["timm-eva02-tiny", "timm-dinov3"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hydra_keeps_its_tables_and_trains_none_of_them(name, tmp_path):
    members = [prune(model_of(name), HeadSet.sample(model_of(name), keep=7, seed=seed)) for seed in range(2)]
    hydra = fuse(members)
    again = Hydra.load(hydra.save(tmp_path / "hydra"))
    images = BY_NAME[name].inputs(2, 0, 0)
    with torch.no_grad():
        assert torch.equal(again.members(images), hydra.members(images))
    assert not [key for key, _ in hydra.named_parameters() if "rotary" in key]
    assert [key for key in again.state_dict() if "rotary" in key]


def test_patches_turn_and_prefix_tokens_do_not():
    tower = Backbone.of(model_of("timm-dinov3")).towers["vision"]
    cos, sin = tower.stem(BY_NAME["timm-dinov3"].inputs(1, 0, 0)).rotary
    prefix = tower.stem.num_prefix
    assert prefix > 1
    assert len(cos) == tower.stem.num_tokens
    assert bool((cos[:prefix] == 1).all())
    assert bool((sin[:prefix] == 0).all())
    assert bool((sin[prefix:] != 0).any())


def test_a_member_with_angles_that_its_name_does_not_say_is_not_stored(tmp_path):
    model = perturbed(_eva("eva02_tiny_patch14_224", rope_temperature=100.0)).eval()
    with pytest.raises(StoreError, match=r"temperature is 100\.0, would be 10000\.0"):
        prune(model, HeadSet.sample(model, keep=6, seed=0)).save(tmp_path / "member")


def test_an_eva_without_a_name_is_refused_when_it_is_pruned():
    from timm.models.eva import Eva

    model: nn.Module = Eva(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, use_rot_pos_emb=True).eval()
    with pytest.raises(Exception, match=r"build it with timm\.create_model"):
        prune(model, HeadSet.sample(model, keep=6, seed=0))


def test_the_worked_family_is_as_short_as_its_page_says(repository):
    lines = (repository / "src/hydra_ensembles/backbones/timm_eva.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith(('"""', "from ", "import "))]
    assert len(code) < 80
