"""Model size and multiply-adds of the paper's Table 7, ViT-B/16 at 224 px, 8 of 12 heads, 3 members.

Run: python benchmarks/table7.py     (seconds; writes results/ground-floor/table7.json)
"""

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hydra_ensembles import Backbone, HeadSet, load_model, prune
from hydra_ensembles.heads import predict_costs
from provenance import provenance, write_results

# Parameters in millions and multiply-adds in billions, as printed.
PAPER = {"single": (86.57, 17.58), "member": (77.13, 15.48), "hydra": (116.31, 46.19)}


def counted(model: nn.Module) -> dict[str, int]:
    """Parameters of the real module; multiply-adds by torch's own counter, attention in its unfused form."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(torch.zeros(1, 3, 224, 224))
    params = sum(p.numel() for p in model.parameters())
    return {"params": params, "mult_adds": counter.get_total_flops() // 2}


def main() -> None:
    model = load_model("timm:vit_base_patch16_224")
    member = prune(model, HeadSet.first(model, 8))
    predicted = predict_costs(Backbone.of(model), keep=8, members=3)
    rows = {}
    for name, (params_m, mult_adds_g) in PAPER.items():
        ours = predicted[name].to_json()
        rows[name] = {
            "paper": {"params_M": params_m, "mult_adds_G": mult_adds_g},
            "predicted": ours,
            "params_off_percent": round(100 * (ours["params"] / (params_m * 1e6) - 1), 3),
            "mult_adds_off_percent": round(100 * (ours["mult_adds"] / (mult_adds_g * 1e9) - 1), 3),
        }
    rows["single"]["counted"], rows["member"]["counted"] = counted(model), counted(member.model)
    rows["hydra_default"] = {"predicted": predicted["hydra_default"].to_json()}
    write_results("ground-floor/table7", {"rows": rows, "provenance": provenance(packages=["timm"])})


if __name__ == "__main__":
    main()
