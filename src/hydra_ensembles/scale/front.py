"""The front of a service: HTTP in, JSON out, limits, metrics, logs. It knows nothing of Ray."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from hydra_ensembles import __version__
from hydra_ensembles.optional import import_extra
from hydra_ensembles.scale.limits import Limits, Refusal, checked_image, checked_text, read_body

log = logging.getLogger(__name__)

Ask = Callable[[Any], Awaitable[dict[str, Any]]]
"""Takes an input, returns what `Served.answer` says of it; raises `Refusal` where nobody can answer."""

_NUMBER = {"type": "number"}
_MAYBE_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ANSWER: Mapping[str, Any] = {
    "type": "object",
    "required": ["label", "probability", "probabilities", "uncertainty", "ood_score", "decision"],
    "properties": {
        "label": {"type": "integer"},
        "class": _MAYBE_TEXT,
        "probability": _NUMBER,
        "probabilities": {"type": "array", "items": _NUMBER},
        "uncertainty": {
            "type": "object",
            "properties": dict.fromkeys(("entropy", "aleatoric", "mutual_information", "disagreement"), _NUMBER),
        },
        "ood_score": _NUMBER,
        "prediction_set": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "decision": {
            "anyOf": [{"enum": ["accept", "abstain", "out-of-distribution"]}, {"type": "null"}],
        },
        "model": {"type": "string"},
    },
}
_TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            ]
        }
    },
}
_REFUSED = {
    401: "The bearer token is missing or wrong",
    408: "The request came too slowly",
    413: "The body, the image or the text is too large",
    415: "Not a content type that this model takes",
    422: "The input cannot be read",
    429: "Too many requests wait; come back after Retry-After seconds",
    503: "No replica answers",
    504: "The answer took too long",
}


def front(
    ask: Ask,
    kind: str,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    name: str = "hydra",
    ready: Callable[[], Awaitable[bool]] | None = None,
) -> Any:
    """The application (FastAPI) in front of a model that takes images or texts.

    Args:
        ask: who answers.
        kind: `"image"` or `"text"`.
        limits: what is refused.
        token: where given, every path but `/healthz` and `/readyz` wants it as bearer token; `/docs` and other pages
            that describe the service, for which a browser gives none, are switched off.
        name: of the model, for the title of the page.
        ready: says whether somebody is there who answers; always, where it is not given.
    """
    fastapi = import_extra("fastapi", "scale", "serving")
    responses = import_extra("fastapi.responses", "scale", "serving")
    metrics = Metrics()
    limits = limits or Limits()
    described_at = "/openapi.json" if token is None else None  # without it FastAPI has no /docs and /redoc either
    title = f"{name}: predictions with uncertainty"
    app = fastapi.FastAPI(title=title, version=__version__, openapi_url=described_at)
    app.state.is_ready = True
    waiting = 0

    def refused(error: Refusal) -> Any:
        return responses.JSONResponse({"detail": error.detail}, error.status, headers=error.headers)

    def check_token(request: Any) -> None:
        given = request.headers.get("authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refusal(401, "give the token: Authorization: Bearer ...", WWW_Authenticate="Bearer")

    async def read(request: Any) -> Any:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        takes = ("image/", "application/octet-stream") if kind == "image" else ("application/json",)
        if not media.startswith(takes):
            raise Refusal(415, f"the model takes {kind}s: Content-Type {' or '.join(takes)}", Connection="close")
        try:
            async with asyncio.timeout(limits.body_seconds):
                content = await read_body(request.headers.get("content-length"), request.stream(), limits)
        except TimeoutError:
            slow = f"the request did not arrive within {limits.body_seconds:g} s"
            raise Refusal(408, slow, Connection="close") from None
        return checked_image(content, limits) if kind == "image" else checked_text(content, limits)

    async def answered(request: Any) -> dict[str, Any]:
        nonlocal waiting
        check_token(request)
        if waiting >= limits.waiting:
            raise Refusal(429, "too many requests wait; come back later", Retry_After="1")
        waiting += 1
        metrics.waiting.set(waiting)
        try:
            wanted = await read(request)
            async with asyncio.timeout(limits.answer_seconds):
                found = await ask(wanted)
        except TimeoutError:
            raise Refusal(504, f"no answer within {limits.answer_seconds:g} s") from None
        finally:
            waiting -= 1
            metrics.waiting.set(waiting)
        if "unreadable" in found:
            raise Refusal(422, f"the {kind} cannot be read: {found['unreadable']}")
        return found

    async def predict(request: Any) -> Any:
        started, told = time.monotonic(), dict[str, Any](id=uuid4().hex[:12])
        try:
            found = await answered(request)
            response, status = responses.JSONResponse(found), 200
            told |= {"decision": found["decision"], "probability": round(found["probability"], 4)}
            metrics.answered(found)
        except Refusal as error:
            response, status = refused(error), error.status
            told |= {"refused": error.detail}
        except import_extra("starlette.requests", "scale", "serving").ClientDisconnect:
            response, status = responses.JSONResponse({"detail": "the client left"}, 499), 499
        except Exception:  # an error of ours: said in the log, not to the client
            log.exception("a request failed", extra={"fields": told})
            response, status = responses.JSONResponse({"detail": "internal error; see the log"}, 500), 500
        seconds = time.monotonic() - started
        metrics.requests.labels(str(status)).inc()
        metrics.seconds.observe(seconds)
        log.info("request", extra={"fields": {"status": status, "ms": round(1000 * seconds, 1), **told}})
        return response

    predict.__annotations__["request"] = fastapi.Request
    binary = {"schema": {"type": "string", "format": "binary"}}
    media = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
    content = dict.fromkeys(media, binary) if kind == "image" else {"application/json": {"schema": _TEXT}}
    described: dict[int, Any] = {status: _described(words, _PROBLEM) for status, words in _REFUSED.items()}
    described[200] = _described("What the ensemble says, how sure it is, and what to do", ANSWER)
    app.post(
        "/predict",
        summary=f"Label, probabilities, uncertainty and decision for one {kind}",
        responses=described,
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )(predict)

    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    async def readyz() -> Any:
        if not app.state.is_ready:
            return refused(Refusal(503, "shutting down"))
        if ready is not None and not await ready():
            return refused(Refusal(503, "no replica answers"))
        return {"status": "ready", "waiting": waiting}

    async def show_metrics(request: Any) -> Any:
        try:
            check_token(request)
        except Refusal as error:
            return refused(error)
        return responses.Response(metrics.text(), media_type="text/plain; version=0.0.4")

    show_metrics.__annotations__["request"] = fastapi.Request
    app.get("/healthz", summary="Is the process alive?")(healthz)
    not_now = {503: _described("Not now", _PROBLEM)}
    app.get("/readyz", summary="Are requests answered?", responses=not_now)(readyz)
    described = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 401: described[401]}
    app.get("/metrics", summary="For Prometheus", responses=described, response_class=responses.PlainTextResponse)(
        show_metrics
    )
    return app


_PROBLEM = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}


def _described(words: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": dict(schema)}}}


class Metrics:
    """What operators watch: load, latency, and the shares of decisions, which say when the world has changed."""

    def __init__(self) -> None:
        self._client = import_extra("prometheus_client", "scale", "serving")
        self.registry = self._client.CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = self._client.Counter("hydra_requests", "Requests by HTTP status", ["status"], **own)
        self.decisions = self._client.Counter("hydra_decisions", "Answers by decision", ["decision"], **own)
        self.seconds = self._client.Histogram("hydra_request_seconds", "From request to response", **own)
        self.waiting = self._client.Gauge("hydra_waiting", "Requests worked on or waiting", **own)
        tenths = [tenth / 10 for tenth in range(1, 11)]
        self.probability = self._client.Histogram(
            "hydra_probability", "Of the label that was answered", buckets=tenths, **own
        )

    def answered(self, found: Mapping[str, Any]) -> None:
        """Count an answer."""
        self.decisions.labels(found["decision"] or "none").inc()
        self.probability.observe(found["probability"])

    def text(self) -> bytes:
        """All of it as Prometheus reads it."""
        content: bytes = self._client.generate_latest(self.registry)
        return content
