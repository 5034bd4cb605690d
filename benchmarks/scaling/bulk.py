"""Bulk scoring of 100,000 texts against a bare loop; then killed three times, and every id counted.

All rows of the text sets, then as many Flickr8k captions as are missing. The hydra: MiniLM, three members of 36 heads
drawn at random (which heads, and what they learned, changes no speed), in bf16.

Run: python benchmarks/scaling/bulk.py     (about 25 minutes on 2 cores; needs the real data)
Writes results/scale/bulk.json and the part of results/scale.json. Scratch is under benchmarks/.kept/scale.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from hydra_ensembles import HeadSet, Hydra, fuse, prune
from hydra_ensembles.data import batches_for, open_data
from hydra_ensembles.evaluation import answers
from hydra_ensembles.scale.bulk import ABOUT, ROWS_A_BLOCK, as_parquet
from hydra_ensembles.uncertainty import predict
from provenance import provenance
from scaling.summary import write_part
from text.setting import MAX_TOKENS, ROOT, TEXT, load

ROWS, BATCH, THREADS, KILLS = 100_000, 64, 2, 3
KEPT = ROOT / ".kept" / "scale"


def write_input(path: Path) -> None:
    """Rows with an id each, in 4 files."""
    found: list[str] = []
    for file in sorted(TEXT.glob("*.parquet")):
        rows = open_data(file, label=False)
        found += [" ".join(row.input) if isinstance(row.input, tuple) else row.input for row in rows]
    for name in ("flickr8k-train.parquet", "flickr8k-test.parquet"):
        for captions in pq.read_table(TEXT.parent / "images" / name, columns=["captions"])["captions"].to_pylist():
            found += captions
    path.mkdir(parents=True)
    for part in range(4):
        start, stop = part * ROWS // 4, (part + 1) * ROWS // 4
        ids = [f"row-{row:06d}" for row in range(start, stop)]
        pq.write_table(pa.table({"id": ids, "text": found[start:stop]}), path / f"{part}.parquet", row_group_size=5000)


def write_hydra(path: Path) -> None:
    model = load(0)
    members = [prune(model, HeadSet.sample(model, 36, seed)) for seed in range(3)]
    for number, member in enumerate(members):
        with torch.no_grad():  # members that were trained differ everywhere
            for parameter in member.parameters():
                parameter.add_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    fuse(members).to(torch.bfloat16).save(path)


def bare_loop(data: Path, out: Path) -> float:
    """The same in one process: read, tokenise, compute, write, block by block. Rows a second."""
    started = time.perf_counter()
    hydra = Hydra.load(KEPT / "hydra")
    out.mkdir(parents=True)
    number, began = 0, started
    for file in sorted(data.iterdir()):
        rows = open_data(file)
        for start in range(0, len(rows), ROWS_A_BLOCK):
            some = rows[start : start + ROWS_A_BLOCK]
            batches = batches_for(hydra, some, labels=False, batch_size=BATCH, max_tokens=MAX_TOKENS)
            said = predict(answers(hydra, batches, digest=False, progress=False).logits, hydra.fitted)
            columns = {
                "id": some.table.read(some.chosen, ["id"])[0],
                "label": said.label.tolist(),
                "probability": said.confidence.tolist(),
                "entropy": said.entropy.tolist(),
                "mutual_information": said.epistemic.tolist(),
                "decision": [None] * len(some),
            }
            (out / f"part-{number:06d}.parquet").write_bytes(as_parquet(columns, time.perf_counter() - began))
            number, began = number + 1, time.perf_counter()
    return ROWS / (time.perf_counter() - started)


def command(out: Path) -> list[str]:
    asked = ["score", str(KEPT / "hydra"), str(KEPT / "input"), str(out), "--id", "id", "--workers", "2"]
    given = ["--threads", "1", "--batch-size", str(BATCH), "--max-tokens", str(MAX_TOKENS)]
    return [sys.executable, "-c", "from hydra_ensembles.cli.main import main; main()", *asked, *given]


def ids_in(out: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for file in out.glob("part-*.parquet"):
        found.update(pq.read_table(file, columns=["id"])["id"].to_pylist())
    return found


def block_seconds(out: Path) -> list[float]:
    """What each block of 4,096 rows took; the last of a file has fewer, and is left out."""
    footers = [pq.ParquetFile(file).metadata for file in sorted(out.glob("part-*.parquet"))]
    return [json.loads(one.metadata[ABOUT.encode()])["seconds"] for one in footers if one.num_rows == ROWS_A_BLOCK]


def killed(out: Path, seconds: float) -> list[float]:
    """Runs that are killed at random, driver and workers together, and one that ends; when they were killed."""
    chance, times = random.Random(0), []
    for _ in range(KILLS):
        run = subprocess.Popen(command(out), start_new_session=True, stdout=subprocess.DEVNULL)
        after = chance.uniform(0.15, 0.3) * seconds
        time.sleep(after)
        assert run.poll() is None, "the run ended before it was killed"
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        time.sleep(3)  # Ray's processes notice that their driver is gone
        times.append(round(after, 1))
        print(f"killed after {after:.0f} s: {len(list(out.glob('part-*.parquet')))} files are there", flush=True)
    subprocess.run(command(out), check=True)
    return times


def main() -> None:
    torch.set_num_threads(THREADS)
    shutil.rmtree(KEPT, ignore_errors=True)
    write_input(KEPT / "input")
    write_hydra(KEPT / "hydra")
    print("bare loop", flush=True)
    bare = bare_loop(KEPT / "input", KEPT / "bare")
    print(f"{bare:.0f} rows/s; now on Ray", flush=True)
    started = time.perf_counter()
    subprocess.run(command(KEPT / "scored"), check=True)
    seconds = time.perf_counter() - started
    results: dict[str, Any] = {
        "over_bare": round(ROWS / seconds / bare, 3),
        "bare_rows_a_second": round(bare, 1),
        "rows_a_second": round(ROWS / seconds, 1),
        "block_rows": ROWS_A_BLOCK,
        "block_seconds": block_seconds(KEPT / "scored"),
    }
    print(results, flush=True)
    results["killed_after_s"] = killed(KEPT / "killed", seconds)
    ids, whole = ids_in(KEPT / "killed"), ids_in(KEPT / "scored")
    results |= {"distinct_ids": len(ids), "rows_out": sum(ids.values()), "as_undisturbed": ids == whole}
    story = provenance(packages=["ray", "transformers"], rows=ROWS, batch=BATCH, max_tokens=MAX_TOKENS, dtype="bf16")
    write_part("bulk", {**results, "provenance": story})
    shutil.rmtree(KEPT)


if __name__ == "__main__":
    words(__doc__)
    main()
