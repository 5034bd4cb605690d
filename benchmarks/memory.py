"""Peak memory of loading, and of one batch of 4: hydras against three members and three whole models.

ViT-B/16, 8 of 12 heads, fp32. Each contestant loads from disk in a process of its own, three whole models as timm's
users load them. Files are mapped, so every parameter is read once before the peak of loading is taken; peaks are
resident sizes above those of the process with all libraries imported, that of the batch with what is loaded.

Run: python benchmarks/memory.py     (about 2 minutes on 2 cores; writes results/memory.json)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_model as save_weights
from torch import nn

from command_line import words
from hydra_ensembles import Hydra, Member, fuse, load_model, prune
from hydra_ensembles.evaluation.latency import branch_heads, moved
from provenance import RESULTS, provenance, write_results

MEMBERS, KEEP, NAME = 3, 8, "vit_base_patch16_224"
TRUNKS = {"hydra": 0, "hydra, trunk of 6": 6, "hydra, trunk of 8": 8}
KINDS = (*TRUNKS, "members", "deep_ensembles")


def resident_mb(field: str) -> float:
    """Of this process, in MB (Linux): `VmRSS` is now, `VmHWM` the peak (getrusage would give the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def load(kind: str, directory: Path) -> list[nn.Module]:
    if kind in TRUNKS:
        return [Hydra.load(directory / kind)]
    if kind == "members":
        return [Member.load(directory / f"members-{m}") for m in range(MEMBERS)]
    models = [timm.create_model(NAME).eval() for _ in range(MEMBERS)]
    for m, model in enumerate(models):
        load_weights(model, directory / f"whole-{m}.safetensors")
    return models


def child(kind: str, directory: Path) -> None:
    """In a process of its own: load, run, report."""
    torch.set_num_threads(2)
    start = resident_mb("VmRSS")
    models = load(kind, directory)
    for model in models:
        for parameter in model.parameters():
            parameter.sum()
    loading, loaded = resident_mb("VmHWM"), resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    images = torch.randn(4, 3, 224, 224)
    with torch.inference_mode():
        for model in models:
            model(images)
    found = {"load_mb": loading, "loaded_mb": loaded, "run_mb": resident_mb("VmHWM")}
    print(json.dumps({name: round(value - start, 1) for name, value in found.items()}))


def as_markdown() -> str:
    """The table of docs/speed.md."""
    peaks = json.loads((RESULTS / "memory.json").read_text())["peak_over_start"]
    lines = ["| | loading, MB | loaded, MB | one batch of 4, MB |", "|---|--:|--:|--:|"]
    return "\n".join(
        lines
        + [f"| {kind} | {p['load_mb']:.0f} | {p['loaded_mb']:.0f} | {p['run_mb']:.0f} |" for kind, p in peaks.items()]
    )


def main() -> None:
    if given := words(__doc__, 2):
        child(given[0], Path(given[1]))
        return
    torch.manual_seed(0)
    model = load_model(f"timm:{NAME}")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        for name, trunk in TRUNKS.items():
            members = [prune(model, branch_heads(model, KEEP, trunk)) for _ in range(MEMBERS)]
            for m, member in enumerate(members):
                moved(member.model, m, trunk)
                if trunk == 0:
                    member.save(directory / f"members-{m}")
            fuse(members).save(directory / name)
        for m in range(MEMBERS):
            save_weights(moved(timm.create_model(NAME), m, 0), str(directory / f"whole-{m}.safetensors"))
        peaks: dict[str, Any] = {}
        for kind in KINDS:
            done = subprocess.run([sys.executable, __file__, kind, scratch], capture_output=True, text=True, check=True)
            peaks[kind] = json.loads(done.stdout)
    story = provenance(packages=["timm"], dtype="fp32", batch=4, keep=KEEP, members=MEMBERS)
    write_results("memory", {"peak_over_start": peaks, "provenance": story})
    print(as_markdown())


if __name__ == "__main__":
    main()
