"""A zero-shot classifier takes images alone; pruned, searched, fused and stored it stays what its two towers say."""

import copy
import json
import random

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from families import model_of
from hydra_ensembles import (
    Backbone,
    HeadSet,
    Hydra,
    Member,
    ablate,
    circuit_ranking,
    describe,
    fuse,
    prune,
    select_members,
)
from hydra_ensembles.backbones import UnknownReference, UnsupportedBackbone, load_model, origin_of
from hydra_ensembles.backbones.references import files_of
from hydra_ensembles.backbones.zero_shot import ZeroShotClassifier
from hydra_ensembles.errors import HydraWarning
from hydra_ensembles.evaluation.costs import costs, network_cost
from hydra_ensembles.fusion import FusionError
from hydra_ensembles.heads import Head, single_cost
from hydra_ensembles.scoring import working
from hydra_ensembles.scoring.working import SearchData, Working
from zero_shots import CLASSES, NAMES, TEMPLATES, classifier_of, ending_in_3, images, tokenize, write_tokenizer


def some_heads(model, seed, share=3):
    every = HeadSet.all(model)
    heads = list(every)
    return every.without(random.Random(seed).sample(heads, len(heads) // share))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_similarities_to_the_mean_of_a_class_s_prompts(name):
    model = classifier_of(name).eval()
    texts = [template.format(word) for word in CLASSES for template in TEMPLATES]
    ids = tokenize(texts)
    ids = ending_in_3(ids) if name in ("hf-clip", "open_clip-custom") else ids
    with torch.no_grad():
        inner = model.model
        if hasattr(inner, "encode_image"):
            image, text = inner.encode_image(images()), inner.encode_text(ids)
        else:
            image = inner.get_image_features(pixel_values=images()).pooler_output
            text = inner.get_text_features(input_ids=ids).pooler_output
        table = F.normalize(F.normalize(text, dim=-1).reshape(4, 2, -1).mean(dim=1), dim=-1)
        expected = inner.logit_scale.exp() * F.normalize(image, dim=-1) @ table.T
        bias = getattr(inner, "logit_bias", None)
        expected = expected if bias is None else expected + bias
        torch.testing.assert_close(model(images()), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(Backbone.of(model)(images()), expected, atol=1e-4, rtol=1e-4)


def test_only_the_place_of_the_name_is_filled_in_a_template():
    asked = []

    def heard(texts):
        asked.extend(texts)
        return tokenize(texts)

    ZeroShotClassifier.of(model_of("open_clip"), ["cat", "{x}"], heard, ["{} {set}: {", "a {} or no {}"])
    assert asked == ["cat {set}: {", "a cat or no cat", "{x} {set}: {", "a {x} or no {x}"]


@pytest.mark.parametrize("name", NAMES)
def test_pruned_stored_and_fused_it_answers_as_its_members(name, tmp_path):
    model = classifier_of(name)
    members = [prune(model, some_heads(model, seed)) for seed in range(3)]
    with torch.no_grad():
        apart = torch.stack([member(images()) for member in members], dim=1)
        for m, member in enumerate(members):
            with ablate(model, member.heads):
                torch.testing.assert_close(model(images()), apart[:, m], atol=1e-4, rtol=1e-4)
        members[0].save(tmp_path / "member")
        again = Member.load(tmp_path / "member")
        assert torch.equal(again(images()), apart[:, 0])
        assert again.origin.classes == CLASSES
        hydra = fuse(members)
        torch.testing.assert_close(hydra.members(images()), apart, atol=1e-4, rtol=1e-4)
        assert list(hydra.towers) == ["vision"]
        hydra.save(tmp_path / "hydra")
        assert torch.equal(Hydra.load(tmp_path / "hydra").members(images()), hydra.members(images()))
        assert hydra.classes == CLASSES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["prompts", "words", "both"])
def test_members_with_prompts_and_token_embeddings_of_their_own_are_fused(name, what):
    """Prompts of the same shape whose ends are elsewhere."""
    members = [prune(classifier_of(name).eval(), some_heads(classifier_of(name), seed)) for seed in range(3)]
    for m, member in enumerate(members[1:]):
        text = Backbone.of(member.model).towers["text"].stem
        with torch.no_grad():
            if what != "prompts":
                text.stem.words.add_(torch.randn(text.stem.words.shape, generator=torch.Generator().manual_seed(m)))
            if what != "words":
                text.prompts.copy_(text.prompts.roll(1 + m, dims=0))
    with torch.no_grad():
        apart = torch.stack([member(images()) for member in members], dim=1)
        assert not torch.allclose(apart[:, 0], apart[:, 1], atol=0.1)
        for mlp in ("average", "grouped"):
            hydra = fuse(members, mlp)
            torch.testing.assert_close(hydra.members(images()), apart, atol=1e-4, rtol=1e-4)
            assert hydra.classes == CLASSES


def test_members_of_other_classes_are_not_fused():
    model, other = classifier_of("open_clip"), classifier_of("open_clip")
    other.classes = CLASSES[::-1]
    with pytest.raises(FusionError, match="members name different classes"):
        fuse([model, other])


@pytest.mark.parametrize("name", NAMES)
def test_in_bf16_it_is_stored_as_such_and_searched_in_fp32(name, tmp_path):
    model = classifier_of(name).eval().bfloat16()
    member = prune(model, some_heads(model, 0))
    again = Member.load(member.save(tmp_path / "member"))
    with torch.no_grad():
        assert torch.equal(again(images().bfloat16()), member(images().bfloat16()))
    assert [b.dtype for b in again.buffers()] == [b.dtype for b in member.buffers()]
    assert json.loads((tmp_path / "member" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {p.dtype for p in Working(model).model.model.parameters()} == {torch.float32}
    assert costs({"whole": model}, model, rounds=0).dtype == "bfloat16"


def test_class_embeddings_are_made_again_only_if_a_number_has_changed():
    model = classifier_of("open_clip").eval()
    with torch.no_grad():
        first = model.class_embeddings()
        assert model.class_embeddings() is first
        keep = HeadSet.all(model).without([head for head in HeadSet.all(model) if head.tower == "text"][:2])
        with ablate(model, keep):
            changed = model.class_embeddings()
            assert not torch.equal(changed, first)
        assert torch.equal(model.class_embeddings(), first)
    assert model.class_embeddings().requires_grad


def fused_step(model):
    F.cross_entropy(model(images()), torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=True).step()


def edit_data(model):
    for parameter in model.model.parameters():
        parameter.data.mul_(1.1)
    model.eval()


def other_vector(model):
    numbers = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(numbers).detach() * 1.1, numbers)


CHANGES = {
    "a fused step": fused_step,
    "an edit through .data": edit_data,
    "other memory": other_vector,
    "numbers that were loaded": lambda model: model.load_state_dict(
        {name: t * 1.1 if t.is_floating_point() else t for name, t in model.state_dict().items()}, assign=True
    ),
    "float64": lambda model: model.double(),
    "float64 of the inner model": lambda model: model.model.double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_embeddings_never_outlive_the_numbers_they_were_made_of(change):
    model = classifier_of("open_clip").eval()
    with torch.no_grad():
        before = model.class_embeddings()
    change(model)
    with torch.no_grad():
        after = model.class_embeddings()
        assert after.dtype != before.dtype or not torch.equal(after, before)
        assert torch.equal(after, copy.deepcopy(model).class_embeddings())
        assert model.class_embeddings() is after


def test_embeddings_are_not_those_of_another_mode():
    model = classifier_of("hf-clip").eval()
    for block in model.model.text_model.encoder.layers:
        block.self_attn.dropout = 0.5
    with torch.no_grad():
        expected = model(images())
        model.train()
        torch.manual_seed(0)
        assert not torch.equal(model(images()), model(images()))
        model.eval()
        assert torch.equal(model(images()), expected)
        model.model.train()
        assert not torch.equal(model(images()), expected)
        model.model.eval()
        assert torch.equal(model(images()), expected)


def test_embeddings_are_kept_under_autocast_but_not_beyond_it():
    model = classifier_of("open_clip").eval()
    with torch.no_grad():
        expected = model.class_embeddings()
        with torch.autocast("cpu", torch.bfloat16):
            cast = model.class_embeddings()
            assert not torch.equal(cast, expected)
            assert model.class_embeddings() is cast
        assert torch.equal(model.class_embeddings(), expected)


def test_embeddings_made_for_inference_do_not_reach_a_loss():
    model, layer = classifier_of("open_clip").eval(), torch.nn.Linear(24, 1)
    with torch.inference_mode():
        model.class_embeddings()
    with torch.no_grad():
        found = model.class_embeddings()
    layer(found).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("towers", ["both", "vision", "text"])
@pytest.mark.parametrize("name", ["open_clip", "open_clip-borrowed"])
def test_the_fast_search_is_the_plain_one_and_runs_the_text_tower_once_a_step(name, towers):
    model = classifier_of(name).double()
    labels = torch.tensor([0, 1, 2, 3] * 5)
    data = (images(20, 1).double(), labels), images(20, 2).double()
    how = {"objective": "avg", "remove": 4, "towers": towers, "batch_size": 4}
    plain, fast = (circuit_ranking(model, *data, search=search, **how) for search in ("plain", "fast"))
    assert fast.removed == plain.removed
    assert fast.scores == plain.scores
    again = circuit_ranking(model, *data, search="fast", **{**how, "batch_size": 20})
    if towers == "text":  # as many image forwards, in other batches: the text tower does not run once a batch
        assert again.how["block_forwards"] == pytest.approx(fast.how["block_forwards"])


def test_members_are_chosen_to_answer_together():
    model = classifier_of("open_clip").double()
    x, labels, other = images(20, 1).double(), torch.tensor([0, 1, 2, 3] * 5), images(20, 2).double()
    whole = HeadSet.all(model)
    companion = prune(model, HeadSet.sample(model, keep=len(whole) - 2, seed=0))
    how = {"objective": "acc", "remove": 3, "companions": [companion]}
    plain, fast = (circuit_ranking(model, (x, labels), other, search=search, **how) for search in ("plain", "fast"))
    assert (fast.removed, fast.scores) == (plain.removed, plain.scores)
    together = torch.stack([prune(model, fast.keep(len(whole) - 3))(x), companion(x)]).softmax(-1).mean(0)
    assert fast.scores[-1] == pytest.approx(float((together.argmax(-1) == labels).double().mean()))
    chosen = select_members(
        [], keep=len(whole) - 2, how="joint", members=2, model=model, id_data=(x, labels), ood_data=other
    )
    assert [len(heads) for heads in chosen] == 2 * [len(whole) - 2]


def test_a_classifier_made_for_inference_answers_as_any_other():
    model, x = classifier_of("open_clip"), images(4)
    with torch.inference_mode():
        inner = copy.deepcopy(model)
        assert torch.equal(inner(x), model(x))


def test_a_text_head_is_tried_once_a_step_however_often_it_is_asked_for():
    model = classifier_of("open_clip")
    data = SearchData((images(20, 1), torch.tensor([0, 1, 2, 3] * 5)), images(20, 2), 8)
    heads = [head for head in HeadSet.all(model) if head.tower == "text"]

    def spent(working, candidates):
        before = working.work.block_forwards
        working.outcomes(candidates, enumerate(data))
        return working.work.block_forwards - before

    working, other = Working(model), Working(model)
    first, again = spent(working, heads), spent(working, heads)
    spent(other, [])
    assert again == pytest.approx(spent(other, []))
    assert again < first
    working.remove(heads[:1])
    assert spent(working, heads[1:]) > again


@pytest.mark.parametrize("room", [working.HOLD_BYTES, 0], ids=["remembered", "no room"])
def test_a_head_that_leaves_one_tower_does_not_make_the_other_run_again(room, monkeypatch):
    monkeypatch.setattr(working, "HOLD_BYTES", room)
    model = classifier_of("open_clip").double()
    data = SearchData((images(20, 1).double(), torch.tensor([0, 1, 2, 3] * 5)), images(20, 2).double(), 8)
    remembering, plain, text_alone = (Working(model) for _ in range(3))
    for gone, runs_images in (([], True), ([Head("text", 1, 0)], False), ([Head("vision", 0, 1)], True)):
        for one in (remembering, plain, text_alone):
            one.remove(gone)
            one.work.block_forwards = 0.0
        candidates = list(plain.keep)
        found = remembering.outcomes(candidates, enumerate(data), remember=True)
        expected = plain.outcomes(candidates, enumerate(data))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.known_AN, other.known_AN)
            torch.testing.assert_close(one.unknown_AU, other.unknown_AU)
        text_alone.outcomes(candidates, [])
        spent = plain if runs_images or not room else text_alone
        assert remembering.work.block_forwards == pytest.approx(spent.work.block_forwards)
    assert text_alone.work.block_forwards == 0.0  # and no head of the text tower left with the last one


def test_a_loader_that_shuffles_and_is_not_held_is_not_remembered(monkeypatch):
    class Turning(list):
        """Batches from the other end at every pass."""

        def __iter__(self):
            self.reverse()
            return super().__iter__()

    monkeypatch.setattr(working, "HOLD_BYTES", 200_000)  # less than the batches, more than the features
    model, labels = classifier_of("open_clip").double(), torch.arange(20) // 5
    known, unknown = images(20, 1).double(), images(20, 2).double()
    how = {"objective": "avg", "remove": 4, "search": "fast"}
    expected = circuit_ranking(model, (known, labels), unknown, batch_size=4, **how)
    batches = Turning(zip(known.split(4), labels.split(4), strict=True))
    found = circuit_ranking(model, batches, unknown, batch_size=4, **how)
    assert (found.removed, found.scores) == (expected.removed, expected.scores)


def test_prompts_are_cut_where_nothing_reads_further():
    assert classifier_of("open_clip").prompts.shape == (4, 2, 6)
    assert classifier_of("open_clip-borrowed").prompts.shape == (4, 2, 6)
    assert classifier_of("hf-siglip").prompts.shape == (4, 2, 9)


def test_an_input_costs_what_the_image_tower_costs():
    model = classifier_of("open_clip")
    both = single_cost(Backbone.of(model_of("open_clip")))
    ours = single_cost(Backbone.of(model))
    vision = Backbone.of(model_of("open_clip"))
    assert ours.params == both.params + model.prompts.numel()
    assert 0 < ours.mult_adds < both.mult_adds
    assert vision.fixed == ()
    hydra = fuse([prune(model, some_heads(model, seed)) for seed in range(2)])
    counted = network_cost(hydra, model)
    assert counted.params == sum(p.numel() for p in hydra.parameters())
    assert ours.mult_adds < counted.mult_adds < 2 * ours.mult_adds


def test_wrong_inputs_say_what_to_do():
    for name in ("timm", "bert"):
        with pytest.raises(UnsupportedBackbone, match="has no text tower"):
            ZeroShotClassifier(model_of(name), CLASSES, torch.zeros(4, 1, 9, dtype=torch.int64))
    with pytest.raises(UnsupportedBackbone, match="for 4 classes; found"):
        ZeroShotClassifier(model_of("open_clip"), CLASSES, torch.zeros(3, 1, 9, dtype=torch.int64))
    with pytest.raises(UnsupportedBackbone, match=r"has no \{\} for the name"):
        ZeroShotClassifier.of(model_of("open_clip"), CLASSES, tokenize, ["a photo"])


@pytest.mark.parametrize("name", ["hf-clip", "hf-siglip"])
def test_a_directory_of_transformers_is_named_by_hf(name, tmp_path):
    model_of(name).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    found = ZeroShotClassifier.of_reference(f"hf:{tmp_path}", ["cat", "dog"], ["photo {}"])
    expected = torch.tensor([[[1, 4, 5, 3]], [[1, 4, 6, 3]]])
    assert torch.equal(found.prompts[..., :4], expected)
    assert found.prompts.shape[-1] == (4 if name == "hf-clip" else 9)
    same = ZeroShotClassifier(model_of(name), ["cat", "dog"], found.prompts)
    with torch.no_grad():
        torch.testing.assert_close(found(images()), same(images()), atol=1e-5, rtol=1e-5)
    assert origin_of(found).preprocess["size"] == 16
    member = prune(found, some_heads(found, 0))
    member.save(tmp_path / "member")
    assert torch.equal(Member.load(tmp_path / "member")(images()), member(images()))


def test_a_directory_of_open_clip_is_named_by_open_clip(tmp_path):
    own = model_of("open_clip")
    config = {"embed_dim": 24, "vision_cfg": {"image_size": 16, "patch_size": 4, "width": 32, "head_width": 8}}
    config["vision_cfg"]["layers"] = 3
    config["text_cfg"] = {"context_length": 9, "vocab_size": 50, "width": 32, "heads": 4, "layers": 3}
    preprocess = {"mean": [0.1] * 3, "std": [0.2] * 3, "interpolation": "bilinear"}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    with pytest.raises(UnknownReference, match="has no weights; they are in open_clip_model"):
        load_model(f"open_clip:{tmp_path}")
    save_file(own.state_dict(), tmp_path / "open_clip_model.safetensors")
    found = load_model(f"open_clip:{tmp_path}")
    with torch.no_grad():
        assert torch.equal(found.encode_image(images()), own.encode_image(images()))
    assert origin_of(found).preprocess["mean"] == [0.1] * 3
    assert describe(load_model(f"open_clip:{tmp_path}", weights=False)).total == describe(found).total
    assert files_of(f"open_clip:{tmp_path}")[0].name == "open_clip_config.json"
    (tmp_path / "open_clip_config.json").write_text("{")
    with pytest.raises(UnknownReference, match="open_clip cannot read"):
        load_model(f"open_clip:{tmp_path}")
    with pytest.raises(UnsupportedBackbone, match="has no text tower"):
        ZeroShotClassifier.of_reference("timm:vit_tiny_patch16_224", CLASSES)


def test_towers_of_other_libraries_are_built_from_what_lies_in_the_directory(tmp_path):
    """By their names they would be fetched; the image tower has another size than its name says."""
    import open_clip
    from transformers import BertConfig

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertConfig(**sizes, intermediate_size=48, max_position_embeddings=9).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "linear", "image_size": 32}
    text = {"hf_model_name": "nobody/nothing", "hf_tokenizer_name": "nobody/nothing", "hf_pooler_type": "mean_pooler"}
    text |= {"hf_proj_type": "linear", "context_length": 9}
    config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    named = {**text, "hf_model_name": str(tmp_path), "hf_model_pretrained": False}
    own = open_clip.create_model(f"local-dir:{tmp_path}", force_image_size=32, pretrained_image=False, text_cfg=named)
    save_file({k: v.contiguous() for k, v in own.state_dict().items()}, tmp_path / "open_clip_model.safetensors")
    found = ZeroShotClassifier.of_reference(f"open_clip:{tmp_path}", ["cat", "dog"], ["photo {}"])
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(found.model.encode_image(pixels), own.eval().encode_image(pixels))
    assert torch.equal(found.prompts[..., :4], torch.tensor([[[1, 4, 5, 3]], [[1, 4, 6, 3]]]))
    assert origin_of(found).preprocess["size"] == 32


@pytest.mark.parametrize("classes", ["cat", [], ["cat", ""], [1, 2]], ids=str)
def test_names_that_make_no_prompts_are_refused(classes):
    with pytest.raises(UnsupportedBackbone, match="classes are a list of texts"):
        ZeroShotClassifier.of(model_of("open_clip"), classes, tokenize, TEMPLATES)


@pytest.mark.parametrize("templates", ["a {}", []], ids=str)
def test_templates_that_make_no_prompts_are_refused(templates):
    with pytest.raises(UnsupportedBackbone, match="templates are a list of texts"):
        ZeroShotClassifier.of(model_of("open_clip"), CLASSES, tokenize, templates)


def test_two_classes_of_one_name_are_told():
    with pytest.warns(HydraWarning, match="several classes are called 'crane'"):
        ZeroShotClassifier.of(model_of("open_clip"), ["crane", "cat", "crane"], tokenize, TEMPLATES)


def test_a_model_of_one_tower_is_refused_before_its_text_tower_is_looked_for():
    with pytest.raises(UnsupportedBackbone, match="has no text tower beside an image tower"):
        ZeroShotClassifier.of(model_of("timm"), CLASSES, tokenize)
