"""A shift is what its library says it is, the same in every run, kept whole or not at all; labels survive it."""

import dataclasses
import itertools
import json
import os
import random
import re
import signal
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from families import model_of
from hydra_ensembles import HeadSet, prune
from hydra_ensembles.data import DataError, ImageTransform, batches_for, open_data
from hydra_ensembles.evaluation.shift import (
    IMAGE_CORRUPTIONS,
    SEVERITIES,
    TEXT_CORRUPTIONS,
    ShiftError,
    corrupted_images,
    corrupted_text,
    corrupted_texts,
    parse_shift,
    shifted_batches,
)
from hydra_ensembles.evaluation.shift.batches import of_cut_images
from hydra_ensembles.evaluation.shift.images import PixelsTable, cut_before, write_images
from hydra_ensembles.evaluation.shift.names import seed_of
from hydra_ensembles.evaluation.shift.tables import rows_under
from hydra_ensembles.evaluation.shift.texts import PERCENT_TOUCHED
from hydra_ensembles.members.checkpoint import random_states, seed_all
from hydra_ensembles.optional import MissingExtra
from tiny_sets import CLASSES, LABELS, TEXTS, png, tiny_tokenizer

# A crop of 87.5 %: an image that is resized or cut a second time would show it.
PREPROCESS = {
    "size": 32,
    "interpolation": "bicubic",
    "mean": [0.5, 0.4, 0.3],
    "std": [0.2, 0.3, 0.4],
    "crop_pct": 0.875,
}
SIZES = pytest.mark.parametrize("first_size", [None, 24], ids=["own-size", "first-size"])


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("torch_uncertainty.transforms.corruption")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Nine smooth images of 48 x 40 pixels, three a class."""
    root = tmp_path_factory.mktemp("images")
    coarse = np.random.default_rng(0).integers(0, 256, (9, 6, 6, 3), dtype=np.uint8)
    for row, pixels in enumerate(coarse):
        file = root / CLASSES[row // 3] / f"{row}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(png(np.asarray(Image.fromarray(pixels).resize((48, 40), Image.Resampling.BICUBIC))))
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def pixels_of(rows):
    return np.stack(rows.inputs(np.arange(len(rows))))


def clean_pixels(rows, first_size=None):
    prepare = cut_before(ImageTransform(PREPROCESS, first_size))
    return np.stack([prepare(row.input) for row in rows])


def corrupted(rows, cache, corruption, severity, first_size=None, **options):
    return corrupted_images(rows, corruption, severity, ImageTransform(PREPROCESS, first_size), cache, **options)


def inputs_of(batches):
    return torch.cat([batch.inputs for batch in batches])


def identity(image, row):
    return image


# Images


def test_the_names_are_those_of_the_library_in_its_order(library):
    classes = [kind.__name__.lower() for kind in library.corruption_transforms]
    ours = [name.replace("_transform", "").replace("_", "") for name in IMAGE_CORRUPTIONS]
    assert ours == classes


@pytest.mark.parametrize("corruption", IMAGE_CORRUPTIONS)
def test_every_corruption_changes_images_and_more_so_at_severity_5(corruption, folder, cache, library):
    """Not so elastic_transform: 1 and 2 shear an image by 10 and 20 % of its size, 3 to 5 by 2 %, as in ImageNet-C."""
    rows = open_data(folder)
    clean = clean_pixels(rows).astype(float)
    change = {}
    for severity in (1, 5):
        found = pixels_of(corrupted(rows, cache, corruption, severity))
        assert found.dtype == np.uint8
        assert found.shape == clean.shape
        each = np.abs(found - clean).mean(axis=(1, 2, 3))
        assert (each > 0.5).all()
        change[severity] = each.mean()
    assert change[1] != change[5]
    if corruption != "elastic_transform":
        assert change[5] > change[1]


@SIZES
@pytest.mark.parametrize("corruption", IMAGE_CORRUPTIONS)
def test_an_image_is_what_the_library_makes_of_it_under_the_seed_of_its_row(
    corruption, first_size, folder, cache, library
):
    rows = open_data(folder)
    kind = library.corruption_transforms[IMAGE_CORRUPTIONS.index(corruption)]
    found = pixels_of(corrupted(rows, cache, corruption, 3, first_size, seed=7))
    for row, clean in enumerate(clean_pixels(rows, first_size)):
        seed = seed_of(7, row, corruption, 3)
        seed_all(seed)
        try:
            transform = kind(3, seed=seed)
        except TypeError:
            transform = kind(3)
        image = transform(torch.from_numpy(clean).permute(2, 0, 1).float() / 255)
        expected = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
        assert np.array_equal(found[row], expected.numpy())


@pytest.mark.parametrize("corruption", ["gaussian_noise", "impulse_noise", "glass_blur", "frost", "fog"])
def test_a_row_is_corrupted_alike_alone_in_a_sample_and_in_the_whole_set(corruption, folder, cache, library):
    rows = open_data(folder)
    whole = pixels_of(corrupted(rows, cache, corruption, 2))
    for part in (rows[4:5], rows[2:7], rows.sample(4, seed=1)):
        assert np.array_equal(pixels_of(corrupted(part, cache, corruption, 2)), whole[part.chosen])


def test_random_corruptions_differ_by_row_and_by_seed(cache, tmp_path, library):
    np.savez(tmp_path / "same.npz", images=np.full((2, 32, 32, 3), 128, dtype=np.uint8))
    rows = open_data(tmp_path / "same.npz")
    one, other = pixels_of(corrupted(rows, cache, "gaussian_noise", 1))
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, pixels_of(corrupted(rows, cache, "gaussian_noise", 1, seed=1))[0])


@SIZES
def test_images_that_are_not_corrupted_reach_the_model_to_the_bit_as_clean_ones(first_size, folder, tmp_path):
    """The whole path with the identity in the place of a corruption: to float and back, to disk and back, batches."""
    from hydra_ensembles.data.arrays import ArraysTable

    rows = open_data(folder)[1:8]
    clean = batches_for(PREPROCESS, rows, first_size=first_size, batch_size=3)
    path = tmp_path / "same.npz"
    write_images(path, rows, cut_before(clean.transform), identity)
    shifted = of_cut_images(clean, rows_under(PixelsTable(rows, "nothing/1", ArraysTable(path)), rows))
    assert torch.equal(inputs_of(shifted), inputs_of(clean))
    squashed = batches_for({**PREPROCESS, "crop_mode": "squash"}, rows, first_size=first_size)
    write_images(path, rows, cut_before(squashed.transform), identity)
    shifted = of_cut_images(squashed, rows_under(PixelsTable(rows, "nothing/1", ArraysTable(path)), rows))
    assert torch.equal(inputs_of(shifted), inputs_of(squashed))


@SIZES
def test_batches_hold_the_cached_images_whatever_their_size_and_order(first_size, folder, cache, library):
    rows = open_data(folder)
    images = pixels_of(corrupted(rows, cache, "frost", 4, first_size))
    transform = ImageTransform(PREPROCESS)
    if first_size is not None:
        # The model's own resize comes after.
        images = np.stack([transform(image) for image in images])
    expected = transform.normalised(images)
    options = {"first_size": first_size}
    for more in ({}, {"batch_size": 2, "workers": 0}, {"shuffle": True, "seed": 3, "batch_size": 4}):
        batches = shifted_batches(PREPROCESS, rows, "frost/4", cache, **options, **more)
        assert torch.equal(inputs_of(batches), expected[batches.order])
        assert torch.equal(torch.cat([batch.labels for batch in batches]), rows.labels[batches.order])
    assert batches.digest != batches_for(PREPROCESS, rows, **options, **more).digest


@pytest.fixture
def member():
    """A member that counts its classes in another order than a folder does."""
    model = model_of("timm")
    member = prune(model, HeadSet.all(model))
    classes = ["cat", "dog", "bee", "ant", "eel"]
    member.origin = dataclasses.replace(member.origin, classes=classes, preprocess={**PREPROCESS, "kind": "image"})
    return member


def test_labels_and_class_names_survive(member, folder, cache, library):
    in_another_order = open_data(folder, classes=CLASSES[::-1])
    for rows in (open_data(folder), open_data(folder)[4:8], in_another_order):
        images = corrupted(rows, cache, "contrast", 1)
        assert torch.equal(images.labels, rows.labels)
        assert images.classes == rows.classes
        assert images.labels_were_names
        expected = batches_for(member, rows).labels
        assert batches_for(member, images).labels.tolist() == expected.tolist()
        assert shifted_batches(member, rows, "contrast/1", cache).labels.tolist() == expected.tolist()
    assert batches_for(member, open_data(folder)).labels.tolist() == [3, 3, 3, 2, 2, 2, 0, 0, 0]
    assert shifted_batches(member, open_data(folder), "contrast/1", cache, labels=False).labels is None


def test_names_that_the_model_does_not_know_are_refused_as_for_the_clean_set(member, folder, cache, library):
    member.origin = dataclasses.replace(member.origin, classes=["a", "b", "c", "d", "e"])
    with pytest.raises(DataError, match="class 'ant', which the model does not know"):
        batches_for(member, corrupted(open_data(folder), cache, "contrast", 1))


def test_a_class_whose_name_looks_like_a_number_keeps_its_place(tmp_path, cache, library):
    for row, name in enumerate(["10", "10", "bee"]):
        (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name / f"{row}.png").write_bytes(png(np.full((32, 32, 3), 50 * row, dtype=np.uint8)))
    rows = open_data(tmp_path / "set")[:2]
    assert corrupted(rows, cache, "contrast", 1).labels.tolist() == rows.labels.tolist() == [0, 0]


def test_the_cached_file_is_a_data_set_by_itself(folder, tmp_path, library):
    rows = open_data(folder)
    images = corrupted(rows, tmp_path, "fog", 2)
    (file,) = tmp_path.iterdir()
    opened = open_data(file)
    assert np.array_equal(pixels_of(opened), pixels_of(images))
    assert opened.labels.tolist() == rows.labels.tolist()
    assert opened.classes == rows.classes
    np.savez(tmp_path / "plain.npz", images=clean_pixels(rows))
    assert corrupted(open_data(tmp_path / "plain.npz"), tmp_path, "fog", 2).labels is None


def test_a_second_call_reads_the_file_and_does_not_import_the_library(folder, tmp_path, library, monkeypatch):
    first = pixels_of(corrupted(open_data(folder), tmp_path, "snow", 1))
    (file,) = tmp_path.iterdir()
    before = file.stat()
    for name in ("torch_uncertainty", "torch_uncertainty.transforms", "torch_uncertainty.transforms.corruption"):
        monkeypatch.setitem(sys.modules, name, None)
    # Another model's mean is no reason to make the images anew.
    other = ImageTransform({**PREPROCESS, "mean": [0.0, 0.0, 0.0]})
    again = corrupted_images(open_data(folder), "snow", 1, other, tmp_path)
    assert np.array_equal(pixels_of(again), first)
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(MissingExtra, match=r"corrupting images needs the 'eval' extra: pip install"):
        corrupted(open_data(folder), tmp_path, "snow", 2)


def test_whatever_images_depend_on_has_a_file_of_its_own(folder, tmp_path, library):
    rows = open_data(folder)
    corrupted(rows, tmp_path, "contrast", 1)
    corrupted(rows, tmp_path, "contrast", 2)
    corrupted(rows, tmp_path, "brightness", 1)
    corrupted(rows, tmp_path, "contrast", 1, seed=1)
    corrupted(rows, tmp_path, "contrast", 1, first_size=24)
    corrupted(rows[1:], tmp_path, "contrast", 1)
    corrupted(open_data(folder, classes=[*CLASSES, "dog"]), tmp_path, "contrast", 1)
    corrupted_images(rows, "contrast", 1, ImageTransform({**PREPROCESS, "crop_pct": 1.0}), tmp_path)
    corrupted_images(rows, "contrast", 1, ImageTransform({**PREPROCESS, "interpolation": "bilinear"}), tmp_path)
    assert len(list(tmp_path.iterdir())) == 9
    plain, other = clean_pixels(rows), clean_pixels(rows)
    other[-1, -1, -1, -1] ^= 1
    for pixels in (plain, other):
        np.savez(tmp_path / "set.npz", images=pixels)
        corrupted(open_data(tmp_path / "set.npz"), tmp_path / "pixels", "contrast", 1)
    assert len(list((tmp_path / "pixels").iterdir())) == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_made_again(share, folder, tmp_path, library):
    first = pixels_of(corrupted(open_data(folder), tmp_path, "gaussian_noise", 1))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert np.array_equal(pixels_of(corrupted(open_data(folder), tmp_path, "gaussian_noise", 1)), first)


def test_a_killed_write_leaves_nothing_that_is_taken_for_whole(folder, tmp_path, library):
    rows = open_data(folder)
    first = pixels_of(corrupted(rows, tmp_path, "gaussian_noise", 1))
    (file,) = tmp_path.iterdir()
    file.unlink()

    def killed_at_row_5(image, row):
        if row == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return image

    child = os.fork()
    if child == 0:
        write_images(file, rows, cut_before(ImageTransform(PREPROCESS)), killed_at_row_5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not file.exists()
    assert len(list(tmp_path.iterdir())) == 1
    assert np.array_equal(pixels_of(corrupted(rows, tmp_path, "gaussian_noise", 1)), first)


def test_an_interrupted_write_leaves_nothing(folder, tmp_path):
    def interrupted(image, row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_images(tmp_path / "a.npz", open_data(folder), cut_before(ImageTransform(PREPROCESS)), interrupted)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("corruption", ["gaussian_noise", "glass_blur", "frost", "elastic_transform"])
def test_the_callers_random_states_are_untouched(corruption, folder, tmp_path, library):
    seed_all(5)
    before = json.dumps({**random_states(), "torch": torch.get_rng_state().tolist()}, default=str)
    corrupted(open_data(folder), tmp_path, corruption, 1)
    assert json.dumps({**random_states(), "torch": torch.get_rng_state().tolist()}, default=str) == before
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    corrupted(open_data(folder), tmp_path, corruption, 2)
    seed_all(5)
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())


def test_a_set_larger_than_a_read_is_written_in_order(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (150, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "many.npz", images=pixels)
    transform = ImageTransform({**PREPROCESS, "crop_pct": 1.0})
    shown = []
    write_images(tmp_path / "same.npz", open_data(tmp_path / "many.npz"), transform, identity, lambda: shown.append(1))
    assert np.array_equal(np.load(tmp_path / "same.npz")["images"], pixels)
    assert len(shown) == 150


def test_a_bar_is_shown_on_a_terminal_alone(folder, tmp_path, library, capsys, monkeypatch):
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    corrupted(open_data(folder), tmp_path, "contrast", 1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any stream for a terminal
    corrupted(open_data(folder), tmp_path, "contrast", 2)
    shown = capsys.readouterr()
    assert "corrupting images  contrast/2" in shown.err
    assert shown.out == ""
    corrupted(open_data(folder), tmp_path, "contrast", 3, progress=False)
    assert capsys.readouterr() == ("", "")


def test_images_that_cannot_be_had_are_refused_in_one_line(folder, tmp_path, library):
    for row, data in enumerate([png(np.zeros((8, 8, 3), dtype=np.uint8)), b"no image"]):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{row}.png").write_bytes(data)
    with pytest.raises(DataError, match=r"row 1 of .*set: not a readable image: UnidentifiedImageError"):
        corrupted(open_data(tmp_path / "set"), tmp_path / "cache", "contrast", 1)
    with pytest.raises(ShiftError, match=r"row 0 of .*: an image of 8 pixels cannot be corrupted so: RuntimeError"):
        corrupted(open_data(tmp_path / "set"), tmp_path / "cache", "defocus_blur", 1, first_size=8)
    assert not list((tmp_path / "cache").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ShiftError, match=r"contrast-1-.*npz cannot be written: "):
        corrupted(open_data(folder), tmp_path / "file", "contrast", 1)


# Names


def test_a_shift_has_a_name():
    assert [parse_shift(f"{name}/{level}") for name in IMAGE_CORRUPTIONS for level in SEVERITIES] == list(
        itertools.product(IMAGE_CORRUPTIONS, SEVERITIES)
    )
    assert parse_shift("word_swap/1", "text") == ("word_swap", 1)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("snow", None, r"'snow' has no severity; a shift is written CORRUPTION/SEVERITY, as gaussian_noise/3"),
        ("snow", "text", "as character_swap/3"),
        ("rain/1", "image", "'rain' is not known for images; it is one of gaussian_noise, .*, jpeg_compression$"),
        ("snow/1", "text", "'snow' is not known for texts; it is one of character_swap, .*, word_repeat$"),
        ("rain/1", None, "one of gaussian_noise, .*word_repeat$"),
        ("snow/0", None, "severity 0 of snow is not known; it is one of 1, 2, 3, 4, 5$"),
        ("snow/six", None, "severity six of snow"),
        ("snow/", None, "severity  of snow"),
    ],
)
def test_names_that_are_none_are_refused_with_those_that_are(name, kind, message):
    with pytest.raises(ShiftError, match=message) as raised:
        parse_shift(name, kind)
    assert "\n" not in str(raised.value)


def test_shifts_that_do_not_fit_the_data_are_refused(folder, text_rows, tmp_path):
    rows = open_data(folder)
    with pytest.raises(ShiftError, match="severity 6"):
        corrupted(rows, tmp_path, "snow", 6)
    with pytest.raises(ShiftError, match="not known for images"):
        corrupted(rows, tmp_path, "word_swap", 1)
    with pytest.raises(ShiftError, match=r"snow is for images, but .* holds texts"):
        corrupted(text_rows, tmp_path, "snow", 1)
    with pytest.raises(ShiftError, match=r"word_swap is for texts, but .* holds images"):
        corrupted_texts(rows, "word_swap", 1)
    with pytest.raises(ShiftError, match="severity 0"):
        corrupted_text("a b", "word_swap", 0, seed=0)
    with pytest.raises(ShiftError, match="not known for images"):
        shifted_batches(PREPROCESS, rows, "word_swap/1", tmp_path)
    with pytest.raises(ShiftError, match="augment='flip' is for training"):
        shifted_batches(PREPROCESS, rows, "snow/1", tmp_path, augment="flip")
    assert not list(tmp_path.glob("*.npz"))


# Texts

WORDS = st.lists(st.text("abcxyzABZ019.,'漢ü😀", min_size=1, max_size=8), max_size=30).map(" ".join)
ANY_TEXT = st.text(max_size=60) | st.text("ab \t\nZ", max_size=60) | WORDS
EVERY = pytest.mark.parametrize("corruption", TEXT_CORRUPTIONS)


@pytest.fixture
def text_rows(tmp_path):
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    return open_data(tmp_path / "texts.jsonl")


def is_within(short, long):
    """Is one sequence what is left of another after some of it was left out?"""
    rest = iter(long)
    return all(part in rest for part in short)


@EVERY
@settings(max_examples=60)
@given(text=ANY_TEXT, seed=st.integers(0, 2**63 - 1))
def test_a_text_never_becomes_empty_and_is_the_same_every_time(corruption, text, seed):
    state = np.random.get_state()[1].tolist()
    for severity in SEVERITIES:
        found = corrupted_text(text, corruption, severity, seed)
        assert bool(found.strip()) == bool(text.strip())
        assert found == corrupted_text(text, corruption, severity, seed)
        assert text.strip() or found == text
    assert np.random.get_state()[1].tolist() == state


@EVERY
@settings(max_examples=60)
@given(text=ANY_TEXT, seed=st.integers(0, 2**63 - 1))
def test_what_is_wrong_at_one_severity_is_wrong_at_the_next(corruption, text, seed):
    unit, _, action = corruption.partition("_")
    levels = [corrupted_text(text, corruption, severity, seed) for severity in SEVERITIES]
    clean, *levels = [level.split() if unit == "word" else list(level) for level in (text, *levels)]
    for weak, strong in itertools.pairwise([clean, *levels]):
        if action == "delete":
            assert is_within(strong, weak)
        elif action in ("insert", "repeat"):
            assert is_within(weak, strong)
        else:
            wrong = [place for place, part in enumerate(weak) if part != clean[place]]
            assert len(strong) == len(clean)
            assert all(strong[place] == weak[place] for place in wrong)
    if action == "swap":
        assert all(sorted(level) == sorted(clean) for level in levels)


@settings(max_examples=60)
@given(text=ANY_TEXT, seed=st.integers(0, 2**63 - 1), severity=st.sampled_from(SEVERITIES))
def test_a_severity_touches_its_share(text, seed, severity):
    solid, words = len("".join(text.split())), len(text.split())

    def share(unit, of, each=100):
        return -(-PERCENT_TOUCHED[unit][severity - 1] * of // each)

    assert len(corrupted_text(text, "character_insert", severity, seed)) == len(text) + share("character", solid)
    fewer = min(share("character", solid), max(solid - 1, 0))
    assert len(corrupted_text(text, "character_delete", severity, seed)) == len(text) - fewer
    repeated = corrupted_text(text, "word_repeat", severity, seed).split()
    assert len(repeated) == words + share("word", words)
    left = corrupted_text(text, "word_delete", severity, seed).split()
    assert len(left) == words - min(share("word", words), max(words - 1, 0))
    swapped = corrupted_text(text, "word_swap", severity, seed).split()
    wrong = sum(one != other for one, other in zip(swapped, text.split(), strict=True))
    assert wrong <= 2 * share("word", words, 200)
    assert wrong >= 2 or len(set(text.split())) < 2


def test_a_replaced_character_is_a_neighbour_on_the_keyboard_in_its_case():
    text = "Quick brown fox 5 漢字, ümläut." * 20
    found = corrupted_text(text, "character_replace", 5, seed=3)
    changed = {(one, other) for one, other in zip(text, found, strict=True) if one != other}
    assert changed
    assert {other for one, other in changed if one == "f"} <= set("drtgcv")
    assert {other for one, other in changed if one == "Q"} <= set("12WA")
    assert {other for one, other in changed if one == "5"} <= set("46rt")
    assert not {one for one, _ in changed} & set(" 漢字ü,.")


def test_words_come_and_go_with_their_spaces():
    text = "  one\ttwo  three\nfour "
    for seed in range(10):
        for severity in SEVERITIES:
            found = corrupted_text(text, "word_delete", severity, seed)
            assert found.startswith("  ")
            assert found.endswith(" ")
            assert found.strip() == found[2:-1]
        assert re.findall(r"\s+", corrupted_text(text, "word_swap", 5, seed)) == re.findall(r"\s+", text)
    assert corrupted_text(" one ", "word_repeat", 1, seed=0) == " one one "


@EVERY
def test_texts_under_a_shift_keep_labels_rows_and_order(corruption, text_rows, tmp_path):
    shifted = corrupted_texts(text_rows, corruption, 3, seed=2)
    assert torch.equal(shifted.labels, text_rows.labels)
    texts = [row.input for row in shifted]
    assert texts == [
        corrupted_text(text, corruption, 3, seed_of(2, row, corruption, 0)) for row, text in enumerate(TEXTS)
    ]
    assert texts != TEXTS
    part = corrupted_texts(text_rows[3:6], corruption, 3, seed=2)
    assert [row.input for row in part] == texts[3:6]
    assert corrupted_texts(text_rows, corruption, 3, seed=3).digest != shifted.digest != text_rows.digest


def test_batches_of_texts_are_tokens_of_corrupted_texts(text_rows, tmp_path):
    preprocess = {"kind": "text", "tokenizer": tiny_tokenizer().to_str()}
    batches = shifted_batches(preprocess, text_rows, "character_delete/5", tmp_path, shift_seed=4, batch_size=3)
    texts = [row.input for row in corrupted_texts(text_rows, "character_delete", 5, seed=4)]
    places = iter(batches.order.tolist())
    for batch in batches:
        those = list(itertools.islice(places, len(batch)))
        expected = batches.tokenizer([texts[place] for place in those])
        assert torch.equal(batch.inputs["input_ids"], expected["input_ids"])
        assert batch.labels.tolist() == [LABELS[place] for place in those]


def test_both_texts_of_a_pair_are_corrupted_each_in_its_own_way(tmp_path):
    same = "one two three four five six seven eight"
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tlabel\n{same}\t{same}\tyes\n{same}\tx\tno\n")
    rows = open_data(tmp_path / "pairs.tsv")
    shifted = corrupted_texts(rows, "word_swap", 5)
    (first, second), (third, short) = (row.input for row in shifted)
    assert len({same, first, second, third}) == 4
    assert short == "x"
    assert shifted.classes == ["no", "yes"]
    assert shifted.labels.tolist() == [1, 0]
