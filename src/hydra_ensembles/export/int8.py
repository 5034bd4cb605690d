"""Int8: the weights of an exported hydra in a quarter of their size, its matrix products in whole numbers.

By ONNX Runtime's own tools. Weights get one scale an output channel, activations one a tensor, found as they come;
tables of embeddings are read in int8 and computed with in floats.

Shapes: M members, R rows of a member, D in, E out.
"""

import json
import logging
from pathlib import Path
from typing import Any

from hydra_ensembles.export.graph import ExportError
from hydra_ensembles.export.writing import INT8, ONNX, quietly
from hydra_ensembles.optional import import_extra
from hydra_ensembles.store import whole

KINDS = ("MatMul", "Gemm", "Gather")
"""Nodes whose weights become int8; attention itself, norms and the stem's convolution stay as they are."""


def to_int8(directory: str | Path) -> Path:
    """Write `model.int8.onnx` beside the `model.onnx` of an exported hydra, and say so in `model.json`.

    Its inputs and outputs are the same. Its answers are not: measure them before you use it.
    """
    place = Path(directory).expanduser()
    if not (place / "model.onnx").is_file():
        raise ExportError(
            f"{place} holds no model.onnx; int8 weights are made of one: export with format '{ONNX}' first"
        )
    quantization = import_extra("onnxruntime.quantization", "export", "int8 weights")
    shapes = import_extra("onnxruntime.quantization.shape_inference", "export", "int8 weights")
    onnx = import_extra("onnx", "export", "int8 weights")
    path = place / INT8
    with quietly(logging.getLogger()), whole(path) as draft:
        shapes.quant_pre_process(str(place / "model.onnx"), str(draft), skip_symbolic_shape=True)
        onnx.save(member_by_member(onnx.load(draft)), draft)
        quantization.quantize_dynamic(
            draft, draft, op_types_to_quantize=list(KINDS), per_channel=True, weight_type=quantization.QuantType.QInt8
        )
    about = place / "model.json"
    said = json.dumps({**json.loads(about.read_text("utf-8")), "int8": INT8}, indent=1, ensure_ascii=False)
    with whole(about) as draft:
        draft.write_text(said + "\n", encoding="utf-8")
    return path


def member_by_member(model: Any) -> Any:
    """A graph whose products of all members `(M, R, D) @ (M, D, E)` are one product a member.

    ONNX Runtime has no scales of their own for the channels of a weight with three dimensions.
    """
    onnx = import_extra("onnx", "export", "int8 weights")
    node, arrays = onnx.helper.make_node, onnx.numpy_helper
    weights = {weight.name: weight for weight in model.graph.initializer if len(weight.dims) == 3}
    nodes = []
    for product in model.graph.node:
        if product.op_type != "MatMul" or product.input[1] not in weights:
            nodes.append(product)
            continue
        (x, weight), (out,) = product.input, product.output
        parts = arrays.to_array(weights[weight])
        names = [f"{out}_{m}" for m in range(len(parts))]
        model.graph.initializer.extend(
            arrays.from_array(part, f"{name}_weight") for part, name in zip(parts, names, strict=True)
        )
        nodes.append(node("Split", [x], [f"{name}_rows" for name in names], axis=0, num_outputs=len(parts)))
        nodes += [node("MatMul", [f"{name}_rows", f"{name}_weight"], [name], f"{name}_product") for name in names]
        nodes.append(node("Concat", names, [out], axis=0))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for one in nodes for name in one.input}
    for weight in [weight for name, weight in weights.items() if name not in used]:
        model.graph.initializer.remove(weight)
    # The quantiser turns weights round, but not what was said of their shapes.
    named = {weight.name for weight in model.graph.initializer}
    said = [value for value in model.graph.value_info if value.name not in named]
    del model.graph.value_info[:]
    model.graph.value_info.extend(said)
    return model
