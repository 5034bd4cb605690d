"""The service under load: DeiT-Ti at 224 px, three members, one replica with two threads, on 127.0.0.1.

Saturation against the bare batched model, in turns; latency at half load; ten minutes of twice the load; a replica
killed under load; requests that must be refused; schemathesis against the page.

Run: python benchmarks/scaling/serving.py     (about 20 minutes on 2 cores; needs the real weights and images)
Writes results/scale/serving.json and the part of results/scale.json; scratch is under benchmarks/.kept/serving.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from command_line import words
from hydra_ensembles import HeadSet, Hydra, fuse, load_model, prune
from hydra_ensembles.data import open_data
from hydra_ensembles.uncertainty import predict
from provenance import provenance
from scaling.summary import write_part

BATCH, THREADS, ROUNDS, ROUND_S, HALF_S, OVERLOAD_S = 16, 2, 3, 30, 60, 600
ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".kept" / "serving"
SHARED = ROOT.parent.parent / "shared"
MODELS = Path(os.environ.get("HYDRA_MODELS", SHARED / "models"))
DATA = Path(os.environ.get("HYDRA_DATA", SHARED / "data"))


def write_hydra(path: Path) -> None:
    model = load_model(str(MODELS / "deit-tiny-imagenet"))
    members = [prune(model, HeadSet.sample(model, 24, seed)) for seed in range(3)]
    for number, member in enumerate(members):
        with torch.no_grad():  # members that were trained differ everywhere
            for parameter in member.parameters():
                parameter.add_(1e-4 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    fuse(members).save(path)


def write_image(path: Path) -> None:
    """A photograph, 224 x 224, as JPEG."""
    from PIL import Image

    row = open_data(DATA / "images" / "imagenet-test.parquet")[0]
    image = Image.open(io.BytesIO(row.input)).convert("RGB").resize((224, 224))
    image.save(path, "JPEG", quality=90)


@torch.inference_mode()
def bare(hydra: Hydra, seconds: float) -> float:
    """Images a second of the batched model alone, on a tensor that is there."""
    images, done = torch.randn(BATCH, 3, 224, 224), 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        predict(hydra.members(images), hydra.fitted)
        done += BATCH
    return done / (time.perf_counter() - started)


def load(address: str, **options: float) -> dict[str, Any]:
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    script = [sys.executable, str(Path(__file__).parent / "load.py"), address, str(KEPT / "photo.jpg"), *given]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def service() -> Iterator[tuple[str, int]]:
    """The service as a user starts it; its address and process."""
    command = [sys.executable, "-c", "from hydra_ensembles.cli.main import main; main()", "serve", str(KEPT / "hydra")]
    given = ["--port", "0", "--threads", str(THREADS), "--batch-size", str(BATCH), "--quiet"]
    with (KEPT / "log").open("w") as log:
        server = subprocess.Popen([*command, *given], stderr=log)
    while "http://" not in (said := (KEPT / "log").read_text()):
        assert server.poll() is None, said
        time.sleep(0.2)
    try:
        yield said.split("http://")[1].split("/predict")[0], server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(90)


def resident_mb(name: str) -> float:
    """Of the processes whose title has a name in it."""
    total = 0
    for place in Path("/proc").iterdir():
        try:
            title = (place / "cmdline").read_bytes() if place.name.isdigit() else b""
            if name in title.decode(errors="replace").replace("\0", " "):
                total += int((place / "status").read_text().split("VmRSS:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return round(total / 1024, 1)


def overloaded(address: str, rate: float) -> dict[str, Any]:
    """Ten minutes, in ten parts; memory after each."""
    parts, memory = [], []
    for number in range(10):
        parts.append(load(address, rate=rate, seconds=OVERLOAD_S / 10))
        memory.append({"replica_mb": resident_mb("ServeReplica:hydra"), "front_mb": resident_mb("main() serve")})
        print(f"overload, minute {number + 1} of 10: {parts[-1]['statuses']}, {memory[-1]}", flush=True)
    statuses: dict[str, int] = {}
    for part in parts:
        for status, number in part["statuses"].items():
            statuses[status] = statuses.get(status, 0) + number
    return {"rate": round(rate, 1), "statuses": statuses, "memory": memory, "parts": parts}


def with_a_replica_killed(address: str) -> dict[str, Any]:
    """Half a minute of load; in its midst the only replica dies."""
    script = [sys.executable, str(Path(__file__).parent / "load.py"), address, str(KEPT / "photo.jpg")]
    loading = subprocess.Popen([*script, "--clients", "16", "--seconds", "40"], stdout=subprocess.PIPE, text=True)
    time.sleep(10)
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and b"ServeReplica:hydra" in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)
                break
        except OSError:
            continue
    else:
        raise AssertionError("no replica was found")
    found: dict[str, Any] = json.loads(loading.communicate()[0])
    return found


def refusals(address: str) -> dict[str, Any]:
    """What must be refused: the status, and how long it took."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", (12_000, 12_000)).save(buffer, "PNG")
    photo = (KEPT / "photo.jpg").read_bytes()
    asked = {
        "decompression bomb": (buffer.getvalue(), "image/png"),
        "100 MB body": (bytes(100 * 2**20), "image/jpeg"),
        "wrong type": (b"<html>", "text/html"),
        "truncated image": (photo[: len(photo) // 2], "image/jpeg"),
    }
    found = {}
    for name, (body, media) in asked.items():
        started = time.perf_counter()
        request = urllib.request.Request(f"http://{address}/predict", body, {"Content-Type": media})
        try:
            status: Any = urllib.request.urlopen(request, timeout=30).status
        except urllib.error.HTTPError as error:
            status = error.code
        except (urllib.error.URLError, ConnectionError):
            status = "closed while sending"
        found[name] = {"status": status, "seconds": round(time.perf_counter() - started, 2)}
    for name, sent in {
        "slow body": b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: 9\r\n\r\nx",
        "slow head": b"POST /predict HT",
    }.items():
        host, port = address.split(":")
        started = time.perf_counter()
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(sent)
            said = client.recv(200)
        status = int(said.split()[1]) if said else "closed"
        found[name] = {"status": status, "seconds": round(time.perf_counter() - started, 2)}
    return found


def schema_checked(address: str) -> dict[str, Any]:
    """Schemathesis from outside; random bytes are no image, so that check of its is left out."""
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"http://{address}/openapi.json"]
    given = ["--max-examples", "50", "--exclude-checks", "positive_data_acceptance", "--generation-deterministic"]
    done = subprocess.run([*command, *given], capture_output=True, text=True)
    (KEPT / "schemathesis.txt").write_text(done.stdout)
    return {"exit": done.returncode, "server_errors": done.stdout.count("Server error"), "said": done.stdout[-300:]}


def main() -> None:
    torch.set_num_threads(THREADS)
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    write_hydra(KEPT / "hydra")
    write_image(KEPT / "photo.jpg")
    hydra = Hydra.load(KEPT / "hydra")
    with service() as (address, _):
        load(address, clients=48, seconds=5)
        alone, full = [], []
        for _ in range(ROUNDS):
            alone.append(bare(hydra, ROUND_S))
            full.append(load(address, clients=48, seconds=ROUND_S))
            print(f"bare {alone[-1]:.1f}/s, service {full[-1]}", flush=True)
        saturated = median(one["answered_a_second"] for one in full)
        results: dict[str, Any] = {
            "over_bare": round(median(one["answered_a_second"] / a for one, a in zip(full, alone, strict=True)), 3),
            "bare_a_second": [round(one, 1) for one in alone],
            "saturated": full,
        }
        half = load(address, rate=saturated / 2, seconds=HALF_S)
        results |= {"p50_ms": half["p50_ms"], "p99_ms": half["p99_ms"], "half_load": half}
        print(f"half load: {half}", flush=True)
        results["refusals"] = refusals(address)
        print(results["refusals"], flush=True)
        results["schemathesis"] = schema_checked(address)
        results["replica_killed"] = with_a_replica_killed(address)
        print(f"replica killed: {results['replica_killed']}", flush=True)
        results["overload"] = overloaded(address, 2 * saturated)
    both = [results["overload"]["statuses"], results["replica_killed"]["statuses"]]
    results["other_status"] = sum(
        number for one in both for status, number in one.items() if status not in ("200", "429")
    )
    story = provenance(packages=["ray", "timm"], batch=BATCH, image="224 x 224 JPEG", heads="24 of 36")
    write_part("serving", {**results, "provenance": story})
    shutil.rmtree(KEPT)


if __name__ == "__main__":
    words(__doc__)
    main()
