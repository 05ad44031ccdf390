"""A content is kept once, and goes with the last that refers to it, on SQLite and PostgreSQL."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.store import contents as module
from proxy.store.contents import ContentRows, drop_references, drop_unreferenced
from proxy.store.database import Database
from proxy.store.migrations import migrate
from proxy.store.schema import contents, extras, refs, segments
from tests.store.samples import chain_of

KEYS = chain_of(["one", "two", "three"])
BODIES = {key: str(number).encode() * 10 for number, key in enumerate(KEYS)}
ENDS = chain_of(["here", "there"])


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    opened = Database(store_url, migrate)
    await opened.open()
    yield opened
    await opened.close()


async def kept(database: Database, tenant: str = "t") -> dict[bytes, bytes]:
    async def work(connection: AsyncConnection) -> dict[bytes, bytes]:
        statement = select(contents.c.key, contents.c.body).where(contents.c.tenant == tenant)
        return {row.key: row.body for row in await connection.execute(statement)}

    return await database.read(work)


@pytest.mark.parametrize("ask_over_bytes", [0, 1 << 20])
async def test_what_is_there_is_not_added_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, ask_over_bytes: int
) -> None:
    """Asked for before it is sent, or just sent."""
    monkeypatch.setattr(module, "ASK_OVER_BYTES", ask_over_bytes)
    monkeypatch.setattr(module, "IN_LIST", 2)
    rows = ContentRows(database)

    async def work(connection: AsyncConnection) -> None:
        for some in ({}, {KEYS[0]: BODIES[KEYS[0]]}, BODIES, {KEYS[0]: b"another"}):
            await rows.add(connection, {"t": some})

    await database.write(work)
    assert await kept(database) == BODIES
    assert await kept(database, "other") == {}


async def test_it_goes_with_the_last_that_refers_to_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is in two segments, the second in one and a head, the third in one."""
    monkeypatch.setattr(module, "IN_LIST", 2)
    rows = ContentRows(database)

    async def fill(connection: AsyncConnection) -> None:
        await rows.add(connection, {"t": BODIES, "other": BODIES})
        here = [("t", key, ENDS[0]) for key in KEYS]
        await rows.refer(connection, [*here, ("t", KEYS[0], ENDS[1])])
        await rows.refer(connection, here[:1])
        extra = {"tenant": "t", "conversation": "c", "content": KEYS[1], "seen": 0.0}
        await connection.execute(database.insert(extras), [extra])
        for last, keys in ((ENDS[0], KEYS), (ENDS[1], KEYS[:1])):
            segment = {
                "tenant": "t",
                "conversation": "c",
                "start": 0,
                "messages": 1,
                "last": last,
                "parent": last,
                "seen": 0.0,
                "bytes": 0,
                "fingerprints": last,
                "content_keys": b"".join(keys),
            }
            await connection.execute(database.insert(segments), [segment])

    async def drop(connection: AsyncConnection, last: bytes) -> list[int]:
        deletion = delete(segments).where(segments.c.last == last)
        gone = await connection.execute(deletion.returning(*segments.columns))
        return await drop_unreferenced(connection, await drop_references(connection, gone.all()))

    async def references(connection: AsyncConnection) -> int:
        return len((await connection.execute(select(refs))).all())

    await database.write(fill)
    assert await database.write(lambda connection: drop(connection, ENDS[0])) == [10]
    assert set(await kept(database)) == set(KEYS[:2])
    assert await database.read(references) == 1
    assert await database.write(lambda connection: drop(connection, ENDS[1])) == [10]
    assert set(await kept(database)) == {KEYS[1]}
    assert await database.read(references) == 0
    assert await database.write(lambda connection: drop(connection, ENDS[1])) == []
    assert await kept(database, "other") == BODIES
