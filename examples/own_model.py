"""What a hydra of any architecture costs, is and exports to, before any training: with random weights.

Run: python examples/own_model.py [timm:vit_small_patch16_224]     (needs the extras vision, export)
"""

import sys
import tempfile
from pathlib import Path

import torch

from hydra_ensembles import Backbone, HeadSet, describe, fuse, load_model, prune
from hydra_ensembles.export import export


def main() -> None:
    given = [argument for argument in sys.argv[1:] if ":" in argument]
    reference = given[0] if given else "timm:vit_tiny_patch16_224"
    model = load_model(reference)  # random weights; load yours with timm.create_model(..., pretrained=True)
    print(describe(model))
    full = HeadSet.all(model)
    # Every third head of a layer goes, for each member another third; circuits would choose.
    members = [prune(model, full.without([head for head in full if head.index % 3 == m])) for m in range(3)]
    hydra = fuse(members)
    whole, fused = (sum(p.numel() for p in one.parameters()) for one in (model, hydra))
    kept = ", ".join(str(len(member.heads)) for member in members)
    print(f"{kept} of {len(full)} heads a member; {fused / 1e6:.1f} M parameters, one network has {whole / 1e6:.1f} M")

    inputs = Backbone.of(model).sample()
    with torch.no_grad():
        agreed = torch.allclose(fuse(members, mlp="grouped").members(inputs)[:, 0], members[0](inputs), atol=1e-5)
    print(f"fused with MLPs of their own, members give the same numbers: {agreed}")
    with tempfile.TemporaryDirectory() as place:
        written = export(hydra, Path(place) / "exported")
        size = sum(path.stat().st_size for path in Path(place, "exported").iterdir()) / 1e6
        print(f"exported as one graph, {written.name}, {size:.0f} MB with its weights; its answers are the hydra's")


if __name__ == "__main__":
    main()
