"""A statement in SQLite is one trip to the connection's thread and back.

The dialect's own cursor makes four: it is opened, executes, fetches and is closed. Each costs some
50 us of CPU, which is more than most statements take. What this takes of SQLAlchemy and aiosqlite
is not documented: pyproject.toml bounds both.
"""

import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiosqlite
from sqlalchemy.dialects.sqlite.aiosqlite import (
    AsyncAdapt_aiosqlite_connection,
    AsyncAdapt_aiosqlite_cursor,
    AsyncAdapt_aiosqlite_dbapi,
)


@dataclass(frozen=True, slots=True)
class _Done:
    """What a cursor knows when it is closed."""

    description: Any
    rowcount: int
    lastrowid: int | None
    rows: Sequence[Any]


class _Cursor(AsyncAdapt_aiosqlite_cursor):
    """Fetches everything at once, as the dialect's cursor does too."""

    __slots__ = ()

    def __init__(self, connection: Any) -> None:
        self._adapt_connection = connection
        self._connection = connection._connection
        self._cursor: Any = _Done(None, -1, None, ())
        self._rows = deque()

    @property
    def description(self) -> Any:
        return self._cursor.description

    async def _execute_async(self, operation: Any, parameters: Any) -> Any:
        await self._trip(_execute, operation, () if parameters is None else parameters)

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> Any:
        await self._trip(_execute_many, operation, seq_of_parameters)

    async def _trip(self, run: Any, operation: str, parameters: Any) -> None:
        driver: Any = self._connection
        async with self._adapt_connection._execute_mutex:
            self._cursor = await driver._execute(run, driver._conn, operation, parameters)
        self._rows = deque(self._cursor.rows)

    async def _async_soft_close(self) -> None:
        """It is closed already."""

    def close(self) -> None:
        self._rows.clear()


class _Connection(AsyncAdapt_aiosqlite_connection):
    """Takes no trip to roll back when nothing was asked since a commit, as the pool does each time
    that a connection comes back."""

    __slots__ = ("_is_clean",)

    _cursor_cls: Any = _Cursor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._is_clean = False

    def cursor(self, server_side: bool = False) -> Any:
        self._is_clean = False
        return super().cursor(server_side)

    def commit(self) -> None:
        super().commit()
        self._is_clean = True

    def rollback(self) -> None:
        if not self._is_clean:
            super().rollback()


class Trips(AsyncAdapt_aiosqlite_dbapi):
    """The driver, for an engine's `module`."""

    def __init__(self) -> None:
        super().__init__(aiosqlite, sqlite3)

    def connect(self, *arguments: Any, **named: Any) -> AsyncAdapt_aiosqlite_connection:
        """A connection whose statements are one trip each."""
        return _Connection(self, super().connect(*arguments, **named)._connection)


def _execute(connection: sqlite3.Connection, statement: str, parameters: Any) -> _Done:
    return _finished(connection.execute(statement, parameters))


def _execute_many(connection: sqlite3.Connection, statement: str, rows: Any) -> _Done:
    return _finished(connection.executemany(statement, rows))


def _finished(cursor: sqlite3.Cursor) -> _Done:
    rows = () if cursor.description is None else cursor.fetchall()
    done = _Done(cursor.description, cursor.rowcount, cursor.lastrowid, rows)
    cursor.close()
    return done
