"""One PostgreSQL for all fault tests, with an empty database for each."""

import shutil
from collections.abc import Iterator

import pytest

from tests.store.postgres import Postgres, start_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server, directory = start_postgres()
    yield server
    server.kill()
    shutil.rmtree(directory, ignore_errors=True)
