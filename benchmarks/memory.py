"""Peak memory of loading, and of running one batch of 4: the hydra against three members and three whole models.

ViT-B/16, 8 of 12 heads, fp32. Each contestant loads from disk in a process of its own; peaks are resident set sizes.

Run: python benchmarks/memory.py     (about 2 minutes on 2 cores; writes results/memory.json)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles import HeadSet, Hydra, Member, fuse, load_model, prune
from hydra_ensembles.evaluation.latency import branch_heads, moved
from provenance import RESULTS, provenance, write_results

MEMBERS, KEEP = 3, 8


def peak_mb() -> float:
    """The largest resident set of this process so far, in MB (Linux; getrusage would give the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def child(kind: str, directory: Path) -> None:
    """In a process of its own: load, run, report."""
    torch.set_num_threads(2)
    start = peak_mb()
    models: list[nn.Module] = (
        [Hydra.load(directory / "hydra")]
        if kind == "hydra"
        else [Member.load(directory / f"{kind}-{m}") for m in range(MEMBERS)]
    )
    loaded = peak_mb()
    images = torch.randn(4, 3, 224, 224)
    with torch.inference_mode():
        for model in models:
            model(images)
    print(json.dumps({"load_mb": round(loaded - start, 1), "run_mb": round(peak_mb() - start, 1)}))


def as_markdown() -> str:
    """The table of docs/speed.md."""
    peaks = json.loads((RESULTS / "memory.json").read_text())["peak_over_start"]
    lines = ["| | loading, MB | and running, MB |", "|---|--:|--:|"]
    return "\n".join(lines + [f"| {kind} | {p['load_mb']:.0f} | {p['run_mb']:.0f} |" for kind, p in peaks.items()])


def main() -> None:
    if len(sys.argv) == 3:
        child(sys.argv[1], Path(sys.argv[2]))
        return
    torch.manual_seed(0)
    model = load_model("timm:vit_base_patch16_224")
    with tempfile.TemporaryDirectory() as scratch:
        directory, pruned = Path(scratch), []
        for m in range(MEMBERS):
            for kind, heads in (("members", branch_heads(model, KEEP, 0)), ("deep_ensembles", HeadSet.all(model))):
                member = prune(model, heads)
                moved(member.model, m, 0)
                member.save(directory / f"{kind}-{m}")
                pruned += [member] if kind == "members" else []
        fuse(pruned).save(directory / "hydra")
        peaks: dict[str, Any] = {}
        for kind in ("hydra", "members", "deep_ensembles"):
            done = subprocess.run([sys.executable, __file__, kind, scratch], capture_output=True, text=True, check=True)
            peaks[kind] = json.loads(done.stdout)
    story = provenance(packages=["timm"], dtype="fp32", batch=4, keep=KEEP, members=MEMBERS)
    write_results("memory", {"peak_over_start": peaks, "provenance": story})
    print(as_markdown())


if __name__ == "__main__":
    main()
