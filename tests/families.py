"""One small random model a family and variant, every parameter moved off its initial value.

Shapes: B batch, T tokens.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from hydra_ensembles import HeadSet

CLASSES = 5
IMAGE = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": CLASSES}


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    modality: str  # "image", "text" or "both"
    takes_types: bool = False
    pads: bool = False  # texts beside images end in padding, of id 0

    def inputs(self, batch: int, tokens: int, seed: int) -> Any:
        """Inputs of `batch` items; texts of `tokens` tokens with padding anywhere but in front."""
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, 16, 16, generator=generator)
        if self.modality == "image":
            return images
        if self.modality == "both":
            # CLIP's own forward takes texts of its full context length, here 9; the highest id is the end of text.
            text = torch.randint(1, 50, (batch, 9), generator=generator)
            lengths = torch.randint(1, 10, (batch, 1), generator=generator)
            return {"vision": images, "text": text * (torch.arange(9) < lengths) if self.pads else text}
        ids = torch.randint(0, 50, (batch, tokens), generator=generator)
        mask = torch.randint(0, 2, (batch, tokens), generator=generator)
        mask[:, 0] = 1
        fields = {"input_ids": ids, "attention_mask": mask}
        if self.takes_types:
            fields["token_type_ids"] = torch.randint(0, 2, (batch, tokens), generator=generator)
        return fields


def _timm(**kwargs: Any) -> nn.Module:
    from timm.models import VisionTransformer

    return VisionTransformer(**{**IMAGE, **kwargs})


def _timm_gated() -> nn.Module:
    from timm.layers import Attention

    class Gated(Attention):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, gated=True, **kwargs)

    return _timm(attn_layer=Gated)


def _eva(name: str, **kwargs: Any) -> nn.Module:
    import timm

    return timm.create_model(name, **{**IMAGE, **kwargs})


def _swiglu(name: str) -> nn.Module:
    from timm import layers

    return _timm(mlp_layer=getattr(layers, name), act_layer="silu", mlp_ratio=3)


def _torchvision(**kwargs: Any) -> nn.Module:
    from torchvision.models import VisionTransformer

    settings = {
        "image_size": 16,
        "patch_size": 4,
        "num_layers": 3,
        "num_heads": 4,
        "hidden_dim": 32,
        "mlp_dim": 48,
    }
    return VisionTransformer(**settings, num_classes=CLASSES, **kwargs)


def _bert_layout(name: str, **kwargs: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        type_vocab_size=2,
        num_labels=CLASSES,
        **kwargs,
    )
    return getattr(transformers, f"{name}ForSequenceClassification")(config)


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=50,
        dim=32,
        n_layers=3,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=32,
        num_labels=CLASSES,
    )
    return DistilBertForSequenceClassification(config)


def _hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(config)


def _open_clip(model_class: str = "CLIP", vision: dict[str, Any] | None = None, **text: Any) -> nn.Module:
    import open_clip

    return getattr(open_clip, model_class)(
        embed_dim=24,
        vision_cfg={
            "image_size": 16,
            "patch_size": 4,
            "width": 32,
            "head_width": 8,
            "layers": 3,
            **(vision or {}),
        },
        text_cfg={"context_length": 9, "vocab_size": 50, "width": 32, "heads": 4, "layers": 3, **text},
    )


def borrowed_towers(pooler: str = "mean_pooler") -> nn.Module:
    """open_clip's class with a timm trunk and a BERT encoder, put together as open_clip does with fetched ones."""
    import open_clip
    from open_clip.hf_model import HFTextEncoder
    from open_clip.timm_model import TimmModel
    from transformers import BertConfig

    model = _open_clip("CustomTextCLIP")
    visual = TimmModel.__new__(TimmModel)
    nn.Module.__init__(visual)
    visual.image_size, visual.trunk = (16, 16), _timm(num_classes=0)
    visual.head = nn.Sequential()
    visual.head.add_module("proj", nn.Linear(32, 24, bias=False))
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=48, max_position_embeddings=9)
    text = HFTextEncoder("", 24, config=config, pooler_type=pooler, proj_type="linear")
    if pooler != "cls_pooler":
        text.transformer.pooler = None
    assert isinstance(model, open_clip.CustomTextCLIP)
    model.visual, model.text = visual, text
    return model


def _hf_two_towers(name: str) -> nn.Module:
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 50, "max_position_embeddings": 9, "bos_token_id": 1, "eos_token_id": 3}
    vision = {**sizes, "image_size": 16, "patch_size": 4}
    more = {"projection_dim": 24} if name == "CLIP" else {}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision, **more)
    return getattr(transformers, f"{name}Model")(config)


CASES = [
    Case("timm", _timm, "image"),
    Case("timm-mean", lambda: _timm(global_pool="avg"), "image"),
    Case("timm-map", lambda: _timm(global_pool="map", class_token=False), "image"),
    Case(
        "timm-dinov2",
        lambda: _timm(init_values=1e-5, reg_tokens=3, no_embed_class=True, dynamic_img_size=True),
        "image",
    ),
    Case("timm-registers-mean", lambda: _timm(reg_tokens=2, global_pool="avg", fc_norm=False), "image"),
    Case("timm-qk-norm", lambda: _timm(qk_norm=True, qkv_bias=False, pre_norm=True), "image"),
    Case("timm-rms", lambda: _timm(norm_layer="rmsnorm", scale_mlp_norm=True), "image"),
    Case("timm-swiglu", lambda: _swiglu("SwiGLU"), "image"),
    Case("timm-swiglu-packed", lambda: _swiglu("SwiGLUPacked"), "image"),
    Case("timm-glu", lambda: _swiglu("GluMlp"), "image"),
    Case("timm-gated", _timm_gated, "image"),
    Case("timm-eva02-tiny", lambda: _eva("eva02_tiny_patch14_224"), "image"),
    Case("timm-eva02-base", lambda: _eva("eva02_base_patch14_224"), "image"),
    Case("timm-dinov3", lambda: _eva("vit_small_patch16_dinov3"), "image"),
    Case("timm-perception", lambda: _eva("vit_pe_core_tiny_patch16_384"), "image"),
    Case("torchvision", _torchvision, "image"),
    Case("torchvision-hidden", lambda: _torchvision(representation_size=20, dropout=0.1), "image"),
    Case("bert", lambda: _bert_layout("Bert"), "text", takes_types=True),
    Case("roberta", lambda: _bert_layout("Roberta", pad_token_id=1), "text"),
    Case("distilbert", _distilbert, "text"),
    Case("hf-vit", _hf_vit, "image"),
    Case("hf-clip", lambda: _hf_two_towers("CLIP"), "both"),
    Case("hf-siglip", lambda: _hf_two_towers("Siglip"), "both"),
    Case("open_clip", _open_clip, "both"),
    Case("open_clip-borrowed", borrowed_towers, "both", pads=True),
    Case(
        "open_clip-custom",
        lambda: _open_clip(
            "CustomTextCLIP",
            {
                "qk_norm": True,
                "scale_heads": True,
                "scale_attn": True,
                "ls_init_value": 1e-5,
                "pool_type": "avg",
            },
            scale_fc=True,
            pool_type="eos",
            eos_id=3,
            no_causal_mask=True,
        ),
        "both",
    ),
]
BY_NAME = {case.name: case for case in CASES}


@cache
def model_of(name: str) -> nn.Module:
    """The model of a case, in evaluation mode; shared, so leave it as it was."""
    torch.manual_seed(0)
    model = BY_NAME[name].build()
    return perturbed(model).eval()


def perturbed(model: nn.Module, seed: int = 1) -> nn.Module:
    """Every parameter moved, so that none can be dropped, swapped or misread without being noticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def in_double(inputs: Any) -> Any:
    """Inputs with their images in float64."""
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    return {name: in_double(part) for name, part in inputs.items()}


def own_output(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """What the library itself computes, written without our code."""
    with torch.no_grad():
        if isinstance(inputs, Tensor):
            out = model(inputs)
            return {"logits": getattr(out, "logits", out)}
        if "vision" in inputs and hasattr(model, "get_image_features"):
            image = model.get_image_features(pixel_values=inputs["vision"]).pooler_output
            return {"vision": image, "text": model.get_text_features(input_ids=inputs["text"]).pooler_output}
        if "vision" in inputs:
            image, text = model.encode_image(inputs["vision"]), model.encode_text(inputs["text"])
            return {"vision": image, "text": text}
        return {"logits": model(**inputs).logits}


@st.composite
def head_sets(draw: st.DrawFn, name: str) -> HeadSet:
    """Any set of heads; one layer in four keeps none."""
    full = HeadSet.all(model_of(name))
    kept = {
        tower: [
            draw(st.one_of(*[st.sets(st.integers(0, total - 1), max_size=total)] * 3, st.just(set())))
            for total in totals
        ]
        for tower, totals in zip(full.towers, full.num_heads, strict=True)
    }
    return HeadSet.of(kept, dict(zip(full.towers, full.num_heads, strict=True)))


def edit_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Damage to do to a directory: its config.json, changed."""

    def edit(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return edit
