"""A hydra from a CLIP-like model and a list of class names: heads of both towers removed, nothing trained.

Run: python examples/zero_shot.py [open_clip:ViT-B-32]     (needs the extra clip; random weights, to show the steps)
"""

import sys

import open_clip
import torch

from hydra_ensembles import HeadSet, ZeroShotClassifier, fuse, load_model, prune
from hydra_ensembles.backbones.references import tokenizer_of

CLASSES = ["cat", "dog", "newt", "heron"]
TEMPLATES = ["a photo of a {}.", "a drawing of a {}."]


def small_clip() -> tuple[torch.nn.Module, object, int]:
    """Two towers small enough for seconds."""
    clip = open_clip.CLIP(
        embed_dim=64,
        vision_cfg={"image_size": 32, "patch_size": 8, "width": 64, "head_width": 16, "layers": 3},
        text_cfg={"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 4, "layers": 3},
    )
    return clip.eval(), open_clip.SimpleTokenizer(context_length=16), 32


def main() -> None:
    if len(sys.argv) > 1:
        clip, tokenize, size = load_model(sys.argv[1]), tokenizer_of(sys.argv[1]), 224
    else:
        clip, tokenize, size = small_clip()  # type: ignore[assignment]
    classifier = ZeroShotClassifier.of(clip, CLASSES, tokenize, TEMPLATES)  # type: ignore[arg-type]
    full = HeadSet.all(classifier)
    keep = len(full) - max(1, len(full) // 10)  # the paper removes a tenth of the heads of both towers
    members = [prune(classifier, HeadSet.sample(classifier, keep=keep, seed=seed)) for seed in range(3)]
    hydra = fuse(members)  # the text tower runs once, here: its output is a table of class embeddings
    said = hydra.predict(torch.randn(2, 3, size, size))
    print(f"{keep} of {len(full)} heads a member; {hydra.num_classes} classes")
    for label, confidence, epistemic in zip(said.label, said.confidence, said.epistemic, strict=True):
        print(f"{CLASSES[label]}: {confidence:.2f}, members differ by {epistemic:.4f} nats")


if __name__ == "__main__":
    main()
