"""Listeners have bounded queues, are so many at most, and hear of other workers' events too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from proxy.journal import Journal
from proxy.live_events import MAX_LISTENERS, QUEUED_EVENTS, Listener, LiveEvents, TooManyListeners
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Event, EventKind


def event(n: int = 0, tenant: str = "t", conversation: str = "c") -> Event:
    return Event(tenant, conversation, EventKind.WARNING, float(n), {"n": n})


@asynccontextmanager
async def live(
    folder: Path, *, shared: bool
) -> AsyncIterator[tuple[LiveEvents, SqlStore, Journal]]:
    store = SqlStore(f"sqlite:///{folder}/tidegate.db")
    await store.open()
    journal = Journal(store)
    events = LiveEvents(store, journal, shared=shared)
    running = asyncio.create_task(events.run())
    yield events, store, journal
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()


def test_a_listener_that_does_not_read_loses_events_and_is_told() -> None:
    listener = Listener(None, None)
    for n in range(QUEUED_EVENTS + 5):
        listener.offer(event(n))
    assert listener.lost


async def test_a_listener_hears_what_concerns_it() -> None:
    listener = Listener("t", "c")
    for other in (event(1, "u"), event(2, "t", "d"), event(3)):
        listener.offer(other)
    assert (await listener.next()).data == {"n": 3}
    assert not listener.lost


@pytest.mark.parametrize("shared", [False, True])
async def test_events_recorded_here_come_each_once_in_order(tmp_path: Path, shared: bool) -> None:
    async with live(tmp_path, shared=shared) as (events, _, journal):
        journal.event(event(0))
        async with events.listening(None, None) as listener:
            for n in range(1, 6):
                journal.event(event(n))
                events.happened(event(n))
            heard = [await asyncio.wait_for(listener.next(), 5) for _ in range(6)]
    assert [e.data["n"] for e in heard] == [0, 1, 2, 3, 4, 5]
    assert [e.order for e in heard] == sorted({e.order for e in heard})


async def test_other_workers_events_come_too(tmp_path: Path) -> None:
    async with live(tmp_path, shared=True) as (events, _, _), events.listening(None, None) as heard:
        other = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
        await other.write(Batch(events=[event(7)]))
        assert (await asyncio.wait_for(heard.next(), 5)).data == {"n": 7}
        await other.close()


async def test_there_are_so_many_listeners_at_most(tmp_path: Path) -> None:
    async with live(tmp_path, shared=False) as (events, _, _), AsyncExitStack() as stack:
        for _ in range(MAX_LISTENERS):
            await stack.enter_async_context(events.listening(None, None))
        with pytest.raises(TooManyListeners):
            await stack.enter_async_context(events.listening(None, None))
