"""Several replicas on one PostgreSQL: one compaction for one range, whatever happens to them."""

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp

from tests.faults.cluster import Cluster, Process, cluster
from tests.faults.histories import history
from tests.faults.players import Played, Record, play
from tests.faults.scale import figure, scaled
from tests.store.postgres import Postgres

REPLICAS = 4
KILL_EVERY_SECONDS = 2.0
AWAY = range(100_000, 100_004)
HEARTBEAT_SECONDS = 10
ONE_CALL_TURN = 8  # over the budget, in a range that one summary call can hold

CONVERSATIONS, TURNS = scaled(16, 200), scaled(12, 20)
AT_ONCE = scaled(8, 24)

ROWS = "SELECT kind, count(*) FROM replacements WHERE NOT revoked GROUP BY kind;"
DOUBLE = (
    "SELECT count(*) FROM (SELECT 1 FROM replacements WHERE kind IN ('summary', 'digest')"
    " AND NOT revoked GROUP BY tenant, upstream, model, root, end_fingerprint"
    " HAVING count(*) > 1) AS twice;"
)
# The store's own housekeeping holds a lease of no range.
LEASES = "SELECT count(*) FROM leases WHERE stop > 0;"


def number(postgres: Postgres, statement: str) -> int:
    lines = [line.strip() for line in postgres.psql(statement).splitlines()]
    return int(next(line for line in lines if line.isdigit()))


def unstable(calls: Iterable[dict[str, Any]], turns: Iterable[Played]) -> list[str]:
    """Turns that do not begin with all of the turn before, though nothing was replaced between."""
    by_play = {(turn.conversation, turn.turn): turn for turn in turns}
    sent: dict[str, list[str]] = {}
    for call in calls:
        if not call["summary"] and call["play"] is not None and not call["refused"]:
            sent[call["play"]] = call["messages"]
    found = []
    for (conversation, n), turn in by_play.items():
        before = by_play.get((conversation, n - 1))
        if before is None or before.generation != turn.generation:
            continue
        first, second = sent[f"{conversation}/{n - 1}"], sent[f"{conversation}/{n}"]
        if second[: len(first)] != first:
            found.append(f"{conversation}/{n}")
    return found


def _check(
    played: Record, running: Cluster, report: dict[str, Any], conversations: int, turns: int
) -> None:
    for replica in running.replicas:
        said = replica.said()
        assert "Traceback" not in said, said[said.index("Traceback") - 300 :][:6000]
    silent = [turn for turn in played.turns if not turn.actions]
    assert all(turn.seconds > HEARTBEAT_SECONDS for turn in silent)
    assert not played.lost
    assert not played.failed
    assert len(played.turns) == conversations * turns
    assert not [call["faults"] for call in report["calls"] if call["faults"]]
    assert not unstable(report["calls"], played.told)
    assert not played.shrunk_generations()


def _figures(name: str, played: Record, report: dict[str, Any], seconds: float) -> None:
    times = sorted(turn.seconds for turn in played.turns)
    figure(
        name,
        turns=len(played.turns),
        seconds=round(seconds, 1),
        failed=len(played.failed),
        lost=len(played.lost),
        retried=sum(turn.retried for turn in played.turns),
        degraded=len(played.degraded),
        summary_calls=sum(call["summary"] for call in report["calls"]),
        refused=sum(call["refused"] for call in report["calls"]),
        actions=Counter(turn.actions for turn in played.turns),
        reasons=Counter(turn.reason for turn in played.turns if turn.reason),
        p50_ms=round(statistics.median(times) * 1000),
        p99_ms=round(times[len(times) * 99 // 100] * 1000),
    )


async def test_each_range_is_compacted_once_on_whatever_worker(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, replicas=REPLICAS) as running:
        started = time.monotonic()
        urls = [replica.url for replica in running.replicas]
        played = await play(urls, conversations=range(CONVERSATIONS), turns=TURNS, at_once=AT_ONCE)
        seconds = time.monotonic() - started
        report = await asyncio.to_thread(running.report)
        _figures("four workers", played, report, seconds)
        figure("rows", rows=postgres.psql(ROWS).split())
        _check(played, running, report, CONVERSATIONS, TURNS)
        assert not played.degraded
        assert number(postgres, DOUBLE) == 0
        assert number(postgres, LEASES) == 0
        await _same_bytes_everywhere(running)


async def _same_bytes_everywhere(running: Cluster) -> None:
    """The last turn once more, on every worker, also on one that was started just now."""
    running.replicas[0].kill()
    running.replicas[0].start()
    await asyncio.to_thread(running.replicas[0].wait_healthy)
    before = len((await asyncio.to_thread(running.report))["calls"])
    for replica in running.replicas:
        async with aiohttp.ClientSession() as session:
            for conversation in range(min(CONVERSATIONS, 20)):
                body = {"model": "gpt-4o", "messages": history(conversation, TURNS - 1)}
                headers = {"x-play": f"{conversation}/{TURNS - 1}"}
                chat = f"{replica.url}/v1/chat/completions"
                async with session.post(chat, json=body, headers=headers) as reply:
                    assert reply.status == 200
    report = await asyncio.to_thread(running.report)
    bodies = defaultdict(set)
    for call in report["calls"][before:]:
        bodies[call["play"]].add(call["body"])
    assert {len(seen) for seen in bodies.values()} == {1}


@contextlib.asynccontextmanager
async def _killing(replicas: list[Process]) -> AsyncIterator[list[int]]:
    """Kills one after the other and starts it again, until the block ends; counts into the list."""
    killed: list[int] = []
    chosen = random.Random(7)

    async def kill_some() -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_SECONDS)
            alive = [replica for replica in replicas if await asyncio.to_thread(replica.healthy)]
            if len(alive) < 2:
                continue  # a start takes longer than that on a slow machine; somebody must answer
            replica = chosen.choice(alive)
            killed.append(replica.pid)
            await asyncio.to_thread(replica.kill)
            replica.start()

    task = asyncio.create_task(kill_some())
    try:
        yield killed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for replica in replicas:
            if replica.process is not None and replica.process.poll() is not None:
                replica.start()
            await asyncio.to_thread(replica.wait_healthy)


async def test_workers_that_are_killed_and_a_store_that_restarts_lose_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, replicas=REPLICAS) as running:
        started = time.monotonic()
        urls = [replica.url for replica in running.replicas]
        record = Record()
        playing = asyncio.create_task(
            play(
                urls,
                conversations=range(CONVERSATIONS),
                turns=TURNS,
                at_once=AT_ONCE,
                record=record,
            )
        )
        async with _killing(running.replicas) as killed:
            third = CONVERSATIONS * TURNS // 3
            await record.answered(third)
            await asyncio.to_thread(postgres.stop)
            # However fast the others were: these are asked while the store is surely away.
            away = await play(urls, conversations=AWAY, turns=2, at_once=2)
            await asyncio.to_thread(postgres.start)
            played = await playing
            # A machine this fast has answered everybody before the second kill.
            later = Record()
            while len(killed) < 2:
                first = 200_000 + len(later.turns)
                await play(
                    urls, conversations=range(first, first + 2), turns=1, at_once=2, record=later
                )
        seconds = time.monotonic() - started
        report = await asyncio.to_thread(running.report)
        _figures("killed every 2 s, PostgreSQL restarted", played, report, seconds)
        figure("killed", times=len(killed), rows=postgres.psql(ROWS).split())
        _check(played, running, report, CONVERSATIONS, TURNS)
        assert len(killed) >= 2
        assert not [*away.failed, *later.failed]
        assert not [*away.lost, *later.lost]
        assert len(away.degraded) == len(away.turns) == 2 * len(AWAY)
        assert number(postgres, DOUBLE) == 0


async def test_sixty_four_identical_requests_at_once_cause_one_summary_call(
    tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.emptied_database()
    with cluster(tmp_path, url, replicas=REPLICAS) as running:
        running.faults(summary_seconds=1.0)
        body = {"model": "gpt-4o", "messages": history(0, ONE_CALL_TURN)}
        headers = {"x-play": f"0/{ONE_CALL_TURN}"}
        started = time.monotonic()

        async def one(session: aiohttp.ClientSession, n: int) -> tuple[int, str]:
            chat = f"{running.replicas[n % REPLICAS].url}/v1/chat/completions"
            async with session.post(chat, json=body, headers=headers) as reply:
                await reply.read()
                return reply.status, reply.headers["x-tidegate-generation"]

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            answers = await asyncio.gather(*(one(session, n) for n in range(64)))
        seconds = time.monotonic() - started
        calls = (await asyncio.to_thread(running.report))["calls"]
        summaries = [call for call in calls if call["summary"]]
        mains = {call["body"] for call in calls if not call["summary"]}
        figure("64 at once", summary_calls=len(summaries), seconds=round(seconds, 2))
        assert set(answers) == {(200, "1")}
        assert len(summaries) == 1
        assert len(mains) == 1
        assert number(postgres, DOUBLE) == 0
        assert number(postgres, LEASES) == 0
