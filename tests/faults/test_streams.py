"""Many slow streams on one worker, and many clients that leave: nothing lost, nothing kept."""

import asyncio
import hashlib
import socket
import statistics
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.faults.cluster import Process, cluster
from tests.faults.requests import chat_bytes
from tests.faults.scale import LONG, figure, scaled
from tests.serving import wait_until

STREAMS = scaled(200, 1000)
PIECES, PIECE_SECONDS = scaled(20, 60), 0.5 if not LONG else 1.0
DISCONNECTS, AT_ONCE = scaled(500, 10_000), 100
MAX_GROWTH_MIB = 50
SPARE_DESCRIPTORS = 16  # pooled connections to the provider, the store's files


@dataclass
class Stream:
    """What one client saw."""

    first_seconds: float = 0.0
    largest_gap: float = 0.0
    whole: bool = False


async def watch(replica: Process, pieces: int, seconds: float) -> Stream:
    """Read one stream to its end, as bytes; its last event holds the checksum of the others."""
    seen = Stream()
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    started = last = time.monotonic()
    writer.write(chat_bytes(f"x-slow: {pieces}/{seconds}"))
    data = bytearray()
    try:
        while chunk := await reader.read(65536):
            now = time.monotonic()
            if not seen.first_seconds:
                seen.first_seconds = now - started
            seen.largest_gap = max(seen.largest_gap, now - last)
            last = now
            data += chunk
            if data.endswith(b"0\r\n\r\n"):
                break
    finally:
        writer.close()
    seen.whole = _is_whole(_unchunked(bytes(data).partition(b"\r\n\r\n")[2]))
    return seen


def _unchunked(data: bytes) -> bytes:
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        pieces.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return b"".join(pieces)


def _is_whole(body: bytes) -> bool:
    *events, last, done, rest = body.split(b"\n\n")
    digest = hashlib.sha256(b"".join(event + b"\n\n" for event in events)).hexdigest()
    return digest.encode() in last and done == b"data: [DONE]" and rest == b""


async def test_slow_streams_pass_whole_and_memory_stays_flat(tmp_path: Path) -> None:
    with cluster(tmp_path, f"sqlite:///{tmp_path}/tidegate.db") as running:
        replica = running.replicas[0]
        await asyncio.gather(*(watch(replica, 2, 0.01) for _ in range(STREAMS)))
        warm = replica.memory()
        started = time.monotonic()
        watching = asyncio.gather(
            *(watch(replica, PIECES, PIECE_SECONDS) for _ in range(STREAMS)), return_exceptions=True
        )
        samples = []
        while not watching.done():
            samples.append(await asyncio.to_thread(replica.memory))
            await asyncio.wait({watching}, timeout=PIECES * PIECE_SECONDS / 12)
        seconds = time.monotonic() - started
        streams = await watching
        seen = [stream for stream in streams if isinstance(stream, Stream)]
        # When all are open, and when they are about to end.
        early, late = samples[len(samples) // 3], samples[-2]
        firsts = sorted(stream.first_seconds for stream in seen)
        gaps = sorted(stream.largest_gap for stream in seen)
        figure(
            "slow streams",
            streams=STREAMS,
            seconds=round(seconds, 1),
            whole=sum(stream.whole for stream in seen),
            failed=len(streams) - len(seen),
            first_byte_p50=round(statistics.median(firsts), 3),
            first_byte_p99=round(firsts[len(firsts) * 99 // 100], 3),
            largest_gap_p50=round(statistics.median(gaps), 3),
            largest_gap_p99=round(gaps[len(gaps) * 99 // 100], 3),
            largest_gap=round(gaps[-1], 3),
            piece_seconds=PIECE_SECONDS,
            warm_mib=round(warm.mib),
            mib=[round(sample.mib) for sample in samples],
        )
        assert len(seen) == STREAMS
        assert all(stream.whole for stream in seen)
        assert late.mib - early.mib < MAX_GROWTH_MIB
        await _settled_at(replica, warm.descriptors)


async def test_clients_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    """Cut with a reset: before the answer, in its middle, or while the request is being sent."""
    with cluster(tmp_path, f"sqlite:///{tmp_path}/tidegate.db") as running:
        replica = running.replicas[0]
        await _leave(replica, AT_ONCE * 2)
        await _settled_at(replica, replica.memory().descriptors)
        before = await asyncio.to_thread(replica.rested)
        started = time.monotonic()
        await _leave(replica, DISCONNECTS)
        seconds = time.monotonic() - started
        await _settled_at(replica, before.descriptors)
        wait_until(lambda: running.report()["open_streams"] == 0, seconds=10)
        after = replica.memory()
        in_flight = _metric(replica, "tidegate_in_flight")
        figure(
            "disconnects",
            clients=DISCONNECTS,
            seconds=round(seconds, 1),
            mib=[round(before.mib), round(after.mib)],
            descriptors=[before.descriptors, after.descriptors],
            sockets=[before.sockets, after.sockets],
            in_flight=in_flight,
        )
        assert after.mib - before.mib < MAX_GROWTH_MIB
        assert in_flight == 0


async def _settled_at(replica: Process, descriptors: int) -> None:
    """Descriptors are back where they were within a few seconds."""
    await asyncio.to_thread(
        wait_until,
        lambda: replica.memory().descriptors <= descriptors + SPARE_DESCRIPTORS,
        seconds=20,
    )


async def _leave(replica: Process, clients: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(n: int) -> None:
        async with gate:
            await _left(replica, n)

    await asyncio.gather(*(one(n) for n in range(clients)))


async def _left(replica: Process, n: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    request = chat_bytes("x-slow: 1000/0.05")
    phase = n % 3
    writer.write(request[: len(request) // 2] if phase == 0 else request)
    await writer.drain()
    if phase == 2:
        await reader.readuntil(b"data: ")
    elif phase == 1:
        await asyncio.sleep(n % 7 * 0.003)
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def _metric(replica: Process, name: str) -> float:
    text = httpx.get(f"{replica.url}/metrics", timeout=10, trust_env=False).text
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])
