"""Rows written by one statement, which is compiled once. SQLAlchemy's own way looks up anew what
becomes of each value of each row, and that costs more than the database's work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.engine.interfaces import Dialect

from proxy.store.async_engine import AsyncConnection


class Rows:
    """An insertion of rows that all give the same columns."""

    def __init__(self, statement: Insert) -> None:
        """Compiled when the first rows are there."""
        self._statement = statement
        self._compiled: tuple[Dialect, _Compiled] | None = None

    async def write(self, connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows, of which there may be none."""
        if not rows:
            return
        if self._compiled is None or self._compiled[0] is not connection.dialect:
            made = _Compiled(self._statement, connection.dialect, list(rows[0]))
            self._compiled = connection.dialect, made
        compiled = self._compiled[1]
        await connection.exec_driver_sql(compiled.text, [compiled.bound(row) for row in rows])


class _Compiled:
    """A statement as text; the values of a row, in the order and form that the driver wants."""

    def __init__(self, statement: Insert, dialect: Dialect, columns: list[str]) -> None:
        compiled = statement.inline().compile(dialect=dialect, column_keys=columns)
        self.text = str(compiled)
        binds, fixed = compiled.binds, compiled.params
        self._values: list[tuple[str, Any, Callable[[Any], Any] | None]] = [
            (name, fixed[name], binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup or ()
        ]

    def bound(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(
            [
                row.get(name, fixed) if process is None else process(row.get(name, fixed))
                for name, fixed, process in self._values
            ]
        )
