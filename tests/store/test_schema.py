"""Any older schema becomes today's, once, whoever comes first."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import func, insert, inspect, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.core.errors import StoreUnavailable
from proxy.core.replacements import Replacement
from proxy.store import schema
from proxy.store.database import Database
from proxy.store.schema import MAX_NAME_CHARS, MIGRATIONS, DatabaseNow, Name, metadata, migrate
from proxy.store.sql import SqlStore
from proxy.store.store import Batch
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, chain_of, event_of, new_of, turn_of

CHAIN = chain_of(["a", "b", "c", "d"])


async def versions(connection: AsyncConnection) -> list[tuple[int, str]]:
    table = schema.schema_versions.c
    answer = await connection.execute(select(table.version, table.name).order_by(table.version))
    return [(row.version, row.name) for row in answer]


class TestMigrate:
    async def test_an_empty_database_gets_every_table(self, store: SqlStore) -> None:
        async def tables(connection: AsyncConnection) -> set[str]:
            return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))

        found = await store._database.read(tables)
        assert set(metadata.tables) <= found
        expected = [(number, step.__name__) for number, step in enumerate(MIGRATIONS, start=1)]
        assert await store._database.read(versions) == expected

    @pytest.mark.parametrize("old", range(len(MIGRATIONS)))
    async def test_an_old_schema_is_brought_up_with_what_it_holds(
        self, store_url: str, monkeypatch: pytest.MonkeyPatch, old: int
    ) -> None:
        monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS[:old])
        before = SqlStore(store_url)
        await before.open()
        made: tuple[Replacement, ...] = ()
        if old >= 1:
            made = await before.commit(
                SCOPE,
                CHAIN[0],
                CHAIN,
                planned_on=[],
                new=[new_of(CHAIN, 3)],
                lease=None,
                conversation="c",
            )
        await before.close()
        monkeypatch.undo()
        after = SqlStore(store_url)
        await after.open()
        assert await after.replacements(SCOPE, CHAIN[0], CHAIN) == made
        await after.write(Batch([event_of()], [turn_of(["a", "b"])]))
        await after.learn(SCOPE, "limit", 1, ttl_seconds=60)
        assert len(await after._database.read(versions)) == len(MIGRATIONS)
        await after.close()

    async def test_workers_that_start_at_once_migrate_once(self, another_store: OpenStore) -> None:
        stores = [another_store() for _ in range(5)]
        await asyncio.gather(*(store.open() for store in stores))
        assert len(await stores[0]._database.read(versions)) == len(MIGRATIONS)

    async def test_again_it_does_nothing(self, store: SqlStore, store_url: str) -> None:
        secret = await store.secret("name")
        again = SqlStore(store_url)
        await again.open()
        assert await again.secret("name") == secret
        assert len(await again._database.read(versions)) == len(MIGRATIONS)
        await again.close()

    async def test_a_migration_that_fails_leaves_the_old_schema(
        self, store_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def m002_broken(connection: AsyncConnection) -> None:
            await schema.m002_log(connection)
            raise OSError("disk full")

        monkeypatch.setattr(schema, "MIGRATIONS", [MIGRATIONS[0], m002_broken])
        store = SqlStore(store_url)
        with pytest.raises(StoreUnavailable):
            await store.open()
        await store.close()
        monkeypatch.undo()
        mended = SqlStore(store_url)
        await mended.open()
        assert len(await mended._database.read(versions)) == len(MIGRATIONS)
        await mended.close()

    async def test_a_newer_schema_is_left_alone(self, store: SqlStore, store_url: str) -> None:
        newer = len(MIGRATIONS) + 1

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(
                insert(schema.schema_versions).values(
                    version=newer, name="m099_later", applied_at=0.0
                )
            )

        await store._database.write(work)
        older = SqlStore(store_url)
        with pytest.raises(StoreUnavailable, match=f"version {newer}"):
            await older.open()
        await older.close()

    def test_names_count_up(self) -> None:
        numbers = [int(step.__name__[1:4]) for step in MIGRATIONS]
        assert numbers == list(range(1, len(MIGRATIONS) + 1))


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
