"""Load from a few hundred lines' worth of nothing: connections that are kept, one request after the
other on each, every answer read to its end and checked for its status."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

HOST = "127.0.0.1"
ANSWER_SECONDS = 120.0


@dataclass
class Figures:
    """What one run showed. `largest_gap_seconds` is between two pieces of any one answer."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    largest_gap_seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the target

    def take(self, other: "Figures") -> None:
        """Another run's figures as well."""
        self.seconds += other.seconds
        self.latencies += other.latencies
        self.failed += other.failed
        self.largest_gap_seconds = max(self.largest_gap_seconds, other.largest_gap_seconds)
        self.cpu_seconds += other.cpu_seconds


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[int]
        self._buffer = bytearray()
        self._head_bytes = 0
        self._whole_bytes = 0  # 0: not known, the body is chunked
        self._last_at = 0.0
        self.largest_gap_seconds = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    async def ask(self, request: bytes) -> int:
        """The status of the answer, when it is whole."""
        self._buffer.clear()
        self._head_bytes = self._whole_bytes = 0
        self._last_at = 0.0
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await asyncio.wait_for(self._answer, ANSWER_SECONDS)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last_at:
            self.largest_gap_seconds = max(self.largest_gap_seconds, now - self._last_at)
        self._last_at = now
        self._buffer += data
        if not self._head_bytes and not self._read_head():
            return
        if self._whole_bytes:
            whole = len(self._buffer) >= self._whole_bytes
        else:
            whole = self._buffer.endswith(b"0\r\n\r\n")
        if whole and not self._answer.done():
            self._answer.set_result(int(self._buffer[9:12]))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head_bytes = end + 4
        head = bytes(self._buffer[:end]).lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._whole_bytes = end + 4 + int(head[at + 17 :].split(b"\r\n", 1)[0])
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed in mid-answer"))


def http_request(body: bytes, port: int) -> bytes:
    """The chat request as bytes."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: %s:%d\r\nauthorization: Bearer sk-bench\r\n"
        b"content-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\n"
        b"content-length: %d\r\n\r\n%s" % (HOST.encode(), port, len(body), body)
    )


async def connected(port: int) -> Client:
    """A client on a connection of its own."""
    _, client = await asyncio.get_running_loop().create_connection(Client, HOST, port)
    return client


async def run(port: int, bodies: Iterator[bytes], *, connections: int, requests: int) -> Figures:
    """So many requests in all, over so many connections."""
    figures = Figures()
    clients = [await connected(port) for _ in range(connections)]
    left = requests

    async def work(client: Client) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            request = http_request(next(bodies), port)
            started = time.perf_counter()
            status = await client.ask(request)
            figures.latencies.append(time.perf_counter() - started)
            figures.failed += status != 200

    started = time.perf_counter()
    try:
        await asyncio.gather(*map(work, clients))
    finally:
        figures.seconds = time.perf_counter() - started
        for client in clients:
            client.close()
    figures.largest_gap_seconds = max(client.largest_gap_seconds for client in clients)
    return figures


async def gap_beside(port: int, paced: bytes, disturbing: bytes) -> float:
    """The largest pause of a paced stream while another client's request is answered."""
    stream, other = await connected(port), await connected(port)
    try:
        reading = asyncio.create_task(stream.ask(http_request(paced, port)))
        await asyncio.sleep(0.03)  # some events in, so that the stream is under way
        await other.ask(http_request(disturbing, port))
        await reading
    finally:
        stream.close()
        other.close()
    return stream.largest_gap_seconds
