"""A run counts from its beginning to the end of its reply, here and on the other workers."""

import asyncio
import time
from pathlib import Path

import pytest

from proxy.in_flight import InFlight, Run
from proxy.metrics import Metrics
from proxy.outcome import Outcome
from proxy.reply import local_reply
from proxy.store.sql import SqlStore

HERE = ("tenant", "conversation")


@pytest.fixture
async def store(tmp_path: Path) -> SqlStore:
    opened = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
    await opened.open()
    return opened


def gauge(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("tidegate_in_flight")


async def test_a_run_ends_with_its_reply(store: SqlStore) -> None:
    metrics = Metrics()
    runs = InFlight(store, metrics, worker="a", shared=False)
    ends: list[int] = []

    async def work(run: Run) -> Outcome:
        run.of(*HERE)
        assert await runs.busy(*HERE)
        reply = local_reply(200, [], b"x")
        reply.on_end = lambda end: ends.append(end.status)
        return Outcome(reply)

    outcome = await runs.tracked(work)
    assert runs.busy_here(*HERE)
    assert gauge(metrics) == 1
    assert [chunk async for chunk in outcome.reply.chunks()] == [b"x"]
    assert not await runs.busy(*HERE)
    assert (gauge(metrics), ends) == (0, [200])
    await store.close()


@pytest.mark.parametrize("named", [False, True])
async def test_or_when_it_fails(store: SqlStore, named: bool) -> None:
    metrics = Metrics()
    runs = InFlight(store, metrics, worker="a", shared=False)

    async def work(run: Run) -> Outcome:
        if named:
            run.of(*HERE)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await runs.tracked(work)
    assert not await runs.busy(*HERE)
    assert gauge(metrics) == 0
    await store.close()


async def test_two_runs_of_one_conversation_are_two(store: SqlStore) -> None:
    runs = InFlight(store, Metrics(), worker="a", shared=False)
    first, second = Run(runs), Run(runs)
    for run in (first, second):
        run.of(*HERE)
    first.close()
    first.close()
    assert runs.busy_here(*HERE)
    second.close()
    assert not runs.busy_here(*HERE)
    await store.close()


async def test_other_workers_are_told_and_untold(store: SqlStore) -> None:
    mine = InFlight(store, Metrics(), worker="a", shared=True)
    other = InFlight(store, Metrics(), worker="b", shared=True)
    publishing = asyncio.create_task(mine.publish())
    run = Run(mine)
    run.of(*HERE)
    await _until(other, busy=True)
    assert not await other.busy("another", HERE[1])
    run.close()
    await _until(other, busy=False)
    run = Run(mine)
    run.of(*HERE)
    await _until(other, busy=True)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)
    assert not await other.busy(*HERE)
    await store.close()


async def _until(runs: InFlight, *, busy: bool) -> None:
    deadline = time.monotonic() + 5
    while await runs.busy(*HERE) is not busy:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
