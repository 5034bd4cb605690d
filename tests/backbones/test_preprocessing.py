"""What the files beside a transformers model say is what its own library makes of them."""

import json

import numpy as np
import pytest
import torch

from families import _bert_layout, model_of
from hydra_ensembles import Backbone
from hydra_ensembles.backbones import torchvision
from hydra_ensembles.backbones.preprocessing import transformers_preprocess
from hydra_ensembles.data import ImageTransform
from tiny_sets import tiny_tokenizer


def check_is_theirs(directory, processor):
    """An image comes out as the processor has it."""
    image = np.random.default_rng(0).integers(0, 256, (50, 80, 3), dtype=np.uint8)
    transform = ImageTransform(transformers_preprocess(directory, model_of("hf-vit").config))
    theirs = processor(image, return_tensors="pt").pixel_values[0].float()
    torch.testing.assert_close(transform.normalised(transform(image)[None])[0], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "Ernie"])
def test_texts_are_as_long_as_the_model_takes(name, tmp_path):
    model = _bert_layout(name, pad_token_id=1).eval()
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer().to_str())
    longest = transformers_preprocess(tmp_path, model.config)["max_tokens"]
    assert longest == Backbone.of(model).towers["text"].stem.max_tokens
    with torch.no_grad():
        model(torch.full((1, longest), 5))


@pytest.mark.parametrize(
    ("size", "crop"),
    [
        ({"height": 20, "width": 20}, {"height": 16, "width": 16}),
        ({"height": 20, "width": 20}, None),
        ({"shortest_edge": 20}, {"height": 16, "width": 16}),
    ],
)
def test_images_are_resized_and_cut_as_their_processor_does(size, crop, tmp_path):
    from transformers import CLIPImageProcessorPil

    settings = {"size": size, "do_center_crop": crop is not None, **({} if crop is None else {"crop_size": crop})}
    processor = CLIPImageProcessorPil(resample=3, **settings)
    processor.save_pretrained(tmp_path)
    check_is_theirs(tmp_path, processor)


def test_a_whole_processor_says_how_images_are_prepared(tmp_path):
    from transformers import CLIPImageProcessorPil, CLIPProcessor, CLIPTokenizer

    tokenizer = CLIPTokenizer({"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}, [])
    images = CLIPImageProcessorPil(resample=2, size={"height": 16, "width": 16}, do_center_crop=False)
    CLIPProcessor(images, tokenizer).save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    check_is_theirs(tmp_path, images)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("CLIPFeatureExtractor", 16), ("CLIPImageProcessor", 20), ("BitImageProcessor", 20), ("DeiTFeatureExtractor", 20)],
)
def test_a_bare_number_as_size_means_what_its_processor_means(kind, size, tmp_path):
    import transformers

    about = {"size": size, "crop_size": 16, "do_center_crop": True, "resample": 3, "do_resize": True}
    about |= {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    name = "feature_extractor_type" if kind.endswith("FeatureExtractor") else "image_processor_type"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({name: kind, **about}))
    theirs = getattr(transformers, kind.replace("FeatureExtractor", "ImageProcessor") + "Pil")(**about)
    check_is_theirs(tmp_path, theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"rescale_factor": 1 / 127.5, "do_normalize": False},
    ],
)
def test_pixels_are_scaled_as_their_processor_does(settings, tmp_path):
    from transformers import ViTImageProcessorPil

    processor = ViTImageProcessorPil(size={"height": 16, "width": 16}, resample=3, **settings)
    processor.save_pretrained(tmp_path)
    check_is_theirs(tmp_path, processor)


@pytest.mark.parametrize("size", [32, 400])
def test_images_are_cut_as_convnext_does(size, tmp_path):
    from transformers import ConvNextImageProcessorPil

    processor = ConvNextImageProcessorPil(size={"shortest_edge": size}, crop_pct=0.875, resample=3)
    processor.save_pretrained(tmp_path)
    check_is_theirs(tmp_path, processor)


@pytest.mark.parametrize(
    ("name", "weights"),
    [("vit_b_16", "IMAGENET1K_V1"), ("vit_l_16", "IMAGENET1K_V1"), ("vit_b_16", "IMAGENET1K_SWAG_E2E_V1")],
)
def test_torchvision_models_are_prepared_for_as_their_weights_say(name, weights):
    from torchvision.models import get_model, get_model_weights

    theirs = get_model_weights(name)[weights].transforms()
    with torch.device("meta"):
        model = get_model(name, image_size=theirs.crop_size[0])
    found = ImageTransform(torchvision.origin(model).preprocess)
    assert (found.scaled_size, found.size) == (theirs.resize_size[0], theirs.crop_size[0])
    assert found.interpolation == theirs.interpolation.value
