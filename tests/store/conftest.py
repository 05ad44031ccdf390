"""Running stores: each contract test runs on SQLite and on a real PostgreSQL."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from proxy.store.sql import SqlStore
from tests.store.postgres import Postgres, start_postgres

OpenStore = Callable[[], SqlStore]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server, directory = start_postgres()
    yield server
    server.kill()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tidegate.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.emptied_database()


@pytest.fixture
async def another_store(store_url: str) -> AsyncIterator[OpenStore]:
    """Makes stores on the same database, as other workers have them; all are closed at the end."""
    made: list[SqlStore] = []

    def make() -> SqlStore:
        made.append(SqlStore(store_url))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def store(another_store: OpenStore) -> SqlStore:
    """An open store on an empty database."""
    opened = another_store()
    await opened.open()
    return opened
