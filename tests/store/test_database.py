"""Databases that fail, vanish, come back, or are used by many at once."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.core.errors import StoreUnavailable
from proxy.store import engines as engines_module
from proxy.store.database import Database, in_parts
from proxy.store.migrations import migrate
from proxy.store.schema import secrets
from proxy.store.sql import SqlStore
from proxy.store.store import StoreRefused
from tests.store.conftest import OpenStore
from tests.store.postgres import Postgres
from tests.store.samples import SCOPE, chain_of, eventually, new_of

CHAIN = chain_of(["a", "b", "c", "d"])


async def is_answered(store: SqlStore) -> bool:
    try:
        await store.replacements(SCOPE, CHAIN[0], CHAIN)
    except StoreUnavailable:
        return False
    return True


async def commit(store: SqlStore) -> None:
    await store.commit(
        SCOPE, CHAIN[0], CHAIN, planned_on=[], new=[new_of(CHAIN, 3)], lease=None, conversation="c"
    )


async def is_committed(store: SqlStore) -> bool:
    try:
        await commit(store)
    except StoreUnavailable:
        return False
    return True


class TestTransaction:
    async def test_an_error_of_the_work_passes_and_nothing_is_stored(self, store_url: str) -> None:
        database = Database(store_url, migrate)

        async def failing(connection: AsyncConnection) -> None:
            await connection.execute(insert(secrets).values(name="x", value=b"1"))
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await database.write(failing)

        async def names(connection: AsyncConnection) -> list[str]:
            return list((await connection.execute(select(secrets.c.name))).scalars())

        assert await database.read(names) == []
        await database.close()

    async def test_a_caller_that_leaves_tears_nothing(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        """Cancelled in the middle, a commit is whole or not there; the store works on."""
        commits = [asyncio.ensure_future(commit(store)) for _ in range(5)]
        await asyncio.sleep(0)
        for running in commits:
            running.cancel()
        await asyncio.gather(*commits, return_exceptions=True)

        async def stored() -> int:
            return len(await another_store().replacements(SCOPE, CHAIN[0], CHAIN))

        await eventually(stored)
        assert await is_answered(store)
        assert await stored() == 1

    async def test_an_error_does_not_tell_the_parameters(self, store: SqlStore) -> None:
        async def failing(connection: AsyncConnection) -> None:
            for _ in range(2):
                await connection.execute(insert(secrets).values(name="private words", value=b"1"))

        with pytest.raises(StoreRefused) as raised:
            await store._database.write(failing)
        error: BaseException | None = raised.value
        while error is not None and not isinstance(error, sqlite3.Error):
            if "DETAIL" not in str(error):  # PostgreSQL's own detail names the key that exists
                assert "private words" not in str(error)
            error = error.__cause__

    async def test_closed_it_is_unavailable_until_it_is_opened(self, store: SqlStore) -> None:
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.secret("name")
        await store.open()
        assert len(await store.secret("name")) == 32

    def test_the_password_is_not_shown(self) -> None:
        assert "secret" not in repr(SqlStore("postgresql://user:secret@localhost/d"))


class TestSqliteAway:
    async def test_a_file_that_cannot_be_made_is_made_when_it_can(self, tmp_path: Path) -> None:
        in_the_way = tmp_path / "directory"
        in_the_way.write_text("not a directory")
        store = SqlStore(f"sqlite:///{in_the_way}/tidegate.db")
        with pytest.raises(StoreUnavailable) as raised:
            await store.open()
        assert isinstance(raised.value.__cause__, OSError)
        in_the_way.unlink()
        await commit(store)
        assert await is_answered(store)
        await store.close()

    async def test_a_file_that_is_no_database_is_unavailable(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.db").write_bytes(b"something else entirely" * 100)
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
        with pytest.raises(StoreUnavailable):
            await store.open()
        await store.close()

    async def test_a_lock_held_too_long_is_unavailable_then_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines_module, "BUSY_SECONDS", 0.1)
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
        await store.open()
        other = sqlite3.connect(tmp_path / "tidegate.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await commit(store)
        assert await is_answered(store)  # readers are not in a writer's way
        other.execute("ROLLBACK")
        other.close()
        await eventually(lambda: is_committed(store))
        await store.close()

    async def test_only_the_first_of_many_writes_waits_for_a_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines_module, "BUSY_SECONDS", 0.5)
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
        await store.open()
        other = sqlite3.connect(tmp_path / "tidegate.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        assert not any(await asyncio.gather(*(is_committed(store) for _ in range(10))))
        assert not await is_committed(store)
        assert time.monotonic() - started < 10 * 0.5
        other.close()
        await eventually(lambda: is_committed(store))
        await store.close()

    async def test_processes_that_start_at_once_share_one_new_file(self, tmp_path: Path) -> None:
        program = (
            "import asyncio, sys\n"
            "from proxy.store.sql import SqlStore\n"
            "async def main():\n"
            "    store = SqlStore(sys.argv[1])\n"
            "    print((await store.secret('digests')).hex())\n"
            "    await store.close()\n"
            "asyncio.run(main())\n"
        )
        url = f"sqlite:///{tmp_path}/tidegate.db"
        running = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, url, stdout=subprocess.PIPE
            )
            for _ in range(4)
        ]
        async with asyncio.timeout(60):
            answers = [(await process.communicate())[0] for process in running]
        assert [process.returncode for process in running] == [0] * 4
        assert len(set(answers)) == 1
        assert len(answers[0].strip()) == 64


class TestPostgresAway:
    async def test_a_restart_that_nobody_noticed_costs_no_error(self, postgres: Postgres) -> None:
        """All pooled connections are dead; the first read and the first write still succeed."""
        store = SqlStore(postgres.new_database())
        await asyncio.gather(*(is_answered(store) for _ in range(5)))
        postgres.stop()
        postgres.start()
        await commit(store)
        postgres.stop()
        postgres.start()
        assert len(await store.replacements(SCOPE, CHAIN[0], CHAIN)) == 1
        await store.close()

    async def test_while_it_is_away_calls_fail_at_once_and_memory_answers(
        self, postgres: Postgres
    ) -> None:
        store = SqlStore(postgres.new_database())
        await commit(store)
        postgres.stop()
        try:
            started = time.monotonic()
            for _ in range(20):
                with pytest.raises(StoreUnavailable):
                    await store.replacements(SCOPE, CHAIN[0], CHAIN)
            assert time.monotonic() - started < 5
            assert len(store.remembered(SCOPE, CHAIN[0], CHAIN)) == 1
        finally:
            postgres.start()
        await eventually(lambda: is_answered(store))
        assert len(await store.replacements(SCOPE, CHAIN[0], CHAIN)) == 1
        await store.close()

    async def test_one_that_is_not_there_at_the_start_is_used_when_it_is(
        self, postgres: Postgres
    ) -> None:
        url = postgres.new_database()
        postgres.stop()
        store = SqlStore(url)
        try:
            with pytest.raises(StoreUnavailable):
                await store.open()
        finally:
            postgres.start()
        await eventually(lambda: is_answered(store))
        await commit(store)
        await store.close()


def test_a_store_in_sqlite_starts_without_the_driver_of_the_other_database() -> None:
    code = (
        "import asyncio, sys; from proxy.store.sql import SqlStore\n"
        "async def main():\n"
        "    store = SqlStore('sqlite://'); await store.open(); await store.close()\n"
        "asyncio.run(main())\n"
        "print([m for m in sys.modules if m in ('asyncpg', 'sqlalchemy.dialects.postgresql')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_in_parts_keeps_all_in_order() -> None:
    assert list(in_parts([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(in_parts([], 2)) == []
