"""What an installation must be able to do, with nothing but the core and with one extra: run somebody's hydra.

python .ci/installed.py make DIR          (in the project's environment)
python .ci/installed.py try DIR [EXTRA]   (in the new one; run by .ci/install)
"""

import sys
from importlib import import_module

import torch

import hydra_ensembles
from hydra_ensembles import Hydra

BRINGS = {
    "vision": ["timm", "torchvision"],
    "text": ["transformers"],
    "clip": ["open_clip"],
    "data": ["pyarrow", "PIL", "tokenizers"],
    "train": ["accelerate", "peft"],
    "eval": ["torchmetrics", "torch_uncertainty"],
    "report": ["matplotlib", "jinja2"],
    "hub": ["huggingface_hub"],
    "sklearn": ["sklearn"],
    "scale": ["ray", "fastapi"],
    "export": ["onnx", "onnxruntime"],
    "docs": ["mkdocs"],
}


def make(directory: str) -> None:
    import timm

    from hydra_ensembles import HeadSet, fuse, prune

    model = timm.create_model("test_vit", img_size=32, num_classes=4, depth=3, num_heads=4).eval()
    fuse([prune(model, HeadSet.sample(model, keep=8, seed=seed)) for seed in range(3)]).save(directory)


def attempt(directory: str, extra: str) -> None:
    for module in BRINGS.get(extra, []):
        import_module(module)
    for name in hydra_ensembles.__all__:
        getattr(hydra_ensembles, name)
    said = Hydra.load(directory).predict(torch.randn(2, 3, 32, 32))
    assert said.probs.shape == (2, 4)
    print(f"hydra-ensembles {hydra_ensembles.__version__} with {extra or 'nothing else'}: installed, loaded, answered")


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else attempt(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
