"""An image becomes what the model's own library would make of it; training images vary, and repeat themselves."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from families import model_of
from hydra_ensembles.backbones import load_model, origin_of
from hydra_ensembles.backbones.preprocessing import transformers_preprocess
from hydra_ensembles.data import DataError, ImageTransform, batches_for, load_data, open_data, prepare
from hydra_ensembles.data.images import as_rgb, decoded
from tiny_sets import IMAGE, png

SHAPES = [(32, 32), (51, 80), (80, 51), (7, 9), (300, 200), (224, 224)]


def image_of(shape):
    pixels = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def ours(preprocess, image, **settings):
    transform = ImageTransform(preprocess, **settings)
    return transform.normalised(transform(png(np.asarray(image)))[None])[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("crop_pct", "crop_mode"), [(0.9, "center"), (1.0, "center"), (0.875, "squash"), (1.0, "squash")]
)
def test_images_are_to_the_bit_what_timm_makes_of_them(shape, interpolation, crop_pct, crop_mode):
    from timm.data import create_transform

    settings = {"interpolation": interpolation, "crop_pct": crop_pct, "crop_mode": crop_mode}
    preprocess = {**IMAGE, **settings, "size": 48}
    theirs = create_transform(48, mean=IMAGE["mean"], std=IMAGE["std"], **settings)
    assert torch.equal(ours(preprocess, image_of(shape)), theirs(image_of(shape)))


def test_a_timm_model_is_prepared_for_as_timm_resolves_it():
    from timm.data import create_transform, resolve_model_data_config

    model = load_model("timm:vit_tiny_patch16_224", weights=False)
    theirs = create_transform(**resolve_model_data_config(model))
    assert torch.equal(ours(origin_of(model).preprocess, image_of((300, 260))), theirs(image_of((300, 260))))


def test_a_torchvision_model_is_prepared_for_as_its_weights_say():
    from torchvision.models import ViT_B_16_Weights

    model = load_model("torchvision:vit_b_16", weights=False)
    theirs = ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    found, expected = ours(origin_of(model).preprocess, image_of((300, 260))), theirs(image_of((300, 260)))
    assert torch.allclose(found, expected, atol=1e-6)


def test_an_open_clip_model_is_prepared_for_as_open_clip_does():
    from open_clip import image_transform

    preprocess = origin_of(model_of("open_clip")).preprocess
    theirs = image_transform(16, is_train=False)
    assert torch.allclose(ours(preprocess, image_of((50, 80))), theirs(image_of((50, 80))), atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"do_center_crop": True, "size": {"shortest_edge": 20}, "crop_size": 16}])
def test_a_transformers_model_is_prepared_for_as_its_image_processor_does(settings, tmp_path):
    import transformers

    kind = "CLIPImageProcessorPil" if settings else "ViTImageProcessorPil"
    processor = getattr(transformers, kind)(**{"size": {"height": 16, "width": 16}, "resample": 3, **settings})
    processor.save_pretrained(tmp_path)
    preprocess = transformers_preprocess(tmp_path, model_of("hf-vit").config)
    theirs = processor(image_of((50, 80)), return_tensors="pt").pixel_values[0]
    assert torch.allclose(ours(preprocess, image_of((50, 80))), theirs, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32), (28, 28), (64, 90)])
def test_first_size_is_a_resize_and_a_cut_before_all_else(shape):
    """As OpenOOD has it: short side to 32, bilinear, then the middle; the model's own transform comes after."""
    from torchvision.transforms import CenterCrop, Compose, Resize

    first = Compose([Resize(32), CenterCrop(32)])(image_of(shape))
    assert torch.equal(ours(IMAGE, image_of(shape), first_size=32), ours(IMAGE, first))


@pytest.mark.parametrize("augment", ["flip", "crop", "resized-crop"])
def test_augmentation_depends_on_seed_epoch_and_row_alone(augment, picture_sets):
    def images(epoch, **options):
        batches = load_data(picture_sets["folder"], IMAGE, augment=augment, **options)
        return torch.cat([batch.inputs for batch in batches.epoch(epoch)])

    first = images(0)
    assert torch.equal(first, images(0, batch_size=5, workers=0))
    assert not torch.equal(first, images(1))
    assert not torch.equal(first, images(0, seed=1))
    shuffled = load_data(picture_sets["folder"], IMAGE, augment=augment, shuffle=True)
    assert torch.equal(images(0, shuffle=True), first[shuffled.order])


def test_a_flip_is_the_image_or_its_mirror_image(picture_sets):
    plain = torch.cat([batch.inputs for batch in load_data(picture_sets["folder"], IMAGE)])
    flipped = torch.cat([batch.inputs for batch in load_data(picture_sets["folder"], IMAGE, augment="flip")])
    same = [torch.equal(a, b) for a, b in zip(plain, flipped, strict=True)]
    mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(plain, flipped, strict=True)]
    assert all(one or other for one, other in zip(same, mirrored, strict=True))
    assert 0 < sum(mirrored) < 12


def test_a_shuffled_epoch_has_every_row_once_in_its_own_order(picture_sets):
    batches = load_data(picture_sets["structs.parquet"], IMAGE, batch_size=5, shuffle=True, seed=3)
    passes = [torch.cat([batch.inputs for batch in batches.epoch(number)]) for number in (0, 0, 1)]
    assert torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0], passes[2])
    plain = torch.cat([batch.inputs for batch in load_data(picture_sets["structs.parquet"], IMAGE)])
    for one in passes:
        assert torch.equal(one.flatten(1).sum(1).sort().values, plain.flatten(1).sum(1).sort().values)
    assert torch.equal(passes[0][batches.order.argsort()], plain)


def test_the_digest_says_what_is_done_to_the_rows(picture_sets):
    rows = open_data(picture_sets["folder"])
    variants = [{}, {"batch_size": 5}, {"shuffle": True}, {"first_size": 8}, {"augment": True}, {"labels": False}]
    digests = [batches_for(IMAGE, rows, **options).digest for options in variants]
    digests += [batches_for({**IMAGE, "size": 8}, rows).digest, batches_for(IMAGE, rows[1:]).digest]
    assert len(set(digests)) == len(digests)
    assert batches_for(IMAGE, rows).digest == digests[0]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"mean": None}, {}, "lacks 'mean'"),
        ({"interpolation": "magic"}, {}, "interpolation 'magic' is not known; it is one of nearest"),
        ({"crop_mode": "border"}, {}, "crop_mode 'border'"),
        ({"size": [16, 32]}, {}, r"size \[16, 32\]"),
        ({}, {"augment": "mixup"}, "augment='mixup' is not known"),
        ({}, {"max_tokens": 3}, "max_tokens is for texts"),
        ({}, {"batch_size": 0}, "at least one row"),
        ({}, {"seed": -1}, "not negative"),
        ({"kind": "text"}, {}, "the model takes texts, but .* holds images"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, options, message, picture_sets):
    with pytest.raises(DataError, match=message):
        load_data(picture_sets["folder"], {**IMAGE, **change}, **options)


def test_images_of_16_bits_are_those_of_8_and_of_32_are_refused():
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    assert deep.mode.startswith("I;16")
    expected = np.asarray(Image.fromarray(ramp).convert("RGB"))
    assert np.array_equal(np.asarray(as_rgb(deep)), expected)
    assert torch.equal(prepare(IMAGE, [deep]), prepare(IMAGE, [Image.fromarray(ramp)]))
    with pytest.raises(DataError, match="32 bits a pixel"):
        as_rgb(Image.fromarray(ramp.astype(np.float32) / 255))


def test_a_pgm_of_16_bits_is_one_of_8_and_no_other_program_is_asked_to_read_bytes(tmp_path):
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint16), (64, 1))
    header = b"P5 64 64 65535\n"
    assert np.array_equal(np.asarray(decoded(header + (ramp * 257).astype(">u2").tobytes()))[..., 0], ramp)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="EPS")
    with pytest.raises(OSError, match="cannot identify image file"):
        decoded(buffer.getvalue())
