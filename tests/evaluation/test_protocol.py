"""A protocol takes test sets that nobody has seen, under names that can be told apart, and refuses all others."""

import csv

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

from hydra_ensembles.data import Batch, TensorBatches, batches_for, open_data
from hydra_ensembles.data.fingerprints import fingerprints, rows_digest, source_of
from hydra_ensembles.evaluation import Protocol, ProtocolError
from hydra_ensembles.evaluation.protocol import TAKEN
from hydra_ensembles.evaluation.shift import shifted_batches
from tiny_sets import tiny_tokenizer

TEXT = {
    "kind": "text",
    "tokenizer": tiny_tokenizer().to_str(),
    "max_tokens": 20,
    "pad_id": 0,
    "token_types": True,
}


def images(rows, seed):
    return torch.randn(rows, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def labelled(rows, seed):
    return images(rows, seed), torch.arange(rows) % 3


def texts(path, number, seed, label="label"):
    """Texts of one to nine letters, all different, in a csv file."""
    chance = np.random.default_rng(seed)
    letters = [" ".join(chance.choice(list("abcdefgh"), size=chance.integers(1, 9))) for _ in range(number)]
    with path.open("w", newline="") as file:
        lines = [(f"{text} {seed} {row}", row % 3) for row, text in enumerate(letters)]
        csv.writer(file).writerows([("text", label), *lines])
    return path


def read(reference, labels=True, **options):
    return batches_for(TEXT, open_data(reference), labels=labels, **options)


def refused(message, *args, **options):
    with pytest.raises(ProtocolError, match=message) as error:
        Protocol(*args, **options)
    assert "\n" not in str(error.value)


def test_sets_in_any_form_become_batches_by_name():
    near, far = {"a": images(5, 1)}, {"b": DataLoader(TensorDataset(images(4, 2)[:, 0], torch.zeros(4)), batch_size=3)}
    protocol = Protocol(labelled(6, 0), near, far, {"fog": labelled(6, 3)}, batch_size=4)
    assert list(protocol.tests) == ["id_test", "fog", "a", "b"]
    assert [batches.num_rows for batches in protocol.tests.values()] == [6, 6, 5, 4]
    assert len(protocol.tests["id_test"]) == 2
    assert protocol.groups == {"near": ["a"], "far": ["b"], "shifts": ["fog"]}
    assert protocol.seen == ()
    assert protocol.id_val is None


@pytest.mark.parametrize("name", ["a/b", "a\\b", "", ".hidden", "a:b", "a b", 3, *TAKEN])
def test_a_name_that_would_mean_something_else_is_refused(name):
    refused("cannot name a test set", labelled(6, 0), {name: images(5, 1)})


def test_a_name_is_given_once():
    refused("two test sets are called 'a'", labelled(6, 0), {"a": images(5, 1)}, {"a": images(5, 2)})


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"id_test": labelled(0, 0)}, "set 'id_test': the data set has no rows"),
        ({"near": {"a": images(0, 0)}}, "set 'a': the data set has no rows"),
        ({"far": {"a": []}}, "set 'a': the data set has no rows"),
        ({"far": {"a": iter([images(2, 0)])}}, "set 'a': an iterator can be gone through only once"),
        ({"far": {"a": None}}, "set 'a' is not data that can be read: TypeError"),
        ({"id_test": "test.parquet"}, r"set 'id_test' is the path test.parquet; load_data\(path, model\)"),
        ({"near": images(5, 0)}, "near are sets by name, .* found Tensor"),
        ({"id_test": images(6, 0)}, "set 'id_test' has no labels"),
        ({"shifts": {"fog": images(6, 1)}}, "set 'fog' has no labels"),
        (
            {"id_test": DataLoader(TensorDataset(*labelled(6, 0)), shuffle=True)},
            "set 'id_test' is a loader that shuffles",
        ),
        (
            {"id_test": DataLoader(TensorDataset(*labelled(6, 0)), sampler=SubsetRandomSampler(range(6)))},
            "set 'id_test' is a loader that shuffles",
        ),
        (
            {
                "id_test": DataLoader(
                    TensorDataset(*labelled(6, 0)), batch_sampler=BatchSampler(RandomSampler(range(6)), 2, False)
                )
            },
            "set 'id_test' is a loader that shuffles",
        ),
    ],
)
def test_what_is_no_test_set_is_refused_in_one_line(sets, message):
    refused(message, **{"id_test": labelled(6, 0), **sets})


def test_one_set_under_two_names_is_refused_whatever_its_order_and_form(tmp_path):
    same = images(6, 1)
    refused("test sets 'a' and 'b' hold the same rows", labelled(6, 0), {"a": same}, {"b": same.flip(0)})
    refused("test sets 'id_test' and 'a' hold the same rows", labelled(6, 0), {"a": images(6, 0)}, allow_seen=True)
    Protocol(labelled(6, 0), {"a": same[:5]}, {"b": same})
    known, unknown = texts(tmp_path / "known.csv", 6, 0), texts(tmp_path / "unknown.csv", 7, 1)
    other = tmp_path / "other.tsv"
    lines = list(csv.DictReader(unknown.open()))[::-1]
    other.write_text("sentence\n" + "".join(f"{line['text']}\n" for line in lines))
    sets = {"a": read(unknown, labels=False)}, {"b": read(other, labels=False, batch_size=3)}
    refused("test sets 'a' and 'b' hold the same rows", read(known), *sets)


@pytest.mark.parametrize("val", ["id_val", "id_train", "ood_val"])
@pytest.mark.parametrize("test", ["id_test", "near", "far", "shifts"])
def test_rows_that_were_used_to_choose_are_no_test(val, test):
    used = images(20, 9)
    mixed = torch.cat([images(8, 1), used[3:5]])
    sets = {"id_test": labelled(6, 0)}
    name = "id_test" if test == "id_test" else "mine"
    data = (mixed, torch.arange(10) % 3) if test in ("id_test", "shifts") else mixed
    sets[test] = data if test == "id_test" else {name: data}
    refused(f"test set '{name}' shares 2 of its 10 rows with {val}, .* allow_seen=True", **sets, **{val: used})
    protocol = Protocol(**sets, **{val: used}, allow_seen=True)
    (told,) = protocol.seen
    assert f"'{name}' shares 2 of its 10 rows with {val}" in told


def test_as_many_rows_as_published_sets_have_in_common_are_told_but_not_refused():
    used, mine = torch.randn(50, 1), torch.randn(3000, 1)
    mine[:3] = used[:3]
    (told,) = Protocol((mine, torch.zeros(3000).long()), id_train=used).seen
    assert "shares 3 of its 3,000 rows with id_train" in told
    mine[3] = used[3]
    refused("shares 4 of its 3,000 rows", (mine, torch.zeros(3000).long()), id_train=used)


def test_a_file_that_gave_the_ood_validation_set_gives_no_test_set(tmp_path, monkeypatch):
    known = texts(tmp_path / "known.csv", 6, 0)
    unknown, fresh = texts(tmp_path / "unknown.csv", 20, 1), texts(tmp_path / "fresh.csv", 9, 2)
    monkeypatch.chdir(tmp_path)
    sets = {"near": {"a": read(f"{unknown}[10:]", labels=False)}, "ood_val": read("./unknown.csv[:10]", labels=False)}
    refused("test set 'a' comes from the same file as ood_val, .* allow_seen=True", read(known), **sets)
    (told,) = Protocol(read(known), **sets, allow_seen=True).seen
    assert "comes from the same file as ood_val" in told
    assert Protocol(read(known), {"a": read(fresh, labels=False)}, ood_val=sets["ood_val"]).seen == ()
    parts = {"id_test": read(f"{known}[:3]"), "id_val": read(f"{known}[3:]")}
    assert Protocol(**parts).seen == (), "known rows of one file are split by rows"


def test_rows_of_files_are_known_again_in_other_files(tmp_path):
    known, val = texts(tmp_path / "known.csv", 6, 0), tmp_path / "val.jsonl"
    lines = list(csv.DictReader(known.open()))
    val.write_text("".join(f'{{"content": "{line["text"]}", "label": 1}}\n' for line in lines[4:]))
    refused("'id_test' shares 2 of its 6 rows with id_val", read(known), id_val=read(val))


def test_padding_does_not_hide_a_row():
    ids, mask = torch.tensor([[2, 5, 6, 3]]), torch.tensor([[1, 1, 1, 1]])
    longer = {
        "input_ids": torch.tensor([[2, 5, 6, 3, 0, 0], [2, 5, 6, 7, 8, 3]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]),
    }
    one, two = (TensorBatches(fields) for fields in ({"input_ids": ids, "attention_mask": mask}, longer))
    assert fingerprints(one)[0] == fingerprints(two)[0] != fingerprints(two)[1]


def test_our_shifts_of_the_clean_rows_are_not_taken_for_them(tmp_path):
    """Short texts may come out of a corruption as they were, and many shifts are not read for nothing."""
    path = tmp_path / "known.csv"
    path.write_text("text,label\na,0\nb,1\nc,2\n")
    shifts = {name: shifted_batches(TEXT, open_data(path), f"{name}/1", tmp_path) for name in ("word_swap",)}
    assert [row.input for row in shifts["word_swap"].rows] == ["a", "b", "c"]
    protocol = Protocol(read(path), shifts=shifts, id_val=read(texts(tmp_path / "val.csv", 6, 1)))
    assert protocol.seen == ()
    other = {"word_swap": shifted_batches(TEXT, open_data(f"{path}[:2]"), "word_swap/1", tmp_path)}
    refused(
        "'word_swap' shares 2 of its 2 rows with id_val", read(f"{path}[2:]"), shifts=other, id_val=read(f"{path}[:2]")
    )


class Counted:
    """Batches that count how often somebody goes through them."""

    def __init__(self, inputs, labels=None):
        self.inner, self.num_rows, self.passes = TensorBatches(inputs, labels, 2), len(inputs), 0
        self.digest = self.inner.digest

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return self.epoch(0)

    def epoch(self, number):
        self.passes += 1
        for batch in self.inner.epoch(number):
            yield Batch(*batch)


def test_data_are_not_read_where_nothing_can_be_shared():
    sets = [Counted(*labelled(6, 0)), Counted(images(5, 1)), Counted(images(4, 2))]
    Protocol(sets[0], {"a": sets[1]}, {"b": sets[2]})
    assert [one.passes for one in sets] == [0, 0, 0]
    val = Counted(images(7, 4))
    Protocol(sets[0], {"a": sets[1]}, {"b": sets[2]}, id_val=val, ood_val=images(3, 5))
    assert [one.passes for one in (*sets, val)] == [1, 1, 1, 1]


def test_a_source_is_a_whole_path_and_rows_are_known_apart_from_their_preparation(tmp_path, monkeypatch):
    path = texts(tmp_path / "known.csv", 6, 0)
    monkeypatch.chdir(tmp_path)
    assert source_of(read("known.csv")) == source_of(read(path)) == str(path.resolve())
    assert source_of(TensorBatches(images(2, 0))) is None
    one, other = read(path), read(path, batch_size=2, max_tokens=4)
    assert one.digest != other.digest
    assert rows_digest(one) == rows_digest(other) != rows_digest(read(f"{path}[1:]"))
