"""What is special to rotary position embeddings in a store: tables are no parameters, and come from settings."""

import pytest
import torch
from torch import nn

from families import BY_NAME, _eva, model_of, perturbed
from hydra_ensembles import Backbone, Head, HeadSet, Hydra, Member, fuse, prune
from hydra_ensembles.baselines import BatchEnsemble, LoraEnsemble, PackedEnsemble
from hydra_ensembles.baselines.method import BaselineError
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

    model = perturbed(_eva("eva02_tiny_patch14_224", ref_feat_shape=(8, 8))).eval()
    with pytest.raises(StoreError, match="ref_feat_shape"):
        prune(model, HeadSet.sample(model, keep=6, seed=0)).save(tmp_path / "member")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "vit_small_patch16_dinov3"])
def test_images_of_any_size_or_of_one_come_back_so(name, dynamic, tmp_path):
    model = perturbed(_eva(name, dynamic_img_size=dynamic)).eval()
    member = prune(model, HeadSet.sample(model, keep=6, seed=0))
    again = Member.load(member.save(tmp_path / "member"))
    assert again.model.dynamic_img_size == dynamic
    images = BY_NAME["timm"].inputs(2, 0, 0)
    with torch.no_grad():
        assert torch.equal(again(images), member(images))


@pytest.mark.parametrize("name", NAMES)
def test_a_member_in_half_precision_comes_back_to_the_bit(name, tmp_path):
    keep = HeadSet.all(model_of(name)).without([Head("vision", 0, 1)])  # other layers stay as timm made them
    member = prune(model_of(name), keep).to(torch.bfloat16)
    again = Member.load(member.save(tmp_path / "member"))
    images = BY_NAME[name].inputs(2, 0, 0).bfloat16()
    with torch.no_grad():
        assert torch.equal(again(images), member(images))


@pytest.mark.parametrize("method", [LoraEnsemble, BatchEnsemble])
def test_a_layer_that_is_never_called_cannot_be_changed(method):
    model = model_of("timm-eva02-tiny")
    with pytest.raises(BaselineError, match="without calling their layer"):
        method(model, 2).fit(None, None, "cifar100")


def test_packed_ensembles_take_rotary_tables_along():
    packed = PackedEnsemble(model_of("timm-eva02-tiny"), 2, alpha=1.0)
    assert packed.members(BY_NAME["timm"].inputs(2, 0, 0)).shape == (2, 2, 5)


def test_an_eva_without_a_name_is_refused_when_it_is_pruned():
    from timm.models.eva import Eva

    model: nn.Module = Eva(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, use_rot_pos_emb=True).eval()
    with pytest.raises(Exception, match=r"build it with timm\.create_model"):
        prune(model, HeadSet.sample(model, keep=6, seed=0))


def test_the_worked_family_is_as_short_as_its_page_says(repository):
    lines = (repository / "src/hydra_ensembles/backbones/timm_eva.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith(('"""', "from ", "import "))]
    assert len(code) < 80
