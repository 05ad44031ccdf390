"""What is peculiar to the columns, and the one clock."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import schema
from proxy.store.database import Database
from proxy.store.migrations import migrate
from proxy.store.schema import MAX_NAME_CHARS, DatabaseNow, Name, are_plain
from proxy.store.sql import SqlStore
from proxy.store.store import Batch
from tests.store.samples import SCOPE, event_of, turn_of


def stored(text: str) -> str:
    value = Name().process_bind_param(text, sqlite.dialect())
    assert value is not None
    return value


class TestName:
    @pytest.mark.parametrize("text", ["gpt-5", "", "日本語", "m" * MAX_NAME_CHARS])
    def test_an_ordinary_one_stays(self, text: str) -> None:
        assert stored(text) == text

    def test_what_a_database_refuses_is_replaced(self) -> None:
        assert stored("a\0b\ud83d") == "a\ufffdb?"

    def test_long_ones_are_cut_and_stay_different(self) -> None:
        one, other = stored("m" * 5000 + "1"), stored("m" * 5000 + "2")
        assert len(one) == len(other) == MAX_NAME_CHARS
        assert one != other

    @pytest.mark.parametrize(
        "text", ["", "gpt-5", "m" * MAX_NAME_CHARS, "日本語", "a\0b", "\ud83d", "m" * 5000]
    )
    def test_what_is_plain_stays(self, text: str) -> None:
        assert are_plain([])
        assert not are_plain(["plain", text]) or stored(text) == text

    def test_none_is_none(self) -> None:
        assert Name().process_bind_param(None, sqlite.dialect()) is None


async def test_the_clock_is_seconds_since_1970_and_goes_on(store_url: str) -> None:
    database = Database(store_url, migrate)

    async def now(connection: AsyncConnection) -> float:
        return float((await connection.execute(select(DatabaseNow()))).scalar_one())

    first, second = await database.read(now), await database.read(now)
    assert 1_700_000_000 < first <= second < first + 60
    await database.close()


async def test_orders_are_never_used_twice(store: SqlStore) -> None:
    """Even after the newest rows were deleted, later ones count on."""
    await store.write(Batch([event_of(0)], [turn_of(["a"])]))
    first = await store.last_event()
    await store.forget(SCOPE.tenant, "conversation-1")
    await store.write(Batch([replace(event_of(1), conversation="other")]))

    async def count(connection: AsyncConnection) -> int:
        statement = select(func.count()).select_from(schema.events)
        return int((await connection.execute(statement)).scalar_one())

    assert await store.last_event() > first
    assert await store._database.read(count) == 1
