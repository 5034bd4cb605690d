"""Three more architectures through the whole chain at smoke size: nothing is special to one family.

Run: python benchmarks/vision/architectures.py [--minutes 20]     (minutes on 2 cores)
Writes results/vision-architectures/NAME/*.json for torchvision's ViT, transformers' ViT, and timm's in the manner of
DINOv2 (LayerScale and register tokens). Each starts from DeiT-Ti's weights under the library's own names; LayerScale
starts at 1, and registers, which DeiT has not, near 0. 2,000 training images and two epochs: this shows that the chain
works, no more.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from evidence.judging import results_unit
from evidence.methods import row
from evidence.networks import Networks
from evidence.setting import Setting
from evidence.units import Units
from evidence.workers import asked, run
from hydra_ensembles.backbones import Origin, origin_of
from hydra_ensembles.data import Batches
from vision.setting import BASE, BATCH, FAR, NEAR, PIXELS, ROOT, SETTING, images
from vision.setting import load as load_deit

METHODS = ("single", "single+", "DE(D)", "hydra (Taylor)", "hydra (circuit)", "hydra (random heads)")
WIDTH, LAYERS, HEADS, CLASSES, REGISTERS = 192, 12, 3, 100, 4
ENDS = ("weight", "bias")


def in_torchvision(weights: Mapping[str, Tensor]) -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(PIXELS, 16, LAYERS, HEADS, WIDTH, 4 * WIDTH, num_classes=CLASSES)
    names = {"cls_token": "class_token", "pos_embed": "encoder.pos_embedding"}
    for end in ENDS:
        names |= {f"patch_embed.proj.{end}": f"conv_proj.{end}", f"norm.{end}": f"encoder.ln.{end}"}
        names |= {f"head.{end}": f"heads.head.{end}"}
        for i in range(LAYERS):
            old, new = f"blocks.{i}", f"encoder.layers.encoder_layer_{i}"
            names |= {f"{old}.norm1.{end}": f"{new}.ln_1.{end}", f"{old}.norm2.{end}": f"{new}.ln_2.{end}"}
            names |= {f"{old}.mlp.fc1.{end}": f"{new}.mlp.0.{end}", f"{old}.mlp.fc2.{end}": f"{new}.mlp.3.{end}"}
            names |= {f"{old}.attn.qkv.{end}": f"{new}.self_attention.in_proj_{end}"}
            names |= {f"{old}.attn.proj.{end}": f"{new}.self_attention.out_proj.{end}"}
    model.load_state_dict({names[name]: tensor for name, tensor in weights.items()})
    return model  # type: ignore[no-any-return]


def in_transformers(weights: Mapping[str, Tensor]) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": 4 * WIDTH, "image_size": PIXELS, "num_labels": CLASSES}
    model = ViTForImageClassification(ViTConfig(**sizes, layer_norm_eps=1e-6))
    patches = "vit.embeddings.patch_embeddings.projection"
    found = {"vit.embeddings.cls_token": weights["cls_token"]}
    found |= {"vit.embeddings.position_embeddings": weights["pos_embed"]}
    for end in ENDS:
        found |= {f"{patches}.{end}": weights[f"patch_embed.proj.{end}"], f"classifier.{end}": weights[f"head.{end}"]}
        found |= {f"vit.layernorm.{end}": weights[f"norm.{end}"]}
        for i in range(LAYERS):
            old, new = f"blocks.{i}", f"vit.layers.{i}"
            query, key, value = weights[f"{old}.attn.qkv.{end}"].chunk(3)
            found |= {f"{new}.attention.q_proj.{end}": query, f"{new}.attention.k_proj.{end}": key}
            found |= {f"{new}.attention.v_proj.{end}": value}
            found |= {f"{new}.attention.o_proj.{end}": weights[f"{old}.attn.proj.{end}"]}
            found |= {f"{new}.layernorm_before.{end}": weights[f"{old}.norm1.{end}"]}
            found |= {f"{new}.layernorm_after.{end}": weights[f"{old}.norm2.{end}"]}
            found |= {f"{new}.mlp.{fc}.{end}": weights[f"{old}.mlp.{fc}.{end}"] for fc in ("fc1", "fc2")}
    model.load_state_dict(found)
    return model  # type: ignore[no-any-return]


def in_dinov2_manner(weights: Mapping[str, Tensor]) -> nn.Module:
    from timm.models import VisionTransformer

    sizes = {"img_size": PIXELS, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS, "num_classes": CLASSES}
    # With no_embed_class, positions are those of patches alone, as registers have none.
    model = VisionTransformer(**sizes, init_values=1.0, reg_tokens=REGISTERS, no_embed_class=True)
    positions = weights["pos_embed"]
    ours = {**weights, "cls_token": weights["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    model.load_state_dict({**model.state_dict(), **ours})
    return model  # type: ignore[no-any-return]


ARCHITECTURES: dict[str, Callable[[Mapping[str, Tensor]], nn.Module]] = {
    "torchvision": in_torchvision,
    "transformers": in_transformers,
    "dinov2": in_dinov2_manner,
}


def loader(name: str) -> Callable[[int], nn.Module]:
    """DeiT-Ti with a new classifier, as another library has it."""

    def load(seed: int) -> nn.Module:
        deit = load_deit(seed)
        known = origin_of(deit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = ARCHITECTURES[name](deit.state_dict())
        model.origin = Origin("", "", {}, known.preprocess, known.classes)  # type: ignore[assignment]
        return model.eval()

    return load


def setting_of(name: str) -> Setting:
    """The evidence's setting with another model and few images."""

    def train(model: nn.Module, seed: int) -> Batches:
        return images(model, "cifar100-train.parquet[:2000]", batch_size=BATCH, shuffle=True, seed=seed, augment="flip")

    def tests(model: nn.Module) -> Mapping[str, Batches]:
        known = {"cifar100-test": images(model, "cifar100-test.parquet[:1000]")}
        return known | {one: images(model, f"{one}.parquet[:500]", labels=False) for one in (*NEAR, *FAR)}

    return replace(
        SETTING,
        name=f"vision-architectures/{name}",
        kept=ROOT / ".kept" / "vision-architectures" / name,
        load=loader(name),
        train=train,
        tune=train,
        calibration=lambda model, m: images(model, f"cifar100-train.parquet[{m * 128}:{(m + 1) * 128}]"),
        known_val=lambda model: images(model, "cifar100-val.parquet[:500]"),
        unknown_val=lambda model: images(model, "tiny-imagenet-val.parquet[:500]", labels=False),
        known_search=lambda model: images(model, "cifar100-val.parquet[:64]"),
        unknown_search=lambda model: images(model, "tiny-imagenet-val.parquet[:64]", labels=False),
        tests=tests,
        base=replace(BASE, epochs=2),
        searched=64,
        removed=None,
        shifts=None,
    )


def main() -> None:
    options, plans = asked(__doc__), {}
    for name in ARCHITECTURES:
        setting = setting_of(name)
        networks = Networks(setting, Units(setting.kept))
        wanted = [results_unit(networks, row(networks, method, 0)) for method in METHODS]
        plans[networks.units] = [one for one in wanted if options.only in one]
    run(plans, 2, options.minutes)


if __name__ == "__main__":
    main()
