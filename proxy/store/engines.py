"""From a URL to engines. SQLite: a private file, one writing connection in `BEGIN IMMEDIATE` and a
few that read; in memory, one connection for both. PostgreSQL: one pool for both. Parameters, which
may be a client's words, are hidden from every error message."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from proxy.store.async_engine import AsyncEngine, create_async_engine
from proxy.store.trips import Trips

BUSY_SECONDS = 10.0  # SQLite wakes its waiting writers in no order: some wait long (measured: 4 s)
CONNECT_SECONDS = 3.0  # a chat waits at most this long before it goes on without the store
COMMAND_SECONDS = 10.0
CHECKPOINT_PAGES = 4000  # 16 MB
CACHE_KIB = 4096  # of the connection that writes
READERS_CACHE_KIB = 256  # of each that reads beside it; what it lacks is in the system's own cache
READ_CONNECTIONS = 4  # SQLite: threads that read beside the writer
POOL_CONNECTIONS = 10  # PostgreSQL, per worker; as many again under load


@dataclass(frozen=True, slots=True)
class Engines:
    """`writer` begins a transaction, `reader` runs each statement on its own."""

    writer: AsyncEngine
    reader: AsyncEngine

    async def dispose(self) -> None:
        """Close every connection."""
        await self.reader.dispose()
        await self.writer.dispose()


def store_url(text: str) -> URL:
    """The URL with its asynchronous driver.

    Raises:
        ValueError: it names neither SQLite nor PostgreSQL. The message never holds the password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ValueError(
            "store.url is not a database URL, such as sqlite:///tidegate.db"
        ) from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        return url.set(drivername="sqlite+aiosqlite")
    if backend in ("postgresql", "postgres"):
        query = dict(url.query)
        if "sslmode" in query:  # libpq's name for what asyncpg calls ssl
            query["ssl"] = query.pop("sslmode")
        return url.set(drivername="postgresql+asyncpg", query=query)
    raise ValueError(
        f"store.url: {backend} is not supported; use sqlite:///tidegate.db "
        "or postgresql+asyncpg://user:password@host/database"
    )


def is_postgresql(url: URL) -> bool:
    """Whether the URL names PostgreSQL; else it is SQLite."""
    return url.get_backend_name() == "postgresql"


def is_memory(url: URL) -> bool:
    """Whether the database lives in this process only."""
    return not is_postgresql(url) and url.database in (None, "", ":memory:")


def make_engines(url: URL) -> Engines:
    """The engines for a URL; a SQLite file is made here, so that nobody else can ever read it."""
    if is_postgresql(url):
        return _postgresql_engines(url)
    if is_memory(url):
        engine = create_async_engine(
            url, module=Trips(), poolclass=StaticPool, hide_parameters=True
        )
        _set_up_sqlite(engine, writes=True)
        return Engines(engine, engine)
    make_private(Path(url.database or ""))
    driver, arguments = Trips(), {"timeout": BUSY_SECONDS}
    writer = create_async_engine(
        url,
        module=driver,
        pool_size=1,
        max_overflow=0,
        connect_args=arguments,
        hide_parameters=True,
    )
    reader = create_async_engine(
        url,
        module=driver,
        pool_size=READ_CONNECTIONS,
        max_overflow=0,
        connect_args=arguments,
        hide_parameters=True,
        pool_reset_on_return=None,  # it begins no transaction, so there is none to roll back
    )
    _set_up_sqlite(writer, writes=True)
    _set_up_sqlite(reader, writes=False)
    return Engines(writer, reader)


def _postgresql_engines(url: URL) -> Engines:
    # No ping before each use: a dead connection shows at the first statement, which is repeated.
    engine = create_async_engine(
        url,
        pool_size=POOL_CONNECTIONS,
        max_overflow=POOL_CONNECTIONS,
        pool_timeout=CONNECT_SECONDS,
        hide_parameters=True,
        connect_args={"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS},
    )
    return Engines(engine, engine.execution_options(isolation_level="AUTOCOMMIT"))


def make_private(path: Path) -> None:
    """The file exists and only its owner can open it; SQLite gives -wal and -shm the same mode.

    An existing file is never opened here: closing it again would drop the locks that SQLite holds
    on it in this process (sqlite.org/howtocorrupt.html, section 2.2).
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if file.exists() and file.stat().st_mode & 0o077:
                file.chmod(0o600)


def _set_up_sqlite(engine: AsyncEngine, *, writes: bool) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        # The driver must not begin transactions of its own; `on_begin` does, where one is wanted.
        connection.isolation_level = None
        cursor = connection.cursor()
        if writes:
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA secure_delete = ON")  # what was forgotten is overwritten
            # A page that many batches change is copied into the database once for all of them.
            cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB if writes else READERS_CACHE_KIB}")
        cursor.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a crash loses nothing
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.close()

    if not writes:
        return

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
