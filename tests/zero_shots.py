"""Tiny zero-shot classifiers with random weights, one for each library that they can come from."""

import copy

import torch

from families import BY_NAME, model_of
from hydra_ensembles import ZeroShotClassifier

CLASSES = ["cat", "dog", "newt", "owl"]
TEMPLATES = ("a photo of a {}.", "art of a {}")
NAMES = ["hf-clip", "hf-siglip", "open_clip", "open_clip-custom", "open_clip-borrowed"]


def tokenize(texts):
    """Letters as ids, an end of text, padding up to the context length: as CLIP's tokenisers do."""
    ids = torch.zeros(len(texts), 9, dtype=torch.int64)
    for row, text in enumerate(texts):
        letters = [4 + ord(letter) % 45 for letter in text.replace(" ", "")[-6:]]
        ids[row, : len(letters) + 1] = torch.tensor([*letters[: 3 + row % 3], 49, *letters[3 + row % 3 :]])
        ids[row, 4 + row % 3 :] = 0
        ids[row, 3 + row % 3] = 49
    return ids


def ending_in_3(ids):
    return torch.where(ids == 49, 3, ids)


def classifier_of(name):
    model = copy.deepcopy(model_of(name))
    if name in ("hf-clip", "open_clip-custom"):  # their end of text is 3
        return ZeroShotClassifier.of(
            model, CLASSES, lambda t: torch.where(tokenize(t) == 49, 3, tokenize(t)), TEMPLATES
        )
    return ZeroShotClassifier.of(model, CLASSES, tokenize, TEMPLATES)


def images(number=6, seed=0):
    return BY_NAME["open_clip"].inputs(number, 9, seed)["vision"]


def write_tokenizer(directory, length=9):
    """A tokeniser of a few words that transformers reads, with the end of text that tiny models know."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        "<pad>": 0,
        "<start>": 1,
        "<unknown>": 2,
        "<end>": 3,
        "photo": 4,
        "cat": 5,
        "dog": 6,
        "ant": 7,
        "bee": 8,
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", model_max_length=length).save_pretrained(
        directory
    )
