"""A start without the store, and what happens when it answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.app import Parts
from proxy.core.errors import StoreUnavailable
from proxy.late_store import parts_with
from proxy.store.sql import SqlStore
from proxy.store.store import StoreRefused


class AwayAtFirst(SqlStore):
    """Answers the third time."""

    def __init__(self, error: type[StoreUnavailable] = StoreUnavailable) -> None:
        super().__init__("sqlite://")
        self.asked = 0
        self.error = error

    async def open(self) -> None:
        self.asked += 1
        if self.asked < 3:
            raise self.error("away")
        await super().open()


class Made:
    """Remembers what was made, in which order, and what of it is open."""

    def __init__(self) -> None:
        self.stores: list[SqlStore] = []
        self.secrets: list[bytes] = []
        self.open = 0

    @asynccontextmanager
    async def __call__(self, store: SqlStore, secret: bytes) -> AsyncIterator[Parts]:
        self.stores.append(store)
        self.secrets.append(secret)
        self.open += 1
        yield Parts(secret=secret)
        self.open -= 1


def away() -> AwayAtFirst:
    return AwayAtFirst()


async def test_parts_without_a_store_are_replaced_when_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.late_store.RETRY_SECONDS", 0.01)
    store, made = AwayAtFirst(), Made()
    async with parts_with(store, away, made) as first:
        assert first.better is not None
        with pytest.raises(StoreUnavailable):
            await made.stores[0].last_event()
        better = await asyncio.wait_for(first.better(), 5)
        assert made.stores[1] is store
        assert better.secret == await store.secret("digests")
        assert first.secret != better.secret
        assert better.better is None
        assert made.open == 2
    assert made.open == 0
    await store.close()


async def test_a_store_that_answers_is_used_at_once() -> None:
    store, made = SqlStore("sqlite://"), Made()
    async with parts_with(store, away, made) as parts:
        assert parts.better is None
        assert made.stores == [store]
    await store.close()


async def test_a_store_that_refuses_ends_the_start() -> None:
    with pytest.raises(StoreRefused):
        async with parts_with(AwayAtFirst(StoreRefused), away, Made()):
            pass
