"""A model of one layer in which one head alone sees what makes an input unknown."""

import torch

WIDTH, HEADS, CLASSES = 32, 4, 3


def planted(head):
    """The model, known images, and unknown ones: known ones plus a pattern that only this head's values read."""
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=8,
        patch_size=4,
        in_chans=1,
        embed_dim=WIDTH,
        depth=1,
        num_heads=HEADS,
        num_classes=CLASSES,
        mlp_ratio=1,
    ).eval()
    generator = torch.Generator().manual_seed(1)
    attention, size = model.blocks[0].attn, WIDTH // HEADS
    pattern = torch.randn(1, 1, 4, 4, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        shift = model.patch_embed.proj.weight.flatten(1) @ pattern.flatten()
        shift -= shift.mean()  # a norm takes the mean away
        unit = shift / shift.norm()
        # The norm in front scales channels: what lies along the shift behind it is unit * weight.
        seen = unit * model.blocks[0].norm1.weight
        seen /= seen.norm()
        qkv = attention.qkv.weight
        qkv -= (qkv @ seen)[:, None] * seen  # nobody sees the pattern
        rows = slice(2 * WIDTH + size * head, 2 * WIDTH + size * (head + 1))
        qkv[rows] += torch.randn(size, 1, generator=generator) * seen  # but this head's values
    known = torch.randn(200, 1, 8, 8, generator=generator)
    unknown = torch.randn(150, 1, 8, 8, generator=generator) + 1.5 * pattern.repeat(1, 1, 2, 2)
    return model, known, unknown
