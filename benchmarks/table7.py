"""Model size and multiply-adds of the paper's Table 7, ViT-B/16 at 224 px, 8 of 12 heads, 3 members.

Run: python benchmarks/table7.py     (seconds; writes results/ground-floor/table7.json)
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from command_line import words
from hydra_ensembles import Backbone, HeadSet, load_model, prune
from hydra_ensembles.backbones.parts import Norm
from hydra_ensembles.backbones.stems import PatchStem
from hydra_ensembles.evaluation import contest
from hydra_ensembles.heads import Cost, predict_costs
from hydra_ensembles.report import Column, Figure, Row, Table
from provenance import RESULTS, provenance, write_results

# Parameters in millions and multiply-adds in billions, as printed.
PAPER = {"single": (86.57, 17.58), "member": (77.13, 15.48), "hydra": (116.31, 46.19)}


def counted(model: nn.Module) -> dict[str, int]:
    """Parameters of the real module; multiply-adds by torch's own counter, attention in its unfused form."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(torch.zeros(1, 3, 224, 224))
    params = sum(p.numel() for p in model.parameters())
    return {"params": params, "mult_adds": counter.get_total_flops() // 2}


def read() -> dict[str, Any]:
    """The results file."""
    return json.loads((RESULTS / "ground-floor" / "table7.json").read_text())  # type: ignore[no-any-return]


def as_markdown(results: dict[str, Any]) -> str:
    """The table of docs/costs.md."""
    columns = []
    for key, heading, unit in (("params", "Parameters", "M"), ("mult_adds", "Multiply-adds", "G")):
        columns += [
            Column(f"{key}_{unit}", "paper", heading, unit=f" {unit}"),
            Column(key, "ours", heading, decimals=0),
            Column(f"{key}_off_percent", "off", heading, signed=True, unit=" %"),
        ]
    rows = []
    for name, row in results["rows"].items():
        figures = row | row["predicted"] | row.get("paper", {})
        rows.append(Row(name, {c.key: Figure(figures[c.key]) for c in columns if c.key in figures}))
    return Table(columns, rows, row_heading="").markdown()


def explained(backbone: Backbone, predicted: Mapping[str, Cost], members: int) -> dict[str, Any]:
    """The paper's hydra parameters reached by leaving things out; the gap in multiply-adds its rounding allows."""
    tower = backbone.towers["vision"]
    norms = sum(p.numel() for m in backbone.modules() if isinstance(m, Norm) for p in m.parameters())
    shared_norms = predicted["hydra"].params - (members - 1) * norms
    stem = tower.stem
    assert isinstance(stem, PatchStem)
    assert stem.positions is not None
    assert stem.cls_token is not None
    gaps = [(paper * 1e9 - predicted[name].mult_adds) / 1e6 for name, (_, paper) in PAPER.items()]
    return {
        "hydra_params_with_shared_norms": shared_norms,
        "and_without_cls_token_and_positions": shared_norms - stem.positions.numel() - stem.cls_token.numel(),
        # Every printed value may be off by half a unit of its last digit, 5 M.
        "mult_adds_gap_M": [round(max(gaps) - 5, 1), round(min(gaps) + 5, 1)],
    }


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
    image = torch.zeros(1, 3, 224, 224)
    rows["hydra"]["counted"] = counted(contest(model, image, keep=8, members=3, last_block="full").hydra)
    rows["hydra_default"] = {
        "predicted": predicted["hydra_default"].to_json(),
        "counted": counted(contest(model, image, keep=8, members=3).hydra),
    }
    notes = explained(Backbone.of(model), predicted, members=3)
    write_results(
        "ground-floor/table7", {"rows": rows, "explained": notes, "provenance": provenance(packages=["timm"])}
    )
    print(as_markdown(read()))


if __name__ == "__main__":
    words(__doc__)
    main()
