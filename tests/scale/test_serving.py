"""The service on Ray Serve: answers in batches, survives the death of a replica, leaves in order."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest

from deciding import NAMES, hydra_of
from hydra_ensembles.scale import serving
from hydra_ensembles.scale.cluster import ScaleError
from hydra_ensembles.scale.replica import Served
from ray_workers import workers_named
from tiny_sets import IMAGE, png


def picture(seed):
    return png(np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def hydra(tmp_path_factory):
    root = tmp_path_factory.mktemp("hydra")
    for row in range(20):
        file = root / "known" / NAMES[row % 5] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(row))
    hydra_of("timm", IMAGE, root / "known").save(root / "hydra")
    return root / "hydra"


def ask(address, body):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("POST", "/predict", body, {"Content-Type": "image/png"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def test_a_service_from_start_to_end(hydra):
    command = [sys.executable, "-c", "from hydra_ensembles.cli.main import main; main()", "serve", str(hydra)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    server = subprocess.Popen([*command, "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    lines = []
    try:
        for line in server.stderr:
            lines.append(line)
            if "http://" in line:
                break
        assert "http://" in lines[-1], lines
        threading.Thread(target=lambda: lines.extend(server.stderr), daemon=True).start()
        address = lines[-1].split("/predict")[0].split("http://")[1]
        assert address.startswith("127.0.0.1:")
        assert urllib.request.urlopen(f"http://{address}/readyz").status == 200
        status, content = ask(address, picture(3))
        expected = json.loads(json.dumps(Served(str(hydra)).answer([picture(3)])[0]))
        found = json.loads(content)
        assert status == 200
        assert (found["label"], found["decision"], found["model"]) == (
            expected["label"],
            expected["decision"],
            expected["model"],
        )
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)

        answered = []
        ending = threading.Event()

        def client(seed):
            while not ending.is_set():
                answered.append(ask(address, picture(seed))[0])

        clients = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for one in clients:
            one.start()
        while len(answered) < 20:
            time.sleep(0.01)
        (replica,) = workers_named("ServeReplica:hydra")
        os.kill(replica, signal.SIGKILL)
        before, until = len(answered), time.monotonic() + 90
        while len(answered) < before + 40 and time.monotonic() < until:
            time.sleep(0.05)
        ending.set()
        for one in clients:
            one.join()
        assert len(answered) >= before + 40
        assert set(answered) == {200}
        assert replica not in workers_named("ServeReplica:hydra")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        requests = [json.loads(line) for line in lines if '"request"' in line]
        assert len(requests) >= len(answered)
    finally:
        server.kill()


class Left(Exception):
    """In place of SIGTERM."""


def test_a_front_joins_its_model_and_ends_only_what_it_started(hydra, two_cpus, tmp_path):
    from ray import serve as on_ray

    shutil.copytree(hydra, tmp_path / "other")
    seen = []

    def leave(address):
        seen.append(set(on_ray.status().applications))
        raise Left

    def serve_and_leave(reference, name):
        with pytest.raises(Left):
            serving.serve(str(reference), port=0, name=name, batch_size=4, started=leave)

    serving.deploy("one", str(hydra), 1, None, 1, 0, 4, 1.0, 8)
    try:
        serve_and_leave(hydra, "one")
        with pytest.raises(ScaleError, match=r"'one' on this Ray serves .*/hydra, not .*/other; choose another"):
            serving.serve(str(tmp_path / "other"), port=0, name="one", started=leave)
        serve_and_leave(tmp_path / "other", "two")
        assert seen == [{"one"}, {"one", "two"}]
        assert set(on_ray.status().applications) == {"one"}
    finally:
        on_ray.shutdown()
