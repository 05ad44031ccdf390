"""The rim around SQLAlchemy: transactions, retries, and the one place that translates errors.

Whatever a driver raises leaves here as `StoreUnavailable`; what the work raises on purpose (a lost
lease, a changed history) passes through after a rollback. A database that was away is used again
as soon as it answers. No other module of the store knows which database it is.
"""

import asyncio
import hashlib
import logging
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Row, Select, Table, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
    StatementError,
)

from proxy.core.errors import StoreUnavailable
from proxy.store.async_engine import AsyncConnection
from proxy.store.engines import (
    BUSY_SECONDS,
    Engines,
    is_memory,
    is_postgresql,
    make_engines,
    store_url,
)
from proxy.store.inline import InlineReader
from proxy.store.store import StoreRefused

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]
AnyRow = Row[*tuple[Any, ...]]

# After PostgreSQL did not answer, or SQLite's write lock was not to be had, how long everyone (with
# SQLite every writer) fails at once: a chat has several things to write and waits for one at most.
PAUSE_SECONDS = 1.0
RETRY_OPEN_SECONDS = 0.05
IN_LIST = 5_000  # values in one statement: SQLite takes 32,766 parameters, PostgreSQL 32,767
VACUUM_PAGES = 10_000  # of 4 KiB at a time: writers wait meanwhile

_FOREIGN: tuple[type[BaseException], ...] = (
    SQLAlchemyError,
    sqlite3.Error,
    OSError,
    TimeoutError,
    UnicodeError,
    OverflowError,
)
# The database works but did not take this statement: trying again cannot help.
REFUSALS = (IntegrityError, NotSupportedError, ProgrammingError, UnicodeError, OverflowError)
# The same by PostgreSQL's classes: not supported, cardinality, data, integrity, syntax or access.
REFUSED_CLASSES = frozenset({"0A", "21", "22", "23", "42"})
# serialization_failure and deadlock_detected: PostgreSQL asks for the transaction once more.
TRY_AGAIN = frozenset({"40001", "40P01"})


class _CommitUnknown(Exception):
    """The connection broke while COMMIT was under way: stored or not, nobody can tell."""


class Database:
    """One database, opened at the first use, and again after it was away."""

    def __init__(self, url: str, prepare: Work[None], *, sole_process: bool = False) -> None:
        """`prepare` runs in a write transaction before anything else; it brings the schema.

        `sole_process`: no other process writes to this SQLite file. Found untrue, it turns false.
        """
        self._url = store_url(url)
        self._prepare = prepare
        self.postgresql = is_postgresql(self._url)
        self._memory = is_memory(self._url)
        self.sole = self._memory or (sole_process and not self.postgresql)
        self._engines: Engines | None = None
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._data_version: int | None = None
        self._paused_until = 0.0
        self._locked_until = 0.0
        self._closed = False
        self._running: set[asyncio.Task[Any]] = set()
        in_file = not (self.postgresql or self._memory)
        self._inline = InlineReader(Path(self._url.database or "")) if in_file else None

    def __repr__(self) -> str:
        return f"Database({self._url.render_as_string(hide_password=True)})"

    async def open(self) -> None:
        """Connect and bring the schema up to date; later calls do it if this one could not."""
        self._closed = False
        await self._guarded(self._opened)

    async def close(self) -> None:
        """Let what runs come to its end, then close every connection."""
        self._closed = True
        if self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._inline is not None:
            self._inline.close()
        if self._engines is not None:
            engines, self._engines = self._engines, None
            await engines.dispose()

    def rows_at_once(
        self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]
    ) -> Sequence[tuple[Any, ...]] | None:
        """What the statement finds, as the driver has it, where that needs no waiting.

        None says nothing: ask with `read`. The statement is a constant of a module.
        """
        if self._inline is None or self._engines is None or self._closed:
            return None
        return self._inline.rows(statement, parameters)

    async def read(self, work: Work[T]) -> T:
        """Run `work` on a connection where each statement is on its own."""

        async def attempt() -> T:
            engines = await self._opened()
            async with self._turn(self._memory), engines.reader.connect() as connection:
                return await work(connection)

        return await self._guarded(lambda: _at_most_twice(attempt))

    async def write(self, work: Work[T], *, ended: Callable[[], None] | None = None) -> T:
        """Run `work` in one write transaction: all of it is stored, or nothing.

        `work` may run twice, the first time without effect. `ended` is called after it, whatever
        came of it, and even if the caller has gone: then it may be stored all the same.
        """

        async def attempt() -> T:
            engines = await self._opened()
            # Whoever holds the turn is finding out whether the lock is free again.
            self._refuse_if_locked(asked_already=self._writing.locked())
            async with self._turn(not self.postgresql):
                self._refuse_if_locked()
                try:
                    return await self._transaction(engines, work)
                finally:
                    if ended is not None:
                        ended()

        return await self._guarded(lambda: _at_most_twice(attempt))

    async def lock(self, connection: AsyncConnection, *parts: str | bytes) -> None:
        """Until this transaction ends nobody else holds the lock that `parts` name.

        SQLite needs none: there a write transaction is alone already.
        """
        if self.postgresql:
            await connection.execute(select(func.pg_advisory_xact_lock(_lock_number(parts))))

    def insert(self, table: Table) -> "postgresql.Insert":
        """An insert that knows ON CONFLICT, which the two dialects spell alike."""
        if self.postgresql:
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        return cast("postgresql.Insert", sqlite.insert(table))

    async def scrub(self) -> None:
        """SQLite: what was deleted leaves the write-ahead log, and free pages the file."""
        if self.postgresql or self._memory:
            return

        async def attempt() -> None:
            engines = await self._opened()
            async with self._turn(True), engines.reader.connect() as connection:
                # The driver's own connection: the vacuum frees a page per row that is fetched, and
                # SQLAlchemy fetches none, since the statement has no columns.
                driver: Any = (await connection.get_raw_connection()).driver_connection
                await driver.execute_fetchall(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
                await driver.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._guarded(attempt)

    def _turn(self, alone: bool) -> AbstractAsyncContextManager[Any]:
        return self._writing if alone else nullcontext()

    def _refuse_if_locked(self, *, asked_already: bool = False) -> None:
        if self._locked_until and (asked_already or time.monotonic() < self._locked_until):
            raise StoreUnavailable("The store was locked a moment ago; it is asked again soon.")

    async def _transaction(self, engines: Engines, work: Work[T]) -> T:
        committing = False
        try:
            async with engines.writer.begin() as connection:
                await self._notice_other_writers(connection)
                result = await work(connection)
                committing = True
            self._locked_until = 0.0
        except foreign_errors() as error:
            if _is_locked(error):
                self._locked_until = time.monotonic() + PAUSE_SECONDS
            if committing and not _asks_for_another_try(error):
                raise _CommitUnknown(_cause(error)) from error
            raise
        return result

    async def _notice_other_writers(self, connection: AsyncConnection) -> None:
        """`data_version` changes iff another connection committed since this one last looked."""
        if self.postgresql or self._memory:
            return
        answer = await connection.exec_driver_sql("PRAGMA data_version")
        version = int(answer.scalar_one())
        if self.sole and self._data_version not in (None, version):
            self.sole = False
            logger.warning("store shared=true: another process writes to it, nothing is cached")
        self._data_version = version

    async def _guarded(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Run to the end even when the caller is cancelled, so that no connection is torn."""
        task = asyncio.ensure_future(self._translated(operation))
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, for a caller that is gone

    async def _translated(self, operation: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        now = time.monotonic()
        if now < self._paused_until:
            raise StoreUnavailable("The store did not answer a moment ago; it is asked again soon.")
        if self._paused_until:
            self._paused_until = now + PAUSE_SECONDS  # this call finds out, the others do not wait
        try:
            result = await operation()
        except foreign_errors(_CommitUnknown) as error:
            if _is_refusal(error):
                self._paused_until = 0.0
                raise StoreRefused(f"The store did not take it: {_cause(error)}") from error
            self._paused_until = time.monotonic() + PAUSE_SECONDS if self.postgresql else 0.0
            raise StoreUnavailable(f"The store did not answer: {_cause(error)}") from error
        except BaseException:
            self._paused_until = 0.0  # the database answered; the error is the work's own
            raise
        self._paused_until = 0.0
        return result

    async def _opened(self) -> Engines:
        if self._engines is not None:
            return self._engines
        async with self._opening:
            return self._engines or await self._connected()

    async def _connected(self) -> Engines:
        engines = make_engines(self._url)
        try:
            await self._prepared(engines)
        except BaseException:
            await engines.dispose()
            raise
        self._engines = engines
        logger.info("store opened url=%s", self._url.render_as_string(hide_password=True))
        return engines

    async def _prepared(self, engines: Engines) -> None:
        # Several processes that turn a new file to WAL at once are told "locked" without any wait.
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                async with engines.writer.begin() as connection:
                    self._data_version = None  # each connection has numbers of its own
                    await self._notice_other_writers(connection)
                    await self._prepare(connection)
                return
            except DBAPIError as error:
                if not _is_locked(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_OPEN_SECONDS)


def in_parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The values in order, at most `size` at a time."""
    for first in range(0, len(values), size):
        yield values[first : first + size]


def foreign_errors(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Whatever a driver raises, asyncpg's own errors too, and `others`."""
    return (*_FOREIGN, *_asyncpg_errors("PostgresError", "InterfaceError"), *others)


def _asyncpg_errors(*names: str) -> tuple[type[BaseException], ...]:
    # Looked up, not imported: SQLAlchemy imports it for a PostgreSQL URL. With its dialect it is
    # 46 modules and 4 MB, which a store in SQLite starts without.
    driver = sys.modules.get("asyncpg")
    return () if driver is None else tuple(getattr(driver, name) for name in names)


async def _at_most_twice(attempt: Callable[[], Awaitable[T]]) -> T:
    """A restarted server leaves dead connections behind; the second attempt has a fresh one."""
    try:
        return await attempt()
    except foreign_errors() as error:
        if not _asks_for_another_try(error):
            raise
        logger.info("store asked again error=%s", _cause(error))
    return await attempt()


def _asks_for_another_try(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError):
        return isinstance(error, (ConnectionError, *_asyncpg_errors("InterfaceError")))
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in TRY_AGAIN


def _is_locked(error: BaseException) -> bool:
    """Whether SQLite waited for another process's lock in vain."""
    return isinstance(error, DBAPIError) and "locked" in str(error.orig)


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, DBAPIError):
        sqlstate = getattr(error.orig, "sqlstate", None) or ""
        return isinstance(error, REFUSALS) or sqlstate[:2] in REFUSED_CLASSES
    # A value that no driver could bind is a StatementError without a database's error in it.
    return isinstance(error, (*REFUSALS, StatementError))


def _cause(error: BaseException) -> str:
    """What went wrong, without statement and parameters: they may hold a client's words."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    name = type(cause).__name__
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", None)
    return f"{name} {code}" if code else name


def _lock_number(parts: tuple[str | bytes, ...]) -> int:
    """A signed 64-bit number for an advisory lock; two names that share one only wait longer."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode(errors="replace") if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return int.from_bytes(digest.digest(), "big", signed=True)
