"""The front of a service, without Ray: what it answers, what it refuses, what it tells operators."""

import asyncio
import http.client
import io
import json
import logging
import shutil
import socket
import struct
import threading
import time
import zlib
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from deciding import NAMES, TEXT, hydra_of
from hydra_ensembles import Hydra
from hydra_ensembles.scale import replica, serving
from hydra_ensembles.scale.front import front
from hydra_ensembles.scale.limits import Limits
from hydra_ensembles.scale.logs import JsonLines
from hydra_ensembles.scale.replica import Replica, Served, stamp_of
from hydra_ensembles.store.whole import draft_of
from hydra_ensembles.uncertainty import Fitted
from tiny_sets import IMAGE, png

LIMITS = Limits(body_bytes=50_000, pixels=100_000, characters=200, waiting=4, body_seconds=1.0, answer_seconds=2.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root, chance = tmp_path_factory.mktemp("served"), np.random.default_rng(0)
    for row in range(20):
        file = root / "known" / NAMES[row % 5] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(chance.integers(0, 256, (20, 20, 3), dtype=np.uint8)))
    hydra_of("timm", IMAGE, root / "known").save(root / "image")
    (root / "texts.csv").write_text(
        "text,label\n" + "".join(f"a b c {'d ' * row},{NAMES[row % 5]}\n" for row in range(20))
    )
    hydra_of("bert", TEXT, root / "texts.csv").save(root / "text")
    return root


def direct(served):
    """Asks a model in this process."""

    async def ask(wanted):
        return served.answer([wanted])[0]

    return ask


@contextmanager
def running(app):
    """The front on a port of its own, in a thread; its address."""
    found, servers = threading.Event(), []
    address = []

    def started(at):
        address.append(at.removeprefix("http://"))
        found.set()

    import uvicorn

    run = uvicorn.Server.run

    def and_keep(self, *more):
        servers.append(self)
        return run(self, *more)

    uvicorn.Server.run = and_keep
    thread = threading.Thread(target=serving.run_front, args=(app, "127.0.0.1", 0, started), daemon=True)
    thread.start()
    assert found.wait(20)
    uvicorn.Server.run = run
    try:
        yield address[0]
    finally:
        servers[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def post(address, body, media="image/png", path="/predict", **headers):
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("POST" if body is not None else "GET", path, body, {"Content-Type": media, **headers})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, response.headers


def picture(size=20, seed=0):
    return png(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def bomb():
    """A small file that says it holds 20,000 x 20,000 pixels."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + png(np.zeros((2, 2, 3), dtype=np.uint8))[33:]


def eps():
    """What Pillow would have Ghostscript draw."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8)).save(buffer, "EPS")
    assert Image.open(buffer).size == (20, 20)
    return buffer.getvalue()


def test_an_image_is_answered(models):
    served = Served(str(models / "image"))
    with running(front(direct(served), "image", limits=LIMITS)) as address:
        status, content, _ = post(address, picture())
        assert status == 200
        found = json.loads(content)
        assert found == json.loads(json.dumps(served.answer([picture()])[0]))
        assert found["class"] == NAMES[found["label"]]
        assert sum(found["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert found["decision"] in ("accept", "abstain", "out-of-distribution")
        assert set(found["uncertainty"]) == {"entropy", "aleatoric", "mutual_information", "disagreement"}
        for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
            assert post(address, None, path=path)[0] == 200
        told = post(address, None, path="/metrics")[1].decode()
        assert f'hydra_decisions_total{{decision="{found["decision"]}"}} 1.0' in told
        assert 'hydra_requests_total{status="200"} 1.0' in told


def test_one_broken_image_does_not_spoil_its_batch(models):
    served = Served(str(models / "image"))
    whole, broken = picture(), picture()[:-100]
    found = served.answer([whole, broken, whole])
    assert "truncated" in found[1]["unreadable"]
    assert found[0]["probability"] == pytest.approx(served.answer([whole])[0]["probability"], abs=1e-6)
    assert [list(served.answer([broken])[0])] == [["unreadable"]]


@pytest.mark.parametrize(
    ("body", "media", "status", "words"),
    [
        (b"", "image/png", 422, "empty"),
        (b"no image", "image/png", 422, "not an image"),
        (eps(), "application/octet-stream", 422, "not an image"),
        (picture()[:-100], "image/png", 422, "cannot be read"),
        (bomb(), "image/png", 413, "pixels"),
        (picture(400), "image/png", 413, "longer than 50,000 bytes"),
        (picture(), "text/html", 415, "takes images"),
        (b'{"text": "a"}', "application/json", 415, "takes images"),
    ],
)
def test_what_an_image_model_refuses(models, body, media, status, words):
    with running(front(direct(Served(str(models / "image"))), "image", limits=LIMITS)) as address:
        found = post(address, body, media)
        assert (found[0], words in json.loads(found[1])["detail"]) == (status, True), found
        assert post(address, picture())[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"text": "a b c"}', 200),
        ('{"text": ["a b", "c d"]}', 200),
        ('{"text": ""}', 200),
        ('{"text": 3}', 422),
        ('{"text": ["a", "b", "c"]}', 422),
        ("[1]", 422),
        ("{", 422),
        ("[" * 5000, 422),
        ('{"text": "\\ud800"}', 422),
        (json.dumps({"text": "a" * 201}), 413),
    ],
)
def test_texts(models, body, status):
    app = front(direct(Served(str(models / "text"))), "text", limits=LIMITS)
    with running(app) as address:
        assert post(address, body, "application/json")[0] == status


def test_a_long_body_is_refused_while_it_comes(models):
    """Whatever it says of its length."""
    with running(front(direct(Served(str(models / "image"))), "image", limits=LIMITS)) as address:
        host, port = address.split(":")
        for head in (b"Content-Length: 104857600", b"Transfer-Encoding: chunked"):
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n" + head + b"\r\n\r\n")
                sent = 0
                try:
                    while sent < 100_000_000 and head.startswith(b"Transfer"):
                        client.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                        sent += 10_000
                except OSError:
                    pass
                assert sent < 20_000_000
                assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_slow_clients_are_not_waited_for(models, monkeypatch):
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.5)
    with running(front(direct(Served(str(models / "image"))), "image", limits=LIMITS)) as address:
        host, port = address.split(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as body,
            socket.create_connection((host, int(port)), timeout=10) as head,
        ):
            head.sendall(b"POST /predict HT")
            body.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 900\r\n\r\nx"
            )
            started = time.monotonic()
            assert head.recv(100) == b""
            assert body.recv(100).startswith(b"HTTP/1.1 408")
            assert time.monotonic() - started < 5


async def quick(wanted):
    return {"label": 0, "probability": 0.5, "decision": None}


@pytest.mark.parametrize(("token", "status"), [(None, b"200"), ("key", b"401")])
def test_slow_clients_are_not_waited_for_after_an_answer(token, status, monkeypatch):
    """A byte now and then keeps neither the head of a second request open, nor the body of one that is refused."""
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.5)
    with running(front(quick, "image", limits=LIMITS, token=token)) as address:
        host, port = address.split(":")
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
        length = len(picture()) if token is None else 10_000
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(head % length + picture())
            assert client.recv(12) == b"HTTP/1.1 " + status
            client.settimeout(0.1)
            is_open, until = True, time.monotonic() + 10
            while is_open and time.monotonic() < until:
                with suppress(TimeoutError):
                    try:
                        client.sendall(b"P")
                        is_open = client.recv(1000) != b""
                    except ConnectionError:
                        is_open = False
            assert not is_open


def test_a_connection_is_kept_between_requests(monkeypatch):
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.2)
    with running(front(quick, "image", limits=LIMITS)) as address:
        connection = http.client.HTTPConnection(address, timeout=20)
        sockets = set()
        for _ in range(3):
            connection.request("POST", "/predict", picture(), {"Content-Type": "image/png"})
            assert connection.getresponse().read().startswith(b'{"label":0')
            sockets.add(connection.sock)
            time.sleep(0.4)
        assert len(sockets) == 1
        connection.close()


def test_too_many_are_told_to_come_back(models):
    at_work = threading.Event()

    async def slow(wanted):
        while not at_work.is_set():
            await asyncio.sleep(0.01)
        return {"label": 0, "probability": 0.5, "decision": None}

    with running(front(slow, "image", limits=LIMITS)) as address:
        found = []
        clients = [threading.Thread(target=lambda: found.append(post(address, picture()))) for _ in range(7)]
        for client in clients:
            client.start()
        while len(found) < 3:
            time.sleep(0.01)
        at_work.set()
        for client in clients:
            client.join()
        assert sorted(status for status, *_ in found) == [200] * 4 + [429] * 3
        assert {headers["Retry-After"] for status, _, headers in found if status == 429} == {"1"}


def test_an_answer_that_never_comes(models):
    async def never(wanted):
        await asyncio.sleep(60)

    async def failing(wanted):
        raise RuntimeError("secret")

    with running(front(never, "image", limits=LIMITS)) as address:
        assert post(address, picture())[0] == 504
    with running(front(failing, "image", limits=LIMITS)) as address:
        status, content, _ = post(address, picture())
        assert (status, b"secret" in content) == (500, False)


def test_readiness_is_that_of_the_replicas(models):
    there = [True]

    async def ready():
        return there[0]

    with running(front(direct(None), "image", ready=ready)) as address:
        assert post(address, None, path="/readyz")[0] == 200
        there[0] = False
        assert post(address, None, path="/readyz")[0] == 503
        assert post(address, None, path="/healthz")[0] == 200


def test_a_token_is_wanted_where_one_is_set(models):
    with running(front(direct(Served(str(models / "image"))), "image", token="key")) as address:
        assert post(address, picture())[0] == 401
        assert post(address, picture(), Authorization="Bearer kex")[0] == 401
        assert post(address, picture(), Authorization="Bearer key")[0] == 200
        assert post(address, None, path="/metrics")[0] == 401
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert post(address, None, path=path)[0] == 404
        assert post(address, None, path="/healthz")[0] == 200


def test_logs_hold_no_inputs(models, caplog):
    with caplog.at_level(logging.INFO, "hydra_ensembles"):
        with running(front(direct(Served(str(models / "text"))), "text")) as address:
            post(address, '{"text": "private words"}', "application/json")
        lines = [json.loads(JsonLines().format(record)) for record in caplog.records if record.message == "request"]
    assert [(line["status"], line["level"]) for line in lines] == [(200, "info")]
    assert "private" not in str(lines)
    assert {"time", "ms", "id", "decision", "probability"} <= set(lines[0])


def test_what_answers_otherwise_has_another_name(models, tmp_path):
    """The same weights with another threshold, other classes or other pixels are another model to its readers."""
    hydra = Hydra.load(models / "image")
    others = {"fitted": Fitted(), "classes": NAMES[::-1], "preprocess": {**hydra.preprocess, "mean": [0.1] * 3}}
    for field, value in others.items():
        other = Hydra.load(models / "image")
        setattr(other, field, value)
        other.save(tmp_path / field)
    places = [models / "image", models / "image", *(tmp_path / field for field in others)]
    assert len({Served(str(place)).digest for place in places}) == 4


def test_a_replaced_directory_is_taken_over(models, tmp_path, monkeypatch):
    monkeypatch.setattr(replica, "LOOK_EVERY_S", 0.05)
    shutil.copytree(models / "image", tmp_path / "served")
    served = Replica(str(tmp_path / "served"), 1)
    first = served.served.digest

    async def watch():
        said = await served.many([picture()])
        assert said[0]["model"] == first
        (tmp_path / "served" / "config.json").write_text("{")
        await asyncio.sleep(0.3)
        assert served.served.digest == first  # a broken one is left alone
        config = json.loads((models / "image" / "config.json").read_text())
        config["preprocess"]["mean"] = 0.5  # a TypeError, none of ours
        (tmp_path / "served" / "config.json").write_text(json.dumps(config))
        await asyncio.sleep(0.5)
        assert served.served.digest == first
        assert not served.watching.done()
        shutil.rmtree(tmp_path / "served")
        other = Hydra.load(models / "image")
        other.fitted = other.fitted.__class__()
        for parameter in other.parameters():
            parameter.data.mul_(0.9)
        other.save(tmp_path / "served")
        for _ in range(100):
            await asyncio.sleep(0.05)
            if served.served.digest != first:
                break
        said = await served.many([picture()])
        assert said[0]["model"] != first
        assert said[0]["decision"] is None

    asyncio.run(watch())


def test_a_model_for_which_there_was_no_memory_is_tried_again(models, tmp_path, monkeypatch):
    monkeypatch.setattr(replica, "LOOK_EVERY_S", 0.05)
    shutil.copytree(models / "image", tmp_path / "served")
    served = Replica(str(tmp_path / "served"), 1)
    first, tries = served.served.digest, []

    def scarce(*where):
        tries.append(where)
        if len(tries) == 1:
            raise MemoryError
        return Served(*where)

    async def watch():
        await served.many([picture()])
        monkeypatch.setattr(replica, "Served", scarce)
        other = Hydra.load(models / "image")
        other.fitted = Fitted()
        shutil.rmtree(tmp_path / "served")
        other.save(tmp_path / "served")
        for _ in range(200):
            await asyncio.sleep(0.05)
            if served.served.digest != first:
                break

    asyncio.run(watch())
    assert served.served.digest != first
    assert len(tries) == 2


@pytest.mark.parametrize(("changed", "words"), [({"size": 40}, "40"), ({"interpolation": "cubist"}, "cubist")])
def test_a_model_that_cannot_answer_is_refused_before_it_is_asked(models, tmp_path, changed, words):
    shutil.copytree(models / "image", tmp_path / "served")
    config = json.loads((models / "image" / "config.json").read_text())
    config["preprocess"] |= changed
    (tmp_path / "served" / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match=words):
        Served(str(tmp_path / "served"))


def test_a_draft_is_no_new_model(models, tmp_path):
    shutil.copytree(models / "image", tmp_path / "served")
    before = stamp_of(str(tmp_path / "served"))
    draft_of(tmp_path / "served" / "config.json").write_text("{")
    assert [name for name, *_ in before] == ["config.json", "model.safetensors"]
    assert stamp_of(str(tmp_path / "served")) == before


@pytest.mark.parametrize("kind", ["image", "text"])
def test_schemathesis_finds_nothing(models, kind):
    """Every request that the page allows, and many that it does not, is answered as the page says."""
    app = front(direct(Served(str(models / kind))), kind, limits=LIMITS)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen = 0
    for operation in schema.get_all_operations():
        for case in _cases(operation.ok()):
            response = case.call()
            assert response.status_code < 500, (case, response.content)
            # No schema can say which bytes are an image.
            case.validate_response(response, excluded_checks=[positive_data_acceptance] if kind == "image" else [])
            seen += 1
    assert seen > 10


def _cases(operation):
    """Requests as the page allows them, and as it does not."""
    found = []
    ours = settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        with suppress(Unsatisfiable):  # a request without parameters has no wrong form
            ours(given(case=operation.as_strategy(generation_mode=mode))(lambda case: found.append(case)))()
    return found
