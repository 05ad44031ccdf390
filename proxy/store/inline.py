"""Look-ups in a SQLite file that are answered at once, on the calling thread.

The way to a thread and back costs forty times what an indexed look-up takes. In WAL mode a reader
never waits for a writer; where it would have to wait after all (recovery, another schema), or the
file is not there, the answer is None, and the question goes the long way.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import Dialect

CACHE_KIB = 512  # what it lacks is in the system's own cache

_DIALECT: Dialect = sqlite.dialect(paramstyle="named")


class InlineReader:
    """One reading connection, opened at the first look-up."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._compiled: dict[int, _Compiled] = {}

    def rows(
        self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]] | None:
        """What the statement finds; None when that cannot be said at once.

        `statement` is a constant of a module: what it compiles to is kept for ever.
        """
        compiled = self._compiled.get(id(statement))
        if compiled is None:
            compiled = self._compiled[id(statement)] = _Compiled(statement)
        try:
            connection = self._connection or self._opened()
            # Fetched to the end: an open statement keeps the log from being written back.
            return connection.execute(compiled.text, compiled.bound(parameters)).fetchall()
        except sqlite3.Error:
            self.close()
            return None

    def close(self) -> None:
        """Close the connection; the next look-up opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        return self._connection


class _Compiled:
    """A statement of SQLAlchemy's as text, and what its types make of the parameters."""

    def __init__(self, statement: Select[*tuple[Any, ...]]) -> None:
        compiled = statement.compile(dialect=_DIALECT)
        self.statement = statement  # kept, so that its id stays its own
        self.text = str(compiled)
        self._fixed = dict(compiled.params)
        self._processors = [
            (name, processor)
            for name, bind in compiled.binds.items()
            if name in self._fixed
            and (processor := bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)) is not None
        ]

    def bound(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self._fixed, **parameters}
        for name, process in self._processors:
            values[name] = process(values[name])
        return values
