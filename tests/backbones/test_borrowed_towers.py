"""open_clip models with a tower of transformers are read with each of its ways to pool, and stored."""

import pytest
import torch

from families import BY_NAME, borrowed_towers, perturbed
from hydra_ensembles import Backbone, HeadSet, Member, prune
from hydra_ensembles.backbones import UnsupportedBackbone


@pytest.mark.parametrize("pooler", ["mean_pooler", "cls_pooler", "cls_last_hidden_state_pooler"])
def test_every_pooler_is_read_and_a_member_comes_back_to_the_bit(pooler, tmp_path):
    model = perturbed(borrowed_towers(pooler)).eval()
    inputs = BY_NAME["open_clip-borrowed"].inputs(4, 9, 0)
    with torch.no_grad():
        torch.testing.assert_close(
            Backbone.of(model)(inputs), model.get_logits(inputs["vision"], inputs["text"])[0], atol=1e-4, rtol=1e-4
        )
        member = prune(model, HeadSet.sample(model, keep=16, seed=0))
        again = Member.load(member.save(tmp_path / "member"))
        assert torch.equal(again(inputs), member(inputs))


def test_a_pooler_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedBackbone, match="MaxPooler is not supported"):
        Backbone.of(borrowed_towers("max_pooler"))
