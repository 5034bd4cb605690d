"""Small images and texts, and a tokeniser for them."""

import io

from PIL import Image

IMAGE = {"kind": "image", "size": 16, "interpolation": "bicubic", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
CLASSES = ["ant", "bee", "cat"]
TEXTS = [
    "plain words",
    "a comma, and more",
    '"quoted" at the start',
    "ümläuts and 漢字",
    "x",
    "  spaces around  ",
    "one two three four five six seven",
]
LABELS = [0, 1, 1, 0, 2, 1, 0]


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def tiny_tokenizer():
    """Letters and a few words, as BERT's does it: [CLS] a [SEP], [CLS] a [SEP] b [SEP]."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = ["plain", "words", "one", "two", "three", "four", *"abcdefghijklmnopqrstuvwxyz", ",", '"']
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*special, *words])}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer
