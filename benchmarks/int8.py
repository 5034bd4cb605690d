"""Int8 weights: what they lose in accuracy, ECE and OOD AUROC, and what they save in size and time.

hydra (circuit) with a trunk of two thirds of the blocks, seed 0 of the evidence on text, or of that on images: in
fp32 by torch, and exported with int8 weights in ONNX Runtime. Both answer the same test sets, and run in turn. Its
networks are trained where they are not there any more, and may then differ from those of the evidence by the rounding
of another processor.

Run: python benchmarks/int8.py [text] [vision]     (20 minutes a setting on 2 cores, and an hour where networks must be
trained again; needs the real data)
Writes results/int8.json; settings that are not asked for keep the figures they have.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from command_line import words
from evidence import claims
from evidence.methods import Row
from evidence.networks import Networks
from evidence.setting import Setting
from evidence.units import Units
from evidence.workers import is_worker, run
from hydra_ensembles import Hydra, fuse
from hydra_ensembles.backbones import Inputs
from hydra_ensembles.data import Batches
from hydra_ensembles.evaluation import interleaved, sample_inputs
from hydra_ensembles.evaluation.judged import Judged, judged
from hydra_ensembles.evaluation.metrics import answer_metrics, separation_metrics
from hydra_ensembles.export import export, to_int8
from hydra_ensembles.export.graph import IDS, IMAGES, MASK, TYPES
from hydra_ensembles.optional import import_extra
from onnx_latency import REST_S, session_of
from provenance import NOT_YET, RESULTS, machine, provenance, write_results
from text.setting import SETTING as TEXT
from vision.setting import SETTING as VISION

SETTINGS, TASKS = {"text": TEXT, "vision": VISION}, {"text": "sst2", "vision": "cifar100"}
SEED, SCORE = 0, "msp"
BATCHES, ROUNDS, THREADS = (4, 16), 20, 2
KINDS = ("torch fp32", "onnx fp32", "onnx int8")
Ask = Callable[[Inputs], Tensor]
"""From inputs to probabilities `(B, C)`."""


def asking(session: Any) -> Ask:
    """A session of ONNX Runtime, asked with what the data gives."""
    wanted = [one.name for one in session.get_inputs()]

    def ask(inputs: Inputs) -> Tensor:
        return torch.from_numpy(session.run(["probs"], fed(inputs, wanted))[0])

    return ask


def fed(inputs: Inputs, wanted: Iterable[str]) -> dict[str, Any]:
    """Inputs under the names that a graph gives them; texts without types have one, without a mask no padding."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return {IMAGES: inputs.numpy()}
    named: dict[str, Any] = {IDS: inputs} if isinstance(inputs, Tensor) else dict(inputs)
    named = {MASK: torch.ones_like(named[IDS]), TYPES: torch.zeros_like(named[IDS])} | named
    return {name: named[name].numpy() for name in wanted}


def answered(ask: Ask, batches: Batches, labels: bool) -> Judged:
    """A set, judged by the probabilities alone."""
    found, known = [], []
    for batch in batches:
        found.append(ask(batch.inputs).double().log()[:, None])
        known += [batch.labels] if labels and batch.labels is not None else []
    return judged(torch.cat(found), torch.cat(known) if labels else None)


def figures(known: Judged, unknown: Mapping[str, Judged]) -> dict[str, Any]:
    """Accuracy, ECE, and AUROC of the maximum softmax probability, averaged over the unknown sets."""
    sets = {name: separation_metrics(known.scores[SCORE], one.scores[SCORE])["auroc"] for name, one in unknown.items()}
    return {**{name: answer_metrics(known)[name] for name in ("accuracy", "ece")}, "auroc": fmean(sets.values())}


def compared(hydra: Hydra, model: nn.Module, setting: Setting, folder: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """One hydra with fp32 and with int8 weights: figures, sizes, times."""
    files = {"onnx fp32": export(hydra, folder)}
    files["onnx int8"] = to_int8(folder)
    sessions = {kind: session_of(path, torch.get_num_threads()) for kind, path in files.items()}
    small = asking(sessions["onnx int8"])
    (first, *_), sets = setting.known_tests.values(), setting.tests(model)
    unknown = [name for group in ("near", "far") for name in setting.groups[group]]
    judgements: dict[str, dict[str, Judged]] = {}
    with torch.inference_mode():
        for kind, ask in (("fp32", lambda inputs: hydra.predict(inputs).probs), ("int8", small)):
            judgements[kind] = {name: answered(ask, sets[name], name in first) for name in (*first[:1], *unknown)}
    found = {kind: figures(one[first[0]], {name: one[name] for name in unknown}) for kind, one in judgements.items()}
    same = [one[first[0]].answer for one in judgements.values()]
    assert same[0] is not None
    assert same[1] is not None
    return {
        **found,
        "labels_changed": int((same[0] != same[1]).sum()),
        "rows": len(same[0]),
        "int8_share": int8_share(files["onnx int8"]),
        "size_mb": {kind: round(path.stat().st_size / 1e6, 2) for kind, path in files.items()},
        "latency": [timed(hydra, sessions, sample_inputs(model, n, setting.tokens), n, rounds) for n in BATCHES],
    }


def int8_share(path: Path) -> float:
    """Of all numbers that a file keeps, the share in eight bits."""
    onnx = import_extra("onnx", "export", "reading an ONNX file")
    sizes = {True: 0, False: 0}
    for one in onnx.load(path).graph.initializer:
        sizes[one.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)] += math.prod(one.dims)
    return round(sizes[True] / sum(sizes.values()), 4)


def timed(hydra: Hydra, sessions: Mapping[str, Any], inputs: Inputs, batch: int, rounds: int) -> dict[str, Any]:
    """Torch and both files in one interleaved run."""
    if isinstance(inputs, Tensor) and not inputs.is_floating_point():
        inputs = {IDS: inputs, MASK: torch.ones_like(inputs)}  # a file's graph has a mask, and so has torch here
    runs: dict[str, Callable[[], Any]] = {"torch fp32": partial(hydra.predict, inputs)}
    for kind, session in sessions.items():
        given = fed(inputs, [one.name for one in session.get_inputs()])
        runs[kind] = partial(session.run, None, given)
    with torch.inference_mode():
        *_, timings = interleaved(runs, rounds, rest_s=REST_S)
    return {
        "batch": batch,
        "ms": {kind: round(timing.median_ms, 2) for kind, timing in timings.items()},
        "quartiles_ms": {kind: [round(t.low_ms, 2), round(t.high_ms, 2)] for kind, t in timings.items()},
    }


def table(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures with fp32 and int8 weights, sizes, and times of the larger batch."""
    head = "| | weights | accuracy | ECE | AUROC | labels changed | MB | ms in torch | ms in ONNX Runtime |"
    lines = [head, "|---|---|" + "--:|" * 7]
    for task, found in tasks.items():
        latency = found["latency"][-1]
        for kind in ("fp32", "int8"):
            one, torch_ms = found[kind], f"{latency['ms']['torch fp32']:.0f}" if kind == "fp32" else "–"
            changed = f"{found['labels_changed']} of {found['rows']}" if kind == "int8" else "–"
            size, onnx_ms = found["size_mb"][f"onnx {kind}"], latency["ms"][f"onnx {kind}"]
            lines.append(
                f"| {task} | {kind} | {100 * one['accuracy']:.2f} | {one['ece']:.4f} | {100 * one['auroc']:.2f} | "
                f"{changed} | {size:.0f} | {torch_ms} | {onnx_ms:.0f} |"
            )
    return "\n".join(lines)


def as_markdown() -> str:
    """The table of docs/export.md."""
    path = RESULTS / "int8.json"
    return table(json.loads(path.read_text())["tasks"]) if path.exists() else NOT_YET


def main() -> None:
    torch.set_num_threads(THREADS)
    path = RESULTS / "int8.json"
    plans = {name: planned(SETTINGS[name]) for name in words(__doc__, len(SETTINGS), SETTINGS) or ["text"]}
    run({networks.units: list(hydra.members) for networks, hydra in plans.values()}, 2, None)
    if is_worker():
        return
    tasks = json.loads(path.read_text())["tasks"] if path.exists() else {}
    for name, (networks, row) in plans.items():
        hydra, setting = fuse([networks.load(unit) for unit in row.members]), networks.setting
        with tempfile.TemporaryDirectory() as scratch:
            found = compared(hydra, setting.load(0), setting, Path(scratch))
        about: dict[str, Any] = {"method": row.method, "seed": SEED, "rounds": ROUNDS, "machine": machine()}
        about["networks"] = {unit: networks.units.done(unit) for unit in row.members}
        story = provenance(packages=["onnx", "onnxscript", "onnxruntime"], **about)
        tasks[TASKS[name]] = {**found, "provenance": story}
        write_results("int8", {"tasks": tasks})
    print(as_markdown())


def planned(setting: Setting) -> tuple[Networks, Row]:
    """The hydra: networks do not outlive a checkout, so in a new one its members are trained again."""
    networks = Networks(setting, Units(setting.kept))
    return networks, claims.trunk(networks, SEED, max(setting.trunks))


if __name__ == "__main__":
    main()
