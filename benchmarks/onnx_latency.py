"""Latency in ONNX Runtime beside torch's: ViT-B/16 and a hydra of it, 8 of 12 heads and 3 members, fp32, on CPU.

Both runtimes have the same threads and run in turn. The hydra answers with all its uncertainty in both.

Run: python benchmarks/onnx_latency.py     (half an hour on 2 cores that do nothing else)
Writes results/onnx-latency/*.json, one a batch size, finished ones are skipped, and results/onnx-latency.json.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.export import Dim

from command_line import words
from hydra_ensembles import Hydra, load_model
from hydra_ensembles.evaluation import contest, interleaved
from hydra_ensembles.export import export
from hydra_ensembles.export.writing import write_onnx
from hydra_ensembles.optional import import_extra
from latency import KEEP, MEMBERS, REFERENCE, THREADS, VARIANTS, variant_of
from provenance import NOT_YET, RESULTS, machine, provenance, write_results

SHOWN = {name: variant for name, variant in VARIANTS.items() if name != "full"}
ROUNDS = {1: 31, 4: 15, 16: 9}
IMAGES = "pixel_values"
REST_S = 0.03
"""Between contestants: the threads of one runtime wait awake for a while, which would be the other's time."""


def session_of(path: Path, threads: int) -> Any:
    """A file in ONNX Runtime, its threads idle between runs: they would take time from torch's turn."""
    runtime = import_extra("onnxruntime", "export", "timing ONNX Runtime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def export_single(model: nn.Module, image: Tensor, path: Path) -> Path:
    """The network itself as ONNX, of any batch size."""
    images = image.expand(3, *image.shape[1:]).contiguous()
    with torch.no_grad():
        program = torch.export.export(model, (images,), dynamic_shapes=({0: Dim("batch", min=1)},))
    write_onnx(program, path, [IMAGES], ["logits"])
    return path


def exported(model: nn.Module, image: Tensor, keep: int, variants: Mapping[str, tuple[int, str]], folder: Path) -> Any:
    """The hydras by name, and the files of `single` and of every hydra."""
    hydras: dict[str, Hydra] = {}
    files = {"single": export_single(model, image, folder / "single.onnx")}
    for name, (trunk, last_block) in variants.items():
        hydras[name] = contest(model, image, keep, MEMBERS, trunk, last_block).hydra
        files[name] = export(hydras[name], folder / name)
    return hydras, files


def measure(
    model: nn.Module, hydras: Mapping[str, Hydra], files: Mapping[str, Path], images: Tensor, rounds: int
) -> dict[str, Any]:
    """One batch size: everybody in both runtimes, in one interleaved run; how far their answers are apart."""
    threads = torch.get_num_threads()
    sessions = {name: session_of(path, threads) for name, path in files.items()}
    given = {IMAGES: images.numpy()}
    runs: dict[str, Callable[[], Any]] = {"torch_single": partial(model, images)}
    runs |= {f"torch_{name}": partial(hydra.predict, images) for name, hydra in hydras.items()}
    runs |= {f"onnx_{name}": partial(session.run, None, given) for name, session in sessions.items()}
    gaps = {}
    with torch.inference_mode():
        gaps["single"] = _gap(model(images), runs["onnx_single"]()[0])
        for name, hydra in hydras.items():
            gaps[name] = _largest_gap(hydra.predict(images), sessions[name], given)
        *_, timings = track(interleaved(runs, rounds, rest_s=REST_S), f"batch {len(images)}", total=rounds)
    return {
        "batch": len(images),
        **{f"{who}_ms": round(timing.median_ms, 2) for who, timing in timings.items()},
        "largest_gap": gaps,
        "quartiles_ms": {who: [round(t.low_ms, 2), round(t.high_ms, 2)] for who, t in timings.items()},
    }


def _largest_gap(expected: Any, session: Any, given: Mapping[str, Any]) -> float:
    """Over all outputs of a hydra that are no whole numbers."""
    names = [one.name for one in session.get_outputs()]
    found = dict(zip(names, session.run(names, given), strict=True))
    shared = {name: getattr(expected, name, None) for name in names}
    both = {name: (said, found[name]) for name, said in shared.items() if isinstance(said, Tensor)}
    return max(_gap(said, other) for said, other in both.values() if said.is_floating_point())


def _gap(expected: Tensor, found: Any) -> float:
    return float((expected - torch.from_numpy(found)).abs().max())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds a batch, torch's beside ONNX Runtime's."""
    lines = ["| | batch | torch, ms | ONNX Runtime, ms | of torch |", "|---|--:|--:|--:|--:|"]
    names = {"single": "one network"}
    names |= {name: f"hydra, {variant_of({'trunk': t, 'last_block': b})}" for name, (t, b) in SHOWN.items()}
    for row in rows:
        for name, says in ((name, says) for name, says in names.items() if f"onnx_{name}_ms" in row):
            torch_ms, onnx_ms = row[f"torch_{name}_ms"], row[f"onnx_{name}_ms"]
            lines.append(f"| {says} | {row['batch']} | {torch_ms:.0f} | {onnx_ms:.0f} | {onnx_ms / torch_ms:.2f} |")
    return "\n".join(lines)


def as_markdown() -> str:
    """The table of docs/export.md."""
    path = RESULTS / "onnx-latency.json"
    return table(json.loads(path.read_text())["rows"]) if path.exists() else NOT_YET


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = load_model(REFERENCE)
    with tempfile.TemporaryDirectory() as scratch:
        hydras, files = exported(model, torch.randn(1, 3, 224, 224), KEEP, SHOWN, Path(scratch))
        about: dict[str, Any] = {
            "model": REFERENCE,
            "dtype": "fp32",
            "keep": KEEP,
            "members": MEMBERS,
            "machine": machine(),
        }
        points = []
        for batch, rounds in ROUNDS.items():
            path = RESULTS / "onnx-latency" / f"vit-b16-fp32-{batch}.json"
            if not path.exists():
                row = measure(model, hydras, files, torch.randn(batch, 3, 224, 224), rounds)
                story = provenance(packages=["timm", "onnx", "onnxscript", "onnxruntime"], rounds=rounds, **about)
                write_results(f"onnx-latency/{path.stem}", {"row": row, "provenance": story})
            points.append(json.loads(path.read_text()))
    told = {"points": [point["provenance"] for point in points]}
    write_results("onnx-latency", {"rows": [point["row"] for point in points], "provenance": told})
    print(as_markdown())


if __name__ == "__main__":
    words(__doc__)
    main()
