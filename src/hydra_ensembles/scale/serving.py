"""Serving: replicas of a model on Ray Serve, and a front for them in this process."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hydra_ensembles.backbones.references import expand
from hydra_ensembles.errors import in_one_line
from hydra_ensembles.optional import import_extra
from hydra_ensembles.scale.cluster import LOCALHOST, ScaleError, cluster, is_there, workers_of
from hydra_ensembles.scale.front import Ask, front
from hydra_ensembles.scale.limits import Limits, Refusal
from hydra_ensembles.scale.replica import Replica, Served

APPLICATION, TOKEN = "hydra", "HYDRA_TOKEN"
HEADER_SECONDS, LEAVE_SECONDS, JOIN_SECONDS = 10.0, 30.0, 60.0
log = logging.getLogger(__name__)


def serve(
    reference: str,
    *,
    host: str = LOCALHOST,
    port: int = 8000,
    replicas: int = 1,
    max_replicas: int | None = None,
    threads: int = 1,
    gpus: float = 0,
    batch_size: int = 16,
    wait_ms: float = 5.0,
    limits: Limits | None = None,
    name: str = APPLICATION,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a model until the process is told to end; then answer what is waiting, and leave.

    The replicas that this process started end with it, those that it found do not.

    Args:
        reference: a hydra, a member or a model. A directory may be replaced while it is served.
        host: where the front listens.
        port: likewise; 0 for any.
        replicas: how many, at least.
        max_replicas: where given, Ray Serve adds replicas under load, up to so many.
        threads: CPU threads of each, each with a batch of its own.
        gpus: of each; it computes one batch at a time.
        batch_size: inputs that a replica computes at once, at most.
        wait_ms: how long a batch waits to be filled.
        limits: what is refused.
        name: of the application on Ray. Where one of this name serves the same model already, as on a cluster with a
            front on each node, this process is one more front of it: replicas are as they were asked for there.
        started: is told the address once requests are answered.
    """
    kind = Served(reference).kind  # a model that cannot be served is refused here
    is_shared = is_there()
    with cluster((max_replicas or replicas) * threads) as ray:
        limits = limits or Limits()
        place = _everywhere(reference)
        handle = running(name, place)
        is_ours = handle is None
        if is_ours:
            workers_of(ray, replicas, threads, gpus)  # Ray would wait for what it has not, and say nothing
        try:
            if handle is None:
                handle = deploy(name, place, replicas, max_replicas, threads, gpus, batch_size, wait_ms, limits.waiting)
            app = front(
                asking(ray, handle, limits.tries),
                kind,
                limits=limits,
                token=os.environ.get(TOKEN) or None,
                name=Path(reference).name,
                ready=partial(are_replicas_running, name),
            )
            run_front(app, host, port, started)
        finally:
            if is_shared and is_ours:  # a Ray of our own ends with the block
                import_extra("ray.serve", "scale", "serving").delete(name)


def running(name: str, place: str) -> Any | None:
    """How to ask the application of this name, if it serves this model; None where there is none, of this name."""
    serving = import_extra("ray.serve", "scale", "serving")
    found = serving.status().applications.get(name)
    if found is None or found.status == "DELETING":
        return None
    handle = serving.get_app_handle(name)
    try:
        there = handle.place.remote().result(timeout_s=JOIN_SECONDS)
    except Exception as error:  # somebody else's application, or one that does not start
        raise ScaleError(
            f"the application '{name}' on this Ray does not say what it serves ({in_one_line(error)}); choose another "
            "name (--name), or delete it (ray.serve.delete)"
        ) from None
    if there != place:
        raise ScaleError(f"the application '{name}' on this Ray serves {there}, not {place}; choose another (--name)")
    return handle


def deploy(
    name: str,
    place: str,
    replicas: int,
    max_replicas: int | None,
    threads: int,
    gpus: float,
    batch_size: int,
    wait_ms: float,
    waiting: int,
) -> Any:
    """Start the replicas; the handle to ask them."""
    serving = import_extra("ray.serve", "scale", "serving")
    at_once = 1 if gpus else threads
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serving.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})

    class Batched(Replica):
        many = serving.batch(
            max_batch_size=batch_size, batch_wait_timeout_s=wait_ms / 1000, max_concurrent_batches=at_once
        )(Replica.many)

        async def __call__(self, wanted: Any) -> Any:
            return await self.many(wanted)

    # Requests wait in the replica: a handle that finds all replicas full looks again only after a pause.
    ongoing = max(waiting, (at_once + 1) * batch_size)
    if max_replicas is None:
        number: dict[str, Any] = {"num_replicas": replicas}
    else:
        scaling = {"min_replicas": replicas, "max_replicas": max_replicas, "target_ongoing_requests": batch_size}
        number = {"autoscaling_config": scaling}
    deployment = serving.deployment(Batched).options(
        name=APPLICATION,
        max_ongoing_requests=ongoing,
        max_queued_requests=waiting,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        graceful_shutdown_timeout_s=LEAVE_SECONDS,
        health_check_period_s=2,
        **number,
    )
    try:
        return serving.run(deployment.bind(place, at_once, "cuda" if gpus else "cpu"), name=name, route_prefix=None)
    except RuntimeError as error:
        raise ScaleError(f"the replicas do not start: {in_one_line(error)}; Ray's logs say more") from error


def _everywhere(reference: str) -> str:
    """A reference that means the same in every process."""
    directory = Path(expand(reference))
    return str(directory.absolute()) if directory.is_dir() else reference


async def are_replicas_running(name: str = APPLICATION) -> bool:
    """What Ray Serve says of them."""
    serving = import_extra("ray.serve", "scale", "serving")
    found = await asyncio.to_thread(serving.status)
    application = found.applications.get(name)
    return application is not None and any(
        number > 0
        for deployment in application.deployments.values()
        for state, number in deployment.replica_states.items()
        if state == "RUNNING"
    )


def asking(ray: Any, handle: Any, tries: int) -> Ask:
    """Asks the replicas; a request that was at a replica that died is asked again."""
    problems = import_extra("ray.serve.exceptions", "scale", "serving")
    died = (ray.exceptions.RayActorError, problems.ReplicaUnavailableError)

    async def ask(wanted: Any) -> dict[str, Any]:
        for left in reversed(range(tries)):
            try:
                found: dict[str, Any] = await handle.remote(wanted)
                return found
            except problems.BackPressureError:
                raise Refusal(429, "too many requests wait; come back later", Retry_After="1") from None
            except died as error:
                log.warning("a replica died: %s", in_one_line(error)[:200])
                if left:
                    await asyncio.sleep(0.1)
        raise Refusal(503, "no replica answers", Retry_After="5")

    return ask


def run_front(app: Any, host: str, port: int, started: Callable[[str], None] | None) -> None:
    """Answer until SIGTERM or Ctrl-C; then take no more, and finish what was begun."""
    uvicorn = import_extra("uvicorn", "scale", "serving")
    protocol = import_extra("uvicorn.protocols.http.h11_impl", "scale", "serving")
    h11 = import_extra("h11", "scale", "serving")

    class Patient(protocol.H11Protocol):  # type: ignore[misc,name-defined]
        """Closes a connection on which a request head is begun, but not whole for too long; the first is always begun.

        Likewise one whose body goes on after the answer. A connection on which nothing comes is uvicorn's to close.
        """

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.closing = self.loop.call_later(HEADER_SECONDS, transport.close)

        def handle_events(self) -> None:
            super().handle_events()
            if self.conn.their_state is h11.IDLE:
                is_awaited = self.cycle is None or bool(self.conn.trailing_data[0])
            else:
                is_awaited = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
            if not is_awaited and self.closing is not None:
                self.closing.cancel()
                self.closing = None
            elif is_awaited and self.closing is None:
                self.closing = self.loop.call_later(HEADER_SECONDS, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.closing is not None:
                self.closing.cancel()

    class Server(uvicorn.Server):  # type: ignore[misc,name-defined]
        """Says where it is, and that it is leaving."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started and started is not None:
                bound = self.servers[0].sockets[0].getsockname()
                started(f"http://{bound[0]}:{bound[1]}")

        async def shutdown(self, sockets: Any = None) -> None:
            app.state.is_ready = False
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Patient,
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,  # longer than load balancers keep idle connections
        timeout_graceful_shutdown=int(LEAVE_SECONDS),
        server_header=False,
    )
    with _taken_note_of(signal.SIGINT, signal.SIGTERM):
        Server(config).run()


@contextmanager
def _taken_note_of(*signals: signal.Signals) -> Iterator[None]:
    """The server raises the signals that ended it once more when it is done; by then they have done their work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
