"""Writing an exported hydra: the graph, what it takes and gives, and how inputs are prepared.

`model.onnx` or `model.pt2`, `model.json`, `preprocess.json`. Nothing of ours is needed to run them.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from hydra_ensembles.backbones.checks import evaluating
from hydra_ensembles.export.graph import BATCH, IDS, MASK, TEXTS, TOKENS, ExportError, Graph
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.optional import import_extra
from hydra_ensembles.uncertainty import DECISIONS, Prediction

ONNX, TORCH = "onnx", "torch-export"
FORMATS = {ONNX: "model.onnx", TORCH: "model.pt2"}
"""By format, the file that holds the graph and its weights."""
INT8 = "model.int8.onnx"
TOLERANCE = 1e-4
TOLERANCES = {torch.float32: TOLERANCE, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""How far an exported graph's answers may be from the hydra's: fp16 has three digits, bf16 two."""
IN_ONNX = (torch.float32, torch.float16)
"""What ONNX Runtime computes all of a hydra in."""
SAYS = {
    "label": "the most probable class",
    "probs": "probabilities of the classes, at the fitted temperature",
    "confidence": "the highest probability (MSP)",
    "entropy": "total uncertainty, in nats",
    "aleatoric": "expected entropy of a member, before a temperature on the ensemble, in nats",
    "epistemic": "mutual information: what the members do not agree on, before a temperature on the ensemble, in nats",
    "disagreement": "the share of pairs of members that give different labels",
    "ood_score": "how unknown the input looks; higher is stranger",
    "prediction_set": "which classes the conformal set holds",
    "decision": f"place in {list(DECISIONS)}",
}
assert set(SAYS) == {field.name for field in fields(Prediction)}

Inputs = Mapping[str, Tensor]


def export(hydra: Hydra, directory: str | Path, format: str = ONNX, check: bool = True) -> Path:
    """Write a hydra as one graph of named inputs and outputs, any batch size, any length of text; return its file.

    Args:
        hydra: what is exported, with what was fitted to it.
        directory: where `model.onnx` or `model.pt2`, `model.json` and `preprocess.json` are written.
        format: `"onnx"`, or `"torch-export"`, which `torch.export.load` reads.
        check: ask the file that was written about other inputs than it was traced with, of several sizes, and refuse
            it where an answer is more than 1e-4 from the hydra's own, in fp16 1e-2, in bf16 5e-2. What was in the
            directory before then stays as it was.
    """
    if format not in FORMATS:
        raise ExportError(f"format '{format}' is not known; known: {', '.join(FORMATS)}")
    graph, place = Graph(hydra), Path(directory).expanduser()
    dtype = next(hydra.parameters()).dtype
    if format == ONNX and dtype not in IN_ONNX:
        raise ExportError(f"ONNX Runtime does not compute all of a hydra in {dtype}; export hydra.float()")
    place.mkdir(parents=True, exist_ok=True)
    with evaluating(hydra), TemporaryDirectory(prefix=".draft-", dir=place) as draft:
        path, program, outputs = Path(draft) / FORMATS[format], graph.traced(), graph.outputs
        if format == ONNX:
            write_onnx(program, path, list(graph.example), outputs)
        else:
            with quietly():
                torch.export.save(program, path)
        _write_json(path.with_name("model.json"), about(graph, format, outputs))
        _write_json(path.with_name("preprocess.json"), hydra.preprocess)
        if check:
            check_file(path, graph, TOLERANCES.get(dtype, TOLERANCE))
        if format == ONNX:
            # Made of another hydra, it would lie beside this one's.
            (place / INT8).unlink(missing_ok=True)
        for file in Path(draft).iterdir():
            file.replace(place / file.name)
    return place / FORMATS[format]


def write_onnx(program: ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """The graph as ONNX; weights past 2 GB lie beside it, as the format asks."""
    for module in ("onnx", "onnxscript"):
        import_extra(module, "export", "writing ONNX")
    with quietly(*(logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx"))):
        written = torch.onnx.export(
            program, dynamo=True, input_names=inputs, output_names=outputs, verbose=False, optimize=True
        )
        assert written is not None
        written.save(path)


def about(graph: Graph, format: str, outputs: list[str]) -> dict[str, Any]:
    """What the file takes and gives."""
    hydra = graph.hydra
    with torch.no_grad():
        found = dict(zip(outputs, graph(*graph.example.values()), strict=True))
    return {
        "format": format,
        "file": FORMATS[format],
        "members": hydra.num_members,
        "max_tokens": graph.max_tokens,
        "inputs": {
            name: {
                "dtype": _dtype(tensor),
                "shape": [graph.shapes[name].get(place, size) for place, size in enumerate(tensor.shape)],
            }
            for name, tensor in graph.example.items()
        },
        "outputs": {name: {"dtype": _dtype(tensor), "says": SAYS[name]} for name, tensor in found.items()},
        "classes": hydra.classes,
        "decisions": list(DECISIONS) if "decision" in found else None,
        "fitted": hydra.fitted.to_json(),
    }


def check_file(path: Path, graph: Graph, tolerance: float = TOLERANCE) -> None:
    """Ask a written file about inputs of other sizes, and compare with the hydra."""
    ask = runner(path)
    names = graph.outputs
    for rows, texts, tokens in ((1, 2, 1), (4, 3, graph.max_tokens or 1)):
        inputs = other_inputs(graph, rows, texts, tokens)
        with torch.no_grad():
            expected = dict(zip(names, graph(*inputs.values()), strict=True))
        for name, found in ask(inputs).items():
            gap = (found.double().cpu() - expected[name].double().cpu()).abs().max().item()
            # A label, a set or a decision may tip where two numbers are nearly equal; the numbers themselves may not.
            if expected[name].is_floating_point() and not gap <= tolerance:
                raise ExportError(
                    f"the exported graph's '{name}' is off by {gap:.2g} at batch {rows}; its file was not kept"
                )


def runner(path: Path) -> Callable[[Inputs], dict[str, Tensor]]:
    """What asks a written file: named tensors in, named tensors out."""
    if path.suffix == ".onnx":
        runtime = import_extra("onnxruntime", "export", "checking an ONNX file")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]

        def ask_onnx(inputs: Inputs) -> dict[str, Tensor]:
            found = session.run(None, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
            return {name: torch.from_numpy(array) for name, array in zip(names, found, strict=True)}

        return ask_onnx
    module = torch.export.load(path).module()
    said = json.loads((path.parent / "model.json").read_text("utf-8"))["outputs"]

    def ask_torch(inputs: Inputs) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(zip(said, module(*inputs.values()), strict=True))

    return ask_torch


def other_inputs(graph: Graph, rows: int, texts: int, tokens: int) -> dict[str, Tensor]:
    """Inputs of other sizes than the graph was traced with, the last tokens of a text being padding."""
    sizes = {BATCH: rows, TEXTS: texts, TOKENS: tokens}
    generator = torch.Generator().manual_seed(rows)
    found = {}
    for name, example in graph.example.items():
        shape = [sizes.get(graph.shapes[name].get(place, ""), size) for place, size in enumerate(example.shape)]
        if example.is_floating_point():
            found[name] = torch.randn(shape, generator=generator).to(example)
        elif name == IDS:
            found[name] = torch.randint(2, int(example.max()) + 1, shape, generator=generator).to(example)
        else:
            found[name] = torch.full(shape, int(example.flatten()[0])).to(example)
            if name == MASK:
                found[name][:, max(1, tokens - 2) :] = 0
    return found


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def quietly(*loggers: logging.Logger) -> Iterator[None]:
    """Without the tools' remarks on constants that they do not fold, shapes that they do not know, and each other."""
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
