"""Rows arrive as SQLAlchemy's own way of writing them would make them, on either database."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store.database import Database
from proxy.store.rows import Rows
from proxy.store.schema import MAX_NAME_CHARS, events, migrate, turns


def turn(tenant: str, fingerprint: bytes, seen: float) -> dict[str, Any]:
    return {"tenant": tenant, "conversation": "c", "fingerprint": fingerprint, "seen": seen}


async def written(database: Database, rows: Rows, *batches: list[dict[str, Any]]) -> None:
    async def work(connection: AsyncConnection) -> None:
        for batch in batches:
            await rows.write(connection, batch)

    await database.write(work)


async def turns_in(database: Database) -> list[tuple[Any, ...]]:
    columns = turns.c.tenant, turns.c.fingerprint, turns.c.seen

    async def work(connection: AsyncConnection) -> list[tuple[Any, ...]]:
        answer = await connection.execute(select(*columns).order_by(turns.c.fingerprint))
        return [tuple(row) for row in answer]

    return await database.read(work)


async def test_what_is_stored_is_the_same_either_way(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        given = [
            turn("plain", b"1", 1.5),
            turn("nul \0 and half \ud83d", b"2\0\xff", 2),
            turn("x" * (MAX_NAME_CHARS + 1), b"3", 3.0),
        ]

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(database.insert(turns), given)

        await database.write(work)
        usual = await turns_in(database)
        again = [{**row, "conversation": "d"} for row in given]
        insertion = database.insert(turns)
        await written(database, Rows(insertion), [], again[:1], again[1:])
        both = await turns_in(database)
        assert both == [row for row in usual for _ in range(2)]
    finally:
        await database.close()


async def test_a_conflict_does_what_the_statement_says(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        insertion = database.insert(turns)
        newer = insertion.on_conflict_do_update(
            index_elements=turns.primary_key.columns,
            set_={"seen": insertion.excluded.seen},
            where=turns.c.seen < insertion.excluded.seen - 10.0,
        )
        rows = Rows(newer)
        for seen in (100.0, 105.0, 120.0, 90.0):
            await written(database, rows, [turn("t", b"1", seen)])
        assert await turns_in(database) == [("t", b"1", 120.0)]
    finally:
        await database.close()


async def test_a_row_is_numbered_by_the_database(store_url: str) -> None:
    database = Database(store_url, migrate)
    await database.open()
    try:
        common = {"tenant": "t", "conversation": "c", "kind": "request", "time": 1.0}
        rows = [{**common, "id": id, "bytes": 2, "data": "{}"} for id in "abb"]
        statement = database.insert(events).on_conflict_do_nothing(index_elements=["id"])
        await written(database, Rows(statement), rows)

        async def work(connection: AsyncConnection) -> list[str]:
            answer = await connection.execute(select(events.c.id).order_by(events.c.seq))
            return list(answer.scalars())

        assert await database.read(work) == ["a", "b"]
    finally:
        await database.close()
