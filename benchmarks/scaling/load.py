"""A load generator: posts images to a service over kept connections, and says what came back.

Closed loop: so many clients, each asks again when it is answered. Open loop: so many requests a second, whatever comes
back. Run as a process of its own, so that its CPU time is known: python benchmarks/scaling/load.py ADDRESS IMAGE
--seconds 30 --clients 48 | --rate 20
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Connection:
    """One HTTP/1.1 connection, opened again where it was closed."""

    def __init__(self, address: str, body: bytes):
        self.host, _, port = address.partition(":")
        self.port = int(port)
        self.reader: Any = None
        self.writer: Any = None
        head = f"POST /predict HTTP/1.1\r\nHost: {address}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}"
        self.request = head.encode() + b"\r\n\r\n" + body

    async def ask(self) -> int:
        """The status of one request; 0 where the connection broke."""
        try:
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
            self.writer.write(self.request)
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = head.decode().lower().split("\r\n")
            length = next(int(field.split(":")[1]) for field in fields if field.startswith("content-length:"))
            await self.reader.readexactly(length)
            if "connection: close" in fields:
                self.close()
            return int(fields[0].split()[1])
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None


async def closed_loop(address: str, body: bytes, clients: int, seconds: float, told: list[tuple[int, float]]) -> None:
    until = time.perf_counter() + seconds

    async def client() -> None:
        connection = Connection(address, body)
        while time.perf_counter() < until:
            started = time.perf_counter()
            status = await connection.ask()
            told.append((status, time.perf_counter() - started))
            if status != 200:
                await asyncio.sleep(0.05)
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))


async def open_loop(address: str, body: bytes, rate: float, seconds: float, told: list[tuple[int, float]]) -> None:
    idle: list[Connection] = []
    tasks: set[Any] = set()

    async def one() -> None:
        connection = idle.pop() if idle else Connection(address, body)
        started = time.perf_counter()
        status = await connection.ask()
        told.append((status, time.perf_counter() - started))
        idle.append(connection)

    begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("image", type=Path)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    told: list[tuple[int, float]] = []
    body, started = given.image.read_bytes(), time.perf_counter()
    if given.rate:
        asyncio.run(open_loop(given.address, body, given.rate, given.seconds, told))
    else:
        asyncio.run(closed_loop(given.address, body, given.clients or 48, given.seconds, told))
    seconds = time.perf_counter() - started
    good = sorted(took for status, took in told if status == 200)
    about = {
        "seconds": round(seconds, 2),
        "statuses": dict(sorted(Counter(str(status) for status, _ in told).items())),
        "answered_a_second": round(len(good) / seconds, 2),
        "p50_ms": round(1000 * good[len(good) // 2], 1) if good else None,
        "p99_ms": round(1000 * good[min(len(good) - 1, int(0.99 * len(good)))], 1) if good else None,
        "own_cpu_seconds": round(time.process_time(), 2),
    }
    print(json.dumps(about))


if __name__ == "__main__":
    main()
