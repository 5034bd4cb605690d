"""What a candidate of a search costs: a head of the text tower against one of the same layer of the image tower.

Run: python benchmarks/clip/candidates.py [--images 1000]
Writes results/clip/candidates.json. ViT-B/32 shapes with random weights (times do not depend on them), 100 classes with
one prompt each, batches as in a search, one thread, seconds of the processor. A candidate's time is what a pass through
its tower takes more with it than without it (where it is short, that of several, divided by their number), and the
meeting of its features with those of the other tower.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import open_clip
import torch
from torch import Tensor

from clip.judging import write
from clip.setting import TOY
from clip.task import TEMPLATES
from hydra_ensembles import Backbone, HeadSet, ZeroShotClassifier
from hydra_ensembles.heads import Head
from hydra_ensembles.scoring.candidates import tower_features
from hydra_ensembles.scoring.work import Work

CLASSES, BATCH, TIMES = 100, 32, 9
HEADS = {0: 1, 6: 2, 11: 12}
"""By layer, how many heads of the image tower are tried; of the text tower, all eight."""


def seconds(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def more_seconds(backbone: Backbone, tower: str, inputs: Any, heads: Sequence[Head], times: int) -> float:
    """What one of the candidates takes beside a pass without any."""
    work = Work(HeadSet.all(backbone))

    def through(candidates: Sequence[Head]) -> None:
        list(tower_features(tower, backbone.towers[tower], inputs, candidates, work))

    took = [seconds(lambda: through(heads)) - seconds(lambda: through([])) for _ in range(times)]
    return median(took) / len(heads)


@torch.no_grad()
def measured(images: int) -> dict[str, Any]:
    """By layer, seconds of a candidate of each tower at so many images."""
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-32").eval()
    names = [f"thing number {number}" for number in range(CLASSES)]
    classifier = ZeroShotClassifier.of(model, names, open_clip.get_tokenizer("ViT-B-32"), TEMPLATES).eval()
    backbone = Backbone.of(classifier)
    sizes = [min(BATCH, images - start) for start in range(0, images, BATCH)]
    features = torch.randn(BATCH, model.visual.output_dim)
    texts = torch.randn(CLASSES, model.visual.output_dim)

    def meeting(size: int) -> Tensor:
        return backbone.join({"vision": features[:size], "text": texts})

    join = median([sum(seconds(lambda size=size: meeting(size)) for size in sizes) for _ in range(TIMES)])  # type: ignore[misc]
    layers = {}
    for layer, number in HEADS.items():
        text = more_seconds(backbone, "text", None, [Head("text", layer, head) for head in range(8)], TIMES)
        tried = [Head("vision", layer, head) for head in range(number)]
        vision = sum(more_seconds(backbone, "vision", torch.randn(size, 3, 224, 224), tried, 1) for size in sizes)
        layers[str(layer)] = {
            "text_s": text + join,
            "vision_s": vision + join,
            "share": (text + join) / (vision + join),
        }
        print(f"layer {layer}: {layers[str(layer)]}", flush=True)
    total = {tower: sum(found[f"{tower}_s"] for found in layers.values()) for tower in ("text", "vision")}
    return {
        "images": images,
        "classes": CLASSES,
        "prompt_tokens": classifier.prompts.shape[-1],
        "batch": BATCH,
        "join_s": join,
        "layers": layers,
        "share_of_all": total["text"] / total["vision"],
    }


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    images = parser.parse_args().images
    if images != 1000 and not TOY:
        raise SystemExit("results are for 1000 images; with another number set HYDRA_TOY=DIR")
    write("clip", "candidates", measured(images))


if __name__ == "__main__":
    main()
