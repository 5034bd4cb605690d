"""Bulk scoring: any number of inputs through a hydra, on Ray Data, in bounded memory.

One output file for each block of the input, written whole or not at all: a run that was killed goes on with the blocks
that have none, and no row is lost or doubled. Rows that cannot be read go to a quarantine file, with the reason.

    OUTPUT/_manifest.json           what is scored, with what, cut how
    OUTPUT/part-000000.parquet      a row an input
    OUTPUT/_quarantine/part-000000.jsonl
    OUTPUT/_summary.json            when all is done

What begins with an underscore is no data to programs that read a whole directory of parquet files.
"""

import io
import json
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.data import Batches, DataError, Rows, batches_for, open_data
from hydra_ensembles.data.loading import classes_of, preprocess_of
from hydra_ensembles.data.opening import open_images
from hydra_ensembles.errors import HydraError, in_one_line
from hydra_ensembles.evaluation import answers
from hydra_ensembles.evaluation.answers import model_digest
from hydra_ensembles.evaluation.loading import load_network
from hydra_ensembles.fusion import Hydra
from hydra_ensembles.optional import import_extra
from hydra_ensembles.scale.cluster import ScaleError, cluster, workers_of
from hydra_ensembles.scale.inputs import Block, Copies, Input, absolute, file_system, is_local, list_input
from hydra_ensembles.scale.lines import open_lines
from hydra_ensembles.store import json_digest, whole
from hydra_ensembles.uncertainty import Fitted, predict

ROWS_A_BLOCK = 4096
COLUMNS: Mapping[str, str | None] = {
    "file": "string",
    "row": "int64",
    "id": None,
    "label": "int64",
    "class": "string",
    "probability": "float",
    "entropy": "float",
    "mutual_information": "float",
    "decision": "string",
}
"""Of an output file, with their types; `id` as the input has it, `class` where the model names its classes."""
ABOUT = "hydra_ensembles"
"""In the footer of an output file: its decisions, counted, and the seconds that it took."""
MANIFEST, SUMMARY, QUARANTINE = "_manifest.json", "_summary.json", "_quarantine"


def score(
    reference: str,
    address: str,
    output: str,
    *,
    id_column: str | None = None,
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    rows_a_block: int = ROWS_A_BLOCK,
    workers: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    show: Callable[[int, int], None] | None = None,
    **prepared: Any,
) -> dict[str, Any]:
    """Score every row of the input; what is there already is passed over.

    Args:
        reference: a hydra, a member or a model.
        address: parquet or jsonl files, or folders of images: a path, a pattern, or any URL that fsspec knows.
        output: a directory, likewise.
        id_column: a column of the tables that is carried over as `id`: with its own type from parquet, as text (JSON,
            where it is none) from jsonl.
        text: the column with texts, or two for pairs of texts, where its name is not a common one.
        image: the column with images, likewise.
        rows_a_block: rows of an output file, and of what a worker holds.
        workers: how many; as many as Ray has room for by default.
        threads: CPU threads of each.
        gpus: of each.
        show: is told the rows that are done, and all.
        prepared: `batch_size`, `max_tokens`, `first_size`, as `batches_for` takes them.

    Returns:
        What `_summary.json` says: rows, how many of them were scored and quarantined, decisions, the seconds of this
        run, and those of all workers together.
    """
    started = time.monotonic()
    output = absolute(output)
    if f"{output}/".startswith(f"{absolute(expand(address)).rstrip('/')}/"):
        raise ScaleError(f"the output {output} lies in the input, and would be part of it; name another directory")
    found, model = list_input(address, id_column), load_network(reference).eval()
    columns = {"text": text, "image": image}
    about = {
        "format": 2,
        "model": model_digest(model),
        "preprocess": json_digest(preprocess_of(model)),
        "classes": classes_of(model),
        "fitted": model.fitted.to_json() if isinstance(model, Hydra) else None,
        "input": found.digest,
        "rows": found.rows,
        "rows_a_block": rows_a_block,
        "id": id_column,
        "columns": columns,
        "prepared": prepared,
    }
    _agree(output, about)
    blocks = found.blocks(rows_a_block)
    done = _existing(output)
    left = [block for block in blocks if f"{block.name}.parquet" not in done]
    number = sum(map(len, blocks)) - sum(map(len, left))
    tell = show or (lambda rows, of: None)
    tell(number, found.rows)
    if left:
        with cluster(None if workers is None else workers * threads) as ray:
            options: dict[str, Any] = {"num_cpus": threads, "workers": workers_of(ray, workers, threads, gpus)}
            options |= {"num_gpus": gpus} if gpus else {}
            held = ray.put(model)
            settings = {
                "model": [held],  # in a list Ray passes it on as it is
                "found": found,
                "output": output,
                "id_column": id_column,
                "columns": columns,
                "prepared": prepared,
                "threads": threads,
            }
            for rows in _scored(ray, left, settings, options):
                number += rows
                tell(number, found.rows)
    return _summary(output, blocks, round(time.monotonic() - started, 1))


def _scored(ray: Any, left: list[Block], settings: Mapping[str, Any], options: dict[str, Any]) -> Iterator[int]:
    """Ray Data takes the blocks to the workers and says how many rows of each are done."""
    data = import_extra("ray.data", "scale", "bulk scoring")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True  # else nobody learns what failed
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    pool = data.ActorPoolStrategy(size=options.pop("workers"))
    items = [{"block": block} for block in left]
    scored = data.from_items(items, override_num_blocks=len(items)).map_batches(
        Scorer, batch_size=1, batch_format="numpy", fn_constructor_kwargs=dict(settings), compute=pool, **options
    )
    try:
        for batch in scored.iter_batches(batch_size=1, prefetch_batches=0):
            if problem := str(batch["problem"][0]):
                raise ScaleError(problem)
            yield int(batch["rows"][0])
    except ray.exceptions.RayTaskError as error:
        raise ScaleError(f"a worker failed: {in_one_line(error.cause)}") from error


class Scorer:
    """What a worker holds: the model, and the file that it reads."""

    def __init__(
        self,
        model: list[Any],
        found: Input,
        output: str,
        id_column: str | None,
        columns: Mapping[str, Any],
        prepared: Mapping[str, Any],
        threads: int,
    ):
        import ray

        torch.set_num_threads(threads)
        self.model: nn.Module = ray.get(model[0])
        if torch.cuda.is_available():
            self.model.cuda()
        self.found, self.output, self.id_column = found, output, id_column
        self.columns, self.prepared = columns, prepared
        self.scratch = tempfile.TemporaryDirectory(prefix="hydra-score-")
        self.copies = Copies(found.root, Path(self.scratch.name))
        self.open: tuple[str, Rows] | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """One block, from its file to its file; or what stands against it, which Ray Data would wrap in its own."""
        block: Block = batch["block"][0]
        try:
            self.write(block)
        except HydraError as error:
            return {"rows": [0], "problem": [str(error)]}
        return {"rows": [len(block)], "problem": [""]}

    def write(self, block: Block) -> None:
        """Score one block and write its files."""
        started = time.monotonic()
        lines, broken = self.lines(block)
        if broken:
            reasons = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in broken)
            write_whole(f"{self.output}/{QUARANTINE}/{block.name}.jsonl", reasons.encode(errors="replace"))
        content = as_parquet(lines or self._no_lines(), time.monotonic() - started, self.found.id_type)
        write_whole(f"{self.output}/{block.name}.parquet", content)

    def lines(self, block: Block) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
        """The columns of a block's output, and the rows that cannot be read."""
        rows = self._rows(block)
        self._batches(rows)  # what is wrong with the whole table, or asked for wrongly, is no matter of rows
        try:
            return self._predicted(block, rows, range(len(block))), []
        except DataError:
            reasons = {place: reason for place in range(len(block)) if (reason := self._broken(rows, place))}
            if not reasons:
                raise
        sound = [place for place in range(len(block)) if place not in reasons]
        broken = [{**self._named(block, place), "reason": reason} for place, reason in reasons.items()]
        if not sound:
            return {}, broken
        return self._predicted(block, rows.at(torch.tensor(sound).numpy()), sound), broken

    def _predicted(self, block: Block, rows: Rows, places: Sequence[int]) -> dict[str, list[Any]]:
        fitted = self.model.fitted if isinstance(self.model, Hydra) else Fitted()
        said = answers(self.model, self._batches(rows), digest=False, progress=False)
        found = predict(said.logits, fitted)
        classes = classes_of(self.model)
        labels = found.label.tolist()
        named = [self._named(block, place) for place in places]
        columns: dict[str, list[Any]] = {"file": [one["file"] for one in named], "row": [one["row"] for one in named]}
        if self.id_column is not None:
            columns["id"] = self._ids(rows)
        columns |= {"label": labels} | ({} if classes is None else {"class": [classes[label] for label in labels]})
        columns |= {
            "probability": found.confidence.tolist(),
            "entropy": found.entropy.tolist(),
            "mutual_information": found.epistemic.tolist(),
            "decision": [None] * len(labels) if found.decision is None else list(found.decision),
        }
        return columns

    def _ids(self, rows: Rows) -> list[Any]:
        """What is carried over; as JSON where the output holds texts and this is none."""
        (ids,) = rows.table.read(rows.chosen, [self.id_column or ""])
        if str(self.found.id_type) != "string":
            return ids
        return [one if one is None or isinstance(one, str) else json.dumps(one, default=str) for one in ids]

    def _no_lines(self) -> dict[str, list[Any]]:
        """The columns of a block of which no row can be read."""
        named = {"id": self.id_column, "class": classes_of(self.model)}
        return {name: [] for name in COLUMNS if name not in named or named[name] is not None}

    def _broken(self, rows: Rows, place: int) -> str | None:
        """Why a row cannot be read; None where it can."""
        try:
            for _ in self._batches(rows[place : place + 1]):
                pass
            if self.id_column is not None:
                self._ids(rows[place : place + 1])
        except DataError as error:
            return str(error)
        return None

    def _batches(self, rows: Rows) -> Batches:
        """Rows as the model takes them; nothing is read yet."""
        return batches_for(self.model, rows, labels=False, **self.prepared)

    def _rows(self, block: Block) -> Rows:
        if self.found.are_images:
            return open_images(self.copies.local(block.files), self.found.root)
        name = block.files[0]
        if self.open is None or self.open[0] != name:
            columns = {key: value for key, value in self.columns.items() if value is not None}
            (path,) = self.copies.local([name])
            if path.suffix.lower() == ".jsonl":
                kind = "text" if "tokenizer" in preprocess_of(self.model) else "image"
                self.open = name, open_lines(path, kind, self.id_column, **columns)
            else:
                self.open = name, open_data(path, label=False, **columns)
        return self.open[1][block.start : block.stop]

    def _named(self, block: Block, place: int) -> dict[str, Any]:
        if self.found.are_images:
            return {"file": block.files[place], "row": 0}
        return {"file": block.files[0], "row": block.start + place}


def as_parquet(columns: Mapping[str, list[Any]], seconds: float, id_type: Any = None) -> bytes:
    """Columns as the bytes of a parquet file; its footer says how often each decision was taken, and the time."""
    arrow = import_extra("pyarrow", "data", "writing parquet")
    parquet = import_extra("pyarrow.parquet", "data", "writing parquet")
    types = {name: None if kind is None else arrow.type_for_alias(kind) for name, kind in COLUMNS.items()}
    types["id"] = id_type
    table = arrow.table({name: arrow.array(values, types[name]) for name, values in columns.items()})
    taken = Counter(one for one in columns["decision"] if one is not None)
    about = json.dumps({"decisions": taken, "seconds": round(seconds, 3)})
    buffer = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({ABOUT: about}), buffer)
    return buffer.getvalue()


def write_whole(address: str, content: bytes) -> None:
    """A file that is there as a whole, or not at all."""
    files, path = file_system(address)
    if is_local(files):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with whole(Path(path)) as draft:
            draft.write_bytes(content)
    else:
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(path, content)  # object stores show a file when it is all there


def _existing(output: str) -> set[str]:
    files, path = file_system(output)
    return {one.rpartition("/")[2] for one in files.ls(path, detail=False)} if files.exists(path) else set()


def _agree(output: str, about: dict[str, Any]) -> None:
    """Write down what this run is; refuse a directory that belongs to another."""
    files, path = file_system(f"{output}/{MANIFEST}")
    if not files.exists(path):
        if any(name.endswith(".parquet") for name in _existing(output)):
            raise ScaleError(f"{output} holds parquet files but no {MANIFEST}; name another directory")
        write_whole(f"{output}/{MANIFEST}", (json.dumps(about, indent=1) + "\n").encode())
        return
    there, wanted = json.loads(files.cat_file(path)), json.loads(json.dumps(about))
    for key, value in wanted.items():
        if there.get(key) != value:
            raise ScaleError(
                f"{output} was begun with another {key} ({there.get(key)!r:.60}, now {value!r:.60}); name another "
                "directory, or delete it"
            )


def _summary(output: str, blocks: Sequence[Block], seconds: float) -> dict[str, Any]:
    """Count what the output files hold; only their footers are read."""
    parquet = import_extra("pyarrow.parquet", "data", "reading parquet")
    files, _ = file_system(output)
    decisions: Counter[str] = Counter()
    scored, busy = 0, 0.0
    for block in blocks:
        with files.open(file_system(f"{output}/{block.name}.parquet")[1], "rb") as opened:
            footer = parquet.ParquetFile(opened).metadata
        scored += footer.num_rows
        said = json.loads(footer.metadata[ABOUT.encode()])
        decisions.update(said["decisions"])
        busy += said["seconds"]
    rows = sum(map(len, blocks))
    about = {"rows": rows, "scored": scored, "quarantined": rows - scored, "decisions": dict(sorted(decisions.items()))}
    about |= {"seconds": seconds, "worker_seconds": round(busy, 1)}
    write_whole(f"{output}/{SUMMARY}", (json.dumps(about, indent=1) + "\n").encode())
    return about
