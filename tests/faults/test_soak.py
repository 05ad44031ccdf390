"""Thousands of requests of every kind on one worker: what it holds does not grow."""

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from pathlib import Path

import aiohttp

from tests.faults.cluster import Memory, Process, cluster
from tests.faults.histories import history
from tests.faults.requests import chat_bytes
from tests.faults.scale import figure, scaled
from tests.serving import wait_until

REQUESTS = scaled(900, 20_000)
WARM_UP = scaled(300, 3000)
AT_ONCE = 24
ROUNDS = 6
OVER_BUDGET_TURN, SMALL_TURN = 10, 2
MAX_GROWTH_MIB = 50
SPARE_DESCRIPTORS = AT_ONCE + 8  # as many pooled connections to the provider
# What is remembered of a message (its digest, its count, that it is logged) takes about 1 KB, up to
# a bounded number of messages: so many histories, known soon after the warm-up, stay below it.
HISTORIES = 2000


async def test_memory_and_descriptors_stay_where_they_were(tmp_path: Path) -> None:
    """Half streamed, a tenth cut, a third over budget; each third of a conversation by chance."""
    with cluster(tmp_path, f"sqlite:///{tmp_path}/tidegate.db") as running:
        running.faults(keep_calls=False)
        replica = running.replicas[0]
        chosen, seen = random.Random(3), Counter[str]()
        started = time.monotonic()
        await _ask(replica, chosen, seen, WARM_UP)
        memories = [await _settled(replica)]
        for _ in range(ROUNDS):
            await _ask(replica, chosen, seen, (REQUESTS - WARM_UP) // ROUNDS)
            memories.append(await _settled(replica))
        figure(
            "soak",
            requests=REQUESTS,
            seconds=round(time.monotonic() - started, 1),
            seen=seen,
            mib=[round(memory.mib) for memory in memories],
            descriptors=[memory.descriptors for memory in memories],
        )
        assert set(seen) <= {"200", "cut"}
        assert seen["cut"] > 0
        assert memories[-1].mib - memories[0].mib < MAX_GROWTH_MIB
        assert memories[-1].descriptors <= memories[0].descriptors + SPARE_DESCRIPTORS
        assert "Traceback" not in replica.said()
        assert await asyncio.to_thread(replica.stop) == 0


async def _settled(replica: Process) -> Memory:
    """When nothing is under way any more: cut requests end a moment later."""
    await asyncio.to_thread(wait_until, lambda: replica.memory().descriptors < 64, seconds=30)
    return replica.memory()


async def _ask(replica: Process, chosen: random.Random, seen: Counter[str], requests: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            async with gate:
                conversation = chosen.randrange(HISTORIES) if chosen.random() < 1 / 3 else 0
                over = chosen.random() < 1 / 3
                body = {
                    "model": "gpt-4o",
                    "stream": chosen.random() < 1 / 2,
                    "messages": history(conversation, OVER_BUDGET_TURN if over else SMALL_TURN),
                }
                if chosen.random() < 1 / 10:
                    await _cut(replica, chat_bytes(body=body), chosen.random() * 0.05)
                    seen["cut"] += 1
                    return
                url = f"{replica.url}/v1/chat/completions"
                async with session.post(url, json=body) as reply:
                    await reply.read()
                    seen[str(reply.status)] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(requests):
                group.create_task(one())


async def _cut(replica: Process, request: bytes, after_seconds: float) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(request)
    await asyncio.sleep(after_seconds)
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
