"""How a replica starts, stops and is killed: without its store, with streams and summaries under
way, beside others on one SQLite file."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import pytest

from tests.faults.cluster import Process, cluster
from tests.faults.histories import history
from tests.faults.players import play
from tests.faults.scale import figure, scaled
from tests.faults.test_many_workers import DOUBLE, LEASES, number
from tests.serving import wait_until
from tests.store.postgres import Postgres

CHAT = "/v1/chat/completions"


def ask(replica: Process, conversation: int = 0, turn: int = 1, **fields: Any) -> httpx.Response:
    body = {"model": "gpt-4o", "messages": history(conversation, turn), **fields}
    headers = {"x-play": f"{conversation}/{turn}"}
    return httpx.post(replica.url + CHAT, json=body, headers=headers, timeout=60, trust_env=False)


def ready(replica: Process) -> tuple[int, str]:
    answered = httpx.get(f"{replica.url}/readyz", timeout=10, trust_env=False)
    return answered.status_code, answered.json().get("reason", "")


def test_without_postgresql_at_start_chats_are_answered_and_it_is_used_when_it_comes(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    postgres.stop()
    try:
        with cluster(tmp_path, url) as running:
            replica = running.replicas[0]
            small, large = ask(replica), ask(replica, turn=12)
            assert (small.status_code, large.status_code) == (200, 200)
            assert small.headers["x-tidegate-degraded"] == "store"
            assert large.headers["x-tidegate-degraded"] == "store"
            assert "digest" in large.headers["x-tidegate-action"]
            assert ready(replica) == (503, "the store does not answer")
            postgres.start()
            wait_until(lambda: ready(replica) == (200, ""), seconds=20)
            answered = ask(replica, turn=12)
            assert "x-tidegate-degraded" not in answered.headers
            assert answered.headers["x-tidegate-generation"] == "1"
            assert replica.stop() == 0
            assert not [call["faults"] for call in running.report()["calls"] if call["faults"]]
    finally:
        postgres.start()


def test_a_stop_drains_streams_and_says_so_before_it_refuses_anything(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, server__drain_seconds=1.5) as running:
        replica = running.replicas[0]
        body = {"model": "gpt-4o", "stream": True, "messages": history(0, 0)}
        with httpx.stream(
            "POST", replica.url + CHAT, json=body, headers={"x-slow": "40/0.1"}, timeout=30
        ) as reply:
            pieces = reply.iter_bytes()
            text = next(pieces)
            os.kill(replica.pid, signal.SIGTERM)
            wait_until(lambda: ready(replica) == (503, "shutting down"), seconds=1)
            assert ask(replica).status_code == 200
            text += b"".join(pieces)
        assert text.endswith(b"data: [DONE]\n\n")
        assert replica.process is not None
        assert replica.process.wait(20) == 0


def test_a_stop_at_its_limit_cancels_summaries_and_leaves_no_lease(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, server__shutdown_timeout_seconds=1) as running:
        running.faults(summary_seconds=60)
        replica = running.replicas[0]
        assert ask(replica, conversation=1).status_code == 200

        async def stopped_meanwhile() -> tuple[float, int]:
            body = {"model": "gpt-4o", "messages": history(0, 12)}
            async with aiohttp.ClientSession() as session:
                asking = asyncio.create_task(session.post(replica.url + CHAT, json=body))
                while number(postgres, LEASES) == 0:  # noqa: ASYNC110 - another process's row
                    await asyncio.sleep(0.05)
                started = time.monotonic()
                code = await asyncio.to_thread(replica.stop)
                seconds = time.monotonic() - started
                reply = await asking
                assert reply.status == 503
                assert (await reply.json())["error"]["code"] == "shutting_down"
                return seconds, code

        seconds, code = asyncio.run(stopped_meanwhile())
        figure("stop with a summary under way", seconds=round(seconds, 2))
        assert code == 0
        assert seconds < 6
        assert number(postgres, LEASES) == 0
        ends = postgres.psql("SELECT data FROM events WHERE kind = 'compaction_end';")
        assert "cancelled" in ends
        requests = "SELECT count(*) FROM events WHERE kind = 'request';"
        assert number(postgres, requests) == 1


def test_a_worker_that_was_killed_is_replaced_by_its_command(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, server__workers=2) as running:
        replica = running.replicas[0]
        wait_until(lambda: len(_workers(replica)) == 2, seconds=20)
        workers = _workers(replica)
        workers[0].kill()
        wait_until(lambda: len({*_workers(replica)} - {*workers}) == 1, seconds=20)
        assert {ask(replica, n).status_code for n in range(8)} == {200}
        assert replica.stop() == 0
        assert not any(worker.is_running() for worker in workers)


def _workers(replica: Process) -> list[psutil.Process]:
    """Living ones: a killed child is a zombie until its parent has looked."""
    found = []
    for child in psutil.Process(replica.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie's command line is one, too
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def test_a_lease_of_a_killed_worker_is_taken_over(tmp_path: Path, postgres: Postgres) -> None:
    """Thirty seconds after its last heartbeat, by whoever waits; nothing it did is stored."""
    url = postgres.emptied_database()
    with cluster(tmp_path, url, replicas=2) as running:
        running.faults(summary_seconds=60)
        first, second = running.replicas
        dying = asyncio.create_task(asyncio.to_thread(ask, first, 0, 10))
        while number(postgres, LEASES) == 0:  # noqa: ASYNC110 - another process's row
            await asyncio.sleep(0.05)
        first.kill()
        with pytest.raises(httpx.TransportError):
            await dying
        running.faults(summary_seconds=0)
        # The database's clock is made to reach the end of the lease.
        postgres.psql("UPDATE leases SET expires_at = expires_at - 28 WHERE stop > 0;")
        started = time.monotonic()
        answered = await asyncio.to_thread(ask, second, 0, 10)
        figure("takeover", seconds=round(time.monotonic() - started, 2))
        assert answered.headers["x-tidegate-generation"] == "1"
        assert number(postgres, DOUBLE) == number(postgres, LEASES) == 0


async def test_workers_on_one_sqlite_file_compact_each_range_once(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.db"
    conversations, turns = scaled(8, 40), scaled(12, 20)
    with cluster(tmp_path, f"sqlite:///{file}", replicas=3, server__workers=2) as running:
        urls = [replica.url for replica in running.replicas]
        played = await play(urls, conversations=range(conversations), turns=turns, at_once=8)
        assert not played.lost
        assert not played.failed
        assert not played.degraded
        assert len(played.turns) == conversations * turns
        report = await asyncio.to_thread(running.report)
        assert not [call["faults"] for call in report["calls"] if call["faults"]]
        codes = [await asyncio.to_thread(replica.stop) for replica in running.replicas]
        assert codes == [0, 0, 0]
    with sqlite3.connect(file) as database:
        (doubles,) = database.execute(DOUBLE).fetchone()
        (leases,) = database.execute(LEASES).fetchone()
        (summaries,) = database.execute("SELECT count(*) FROM replacements").fetchone()
    database.close()
    figure("three commands of two workers on one SQLite file", summaries=summaries)
    assert (doubles, leases) == (0, 0)
    assert summaries >= conversations
