"""A statement tells what the dialect's own cursor would tell, and comes back in one trip."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError

from proxy.store.async_engine import AsyncConnection, AsyncEngine, create_async_engine
from proxy.store.trips import Trips


@pytest.fixture(params=["usual", "one trip"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    module: dict[str, Any] = {} if request.param == "usual" else {"module": Trips()}
    made = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/t.db", **module)
    async with made.begin() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY, word TEXT)"))
    yield made
    await made.dispose()


async def filled(connection: AsyncConnection) -> None:
    rows = [{"n": n, "word": str(n)} for n in range(5)]
    await connection.execute(text("INSERT INTO t VALUES (:n, :word)"), rows)


async def test_rows_counts_and_names_are_told(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await filled(connection)
        answer = await connection.execute(text("SELECT n, word FROM t WHERE n > 2 ORDER BY n"))
        assert list(answer.keys()) == ["n", "word"]
        assert [tuple(row) for row in answer] == [(3, "3"), (4, "4")]
        nothing = await connection.execute(text("SELECT n FROM t WHERE n > 9"))
        assert nothing.first() is None
        deletion = text("DELETE FROM t WHERE n < 3 RETURNING word")
        assert (await connection.execute(deletion)).scalars().all() == ["0", "1", "2"]
        assert (await connection.execute(text("UPDATE t SET word = 'x'"))).rowcount == 2
        assert (await connection.exec_driver_sql("SELECT count(*) FROM t")).scalar_one() == 2
        streamed = await connection.stream_scalars(text("SELECT n FROM t ORDER BY n"))
        assert [n async for n in streamed] == [3, 4]


async def test_what_fails_is_undone_and_told(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await filled(connection)
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT INTO t VALUES (0, 'again')"))
        await connection.rollback()
    async with engine.connect() as connection:
        with pytest.raises(OperationalError):
            await connection.execute(text("SELECT gone FROM t"))
        assert (await connection.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0


async def test_it_is_one_trip_and_none_undoes_what_was_committed(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/t.db", module=Trips())
    trips: list[str] = []
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
    usual = driver._execute

    async def counted(run: Any, *arguments: Any) -> Any:
        trips.append(run.__name__)
        return await usual(run, *arguments)

    driver._execute = counted
    async with engine.begin() as connection:
        assert (await connection.exec_driver_sql("SELECT 1")).all() == [(1,)]
    assert trips == ["_execute", "commit"]
    async with engine.connect() as connection:
        await connection.exec_driver_sql("SELECT 1")
    assert trips == ["_execute", "commit", "_execute", "rollback"]
    del driver._execute
    await engine.dispose()


async def test_what_follows_a_commit_is_undone_without_another(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.commit()
        await filled(connection)
        await connection.commit()
        await connection.execute(text("DELETE FROM t"))
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM t"))).scalar_one() == 5
