"""Any older schema becomes today's, once, whoever comes first."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.core.errors import StoreUnavailable
from proxy.core.replacements import Replacement
from proxy.store import migrations, schema
from proxy.store.migrations import MIGRATIONS
from proxy.store.schema import metadata
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Counts
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, body_of, chain_of, event_of, new_of, turn_of

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
        monkeypatch.setattr(migrations, "MIGRATIONS", MIGRATIONS[:old])
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
            await migrations.m002_log(connection)
            raise OSError("disk full")

        monkeypatch.setattr(migrations, "MIGRATIONS", [MIGRATIONS[0], m002_broken])
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


TEXTS = ["a", "b", "long " * 1000, "d"]
FORK = [*TEXTS[:2], "a fork"]
TENANT = SCOPE.tenant


def key_of(text: str) -> bytes:
    return chain_of(["key", text])[-1]


def former_rows() -> dict[str, list[dict[str, Any]]]:
    """A conversation, its fork, and one whose text was not kept, as they were kept until m005."""
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("nodes", "turns", "contents", "conversations")
    }
    nodes: dict[bytes, dict[str, Any]] = {}
    ends = {"one": TEXTS, "fork": FORK, "without": ["c", "d"]}
    for name, texts in ends.items():
        chain, kept = chain_of(texts), name != "without"
        for position, text in enumerate(texts):
            nodes[chain[position]] = {
                "tenant": TENANT,
                "fingerprint": chain[position],
                "parent": chain[position - 1] if position else b"",
                "position": position,
                "content": key_of(text) if kept else b"",
                "seen": 1000.0,
            }
        rows["turns"] += [
            {"tenant": TENANT, "conversation": name, "fingerprint": end, "seen": 1000.0}
            for end in chain[-2:]
        ]
        rows["conversations"].append(
            {
                "tenant": TENANT,
                "id": name,
                "root": chain[0],
                "last_fingerprint": chain[-1],
                "message_count": len(chain),
                "upstream": "default",
                "model": "m",
                "head": key_of("[]"),
                "tools": None,
                "labels": "{}",
                "gauge": "{}",
                "created_at": 1000.0,
                "seen_at": 1000.0,
            }
        )
    bodies = {key_of(text): body_of(text) for text in {*TEXTS, *FORK}}
    rows["nodes"] = list(nodes.values())
    rows["contents"] = [
        {"tenant": TENANT, "key": key, "bytes": len(body), "body": body}
        for key, body in {**bodies, key_of("[]"): b"[]"}.items()
    ]
    rows["extras"] = [
        {"tenant": TENANT, "conversation": name, "content": key_of("[]"), "seen": 1000.0}
        for name in ends
    ]
    return rows


class TestSegments:
    @pytest.fixture
    async def grown(
        self, store_url: str, another_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> SqlStore:
        """A store that held histories when it was brought to segments, three messages at a time."""
        monkeypatch.setattr(migrations, "MIGRATIONS", MIGRATIONS[:4])
        before = SqlStore(store_url)
        await before.open()

        async def fill(connection: AsyncConnection) -> None:
            tables = {**metadata.tables, "nodes": migrations.nodes, "turns": migrations.turns}
            for name, rows in former_rows().items():
                await connection.execute(insert(tables[name]), rows)

        await before._database.write(fill)
        await before.close()
        monkeypatch.undo()
        monkeypatch.setattr(migrations, "CARRIED_ROWS", 3)
        after = another_store()
        await after.open()
        return after

    async def test_histories_are_carried_over(self, grown: SqlStore) -> None:
        for texts in (TEXTS, FORK, TEXTS[:1]):
            chain = chain_of(texts)
            assert await grown.chain(TENANT, chain[-1]) == tuple(chain)
            assert await grown.history(TENANT, chain[-1]) == tuple(map(body_of, texts))
        without = chain_of(["c", "d"])
        assert await grown.chain(TENANT, without[-1]) == tuple(without)
        assert await grown.history(TENANT, without[-1]) is None
        root = TENANT, chain_of(TEXTS)[0]
        assert await grown.openings([root]) == {root: body_of("a")}
        assert (await grown.counts(TENANT)).messages == 7

        async def tables(connection: AsyncConnection) -> set[str]:
            return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))

        assert not {"nodes", "turns"} & await grown._database.read(tables)

    async def test_they_go_on(self, grown: SqlStore) -> None:
        longer = [*TEXTS, "e", "f"]
        await grown.write(Batch(turns=[turn_of(longer, conversation="one")]))
        assert await grown.history(TENANT, chain_of(longer)[-1]) == tuple(map(body_of, longer))
        assert (await grown.counts(TENANT)).messages == 9

    async def test_each_can_be_forgotten_with_what_it_said(self, grown: SqlStore) -> None:
        await grown.forget(TENANT, "one")
        assert await grown.history(TENANT, chain_of(FORK)[-1]) == tuple(map(body_of, FORK))
        assert await grown.content(TENANT, key_of(TEXTS[2])) is None
        for name in ("fork", "without"):
            await grown.forget(TENANT, name)
        assert await grown.counts(None) == Counts()
