"""The store is swept now and then, by one worker at a time, and a failure is tried again."""

import asyncio
import logging
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.housekeeping import Housekeeping
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Counts, Event, EventKind, Retention

OLD = Retention(log_seconds=60.0, replacement_seconds=60.0)


async def test_what_is_too_old_goes_and_one_worker_at_a_time_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
    await store.open()
    await store.write(Batch(events=[Event("t", "c", EventKind.WARNING, 1.0)]))
    first, second = (Housekeeping(store, OLD, worker=name) for name in ("a", "b"))
    with caplog.at_level(logging.INFO, "proxy.housekeeping"):
        assert await first.sweep_in_turn()
    assert await store.events(None) == ()
    assert "events=1" in caplog.text
    assert not await second.sweep_in_turn()
    await store.close()


async def test_a_store_that_is_away_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
    await store.open()
    tries = asyncio.Queue[None]()

    async def sweep(*_: object, **__: object) -> Counts:
        tries.put_nowait(None)
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "sweep", sweep)
    running = asyncio.create_task(Housekeeping(store, OLD, worker="a", every_seconds=0.01).run())
    for _ in range(2):
        await asyncio.wait_for(tries.get(), 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
