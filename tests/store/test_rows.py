"""Rows arrive as SQLAlchemy's own way of writing them would make them, on either database."""

from typing import Any

import pytest
from sqlalchemy import bindparam, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import rows as module
from proxy.store.database import Database
from proxy.store.migrations import migrate
from proxy.store.rows import Lookup, Rows
from proxy.store.schema import MAX_NAME_CHARS, events, extras

COLUMNS = tuple(extras.columns.keys())
Given = tuple[str, str, bytes, float]


def extra(tenant: str, content: bytes, seen: float, conversation: str = "c") -> Given:
    return tenant, conversation, content, seen


async def written(database: Database, rows: Rows, *batches: list[tuple[Any, ...]]) -> None:
    async def work(connection: AsyncConnection) -> None:
        for batch in batches:
            await rows.write(connection, batch)

    await database.write(work)


async def extras_in(database: Database) -> list[tuple[Any, ...]]:
    columns = extras.c.tenant, extras.c.content, extras.c.seen

    async def work(connection: AsyncConnection) -> list[tuple[Any, ...]]:
        answer = await connection.execute(select(*columns).order_by(extras.c.content))
        return [tuple(row) for row in answer]

    return await database.read(work)


async def test_what_is_stored_is_the_same_either_way(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        given = [
            extra("plain", b"1", 1.5),
            extra("nul \0 and half \ud83d", b"2\0\xff", 2),
            extra("x" * (MAX_NAME_CHARS + 1), b"3", 3.0),
        ]

        async def work(connection: AsyncConnection) -> None:
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in given]
            await connection.execute(database.insert(extras), rows)

        await database.write(work)
        usual = await extras_in(database)
        again = [extra(tenant, content, seen, "d") for tenant, _, content, seen in given]
        insertion = database.insert(extras)
        await written(database, Rows(insertion, COLUMNS), [], again[:1], again[1:])
        both = await extras_in(database)
        assert both == [row for row in usual for _ in range(2)]
    finally:
        await database.close()


async def test_a_conflict_does_what_the_statement_says(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        insertion = database.insert(extras)
        newer = insertion.on_conflict_do_update(
            index_elements=extras.primary_key.columns,
            set_={"seen": insertion.excluded.seen},
            where=extras.c.seen < insertion.excluded.seen - 10.0,
        )
        rows = Rows(newer, COLUMNS)
        for seen in (100.0, 105.0, 120.0, 90.0):
            await written(database, rows, [extra("t", b"1", seen)])
        assert await extras_in(database) == [("t", b"1", 120.0)]
    finally:
        await database.close()


async def test_a_row_is_numbered_by_the_database(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        columns = ("id", "tenant", "conversation", "kind", "time", "bytes", "data")
        rows = [(id, "t", "c", "request", 1.0, 2, "{}") for id in "abb"]
        statement = database.insert(events).on_conflict_do_nothing(index_elements=["id"])
        await written(database, Rows(statement, columns), rows)

        async def work(connection: AsyncConnection) -> list[str]:
            answer = await connection.execute(select(events.c.id).order_by(events.c.seq))
            return list(answer.scalars())

        assert await database.read(work) == ["a", "b"]
    finally:
        await database.close()


def test_columns_stand_in_the_order_of_the_table() -> None:
    dialect = sqlite.dialect()
    with pytest.raises(ValueError, match="does not begin with"):
        module._Compiled(sqlite.insert(extras), dialect, COLUMNS[::-1])


async def test_a_lookup_finds_each_once_however_many_are_asked(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        long = "x" * (MAX_NAME_CHARS + 1)
        given = [extra(tenant, bytes([n]), 1.0) for tenant in ("t", long) for n in range(9)]
        await written(database, Rows(database.insert(extras), COLUMNS), given)
        lookup = Lookup(
            select(extras.c.content).where(
                extras.c.tenant == bindparam("tenant"),
                extras.c.content.in_(bindparam("values", expanding=True)),
            )
        )

        async def work(connection: AsyncConnection) -> list[list[bytes]]:
            asked = [[], [3], [1, 2, 99], list(range(9))]
            answers = [
                await lookup.rows(connection, tenant, [bytes([n]) for n in numbers])
                for numbers in asked
                for tenant in ("t", long)
            ]
            return [sorted(row.content for row in rows) for rows in answers]

        found = await database.read(work)
        expected = [[], [b"\3"], [b"\1", b"\2"], [bytes([n]) for n in range(9)]]
        assert found == [rows for rows in expected for _ in range(2)]
    finally:
        await database.close()
