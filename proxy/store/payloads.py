"""The payloads of replacements: they never change, so each is cached for ever by its id, as far as
there is room."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cachetools import LRUCache
from sqlalchemy import bindparam, select

from proxy.core.replacements import Replacement
from proxy.store.async_engine import AsyncConnection
from proxy.store.database import IN_LIST, Database, in_parts
from proxy.store.schema import replacements

CACHE_BYTES = 64 * 1024 * 1024

_PAYLOADS = select(replacements.c.id, replacements.c.payload).where(
    replacements.c.id.in_(bindparam("ids", expanding=True))
)


class Payloads:
    """What this process read or wrote of them lately."""

    def __init__(self, database: Database) -> None:
        """Empty."""
        self._database = database
        self._cached: LRUCache[str, tuple[Mapping[str, Any], int]] = LRUCache(
            CACHE_BYTES, getsizeof=lambda entry: entry[1] + 200
        )

    def keep(self, id: str, payload: Mapping[str, Any], size_bytes: int | None = None) -> None:
        """Remember one; `size_bytes` is that of its JSON."""
        size_bytes = len(json.dumps(payload)) if size_bytes is None else size_bytes
        if size_bytes < CACHE_BYTES // 4:
            self._cached[id] = (payload, size_bytes)

    def kept(self, rows: Sequence[Replacement]) -> tuple[Replacement, ...]:
        """The rows with their payloads, without those whose payload had to make room."""
        return self._filled(rows, {})

    async def filled(self, rows: Sequence[Replacement]) -> tuple[Replacement, ...]:
        """The rows with their payloads, by one query where some had to make room."""
        filled = self.kept(rows)
        return filled if len(filled) == len(rows) else await self._fetched(rows)

    async def _fetched(self, rows: Sequence[Replacement]) -> tuple[Replacement, ...]:
        missing = [row.id for row in rows if row.id not in self._cached]

        async def work(connection: AsyncConnection) -> dict[str, str]:
            found: dict[str, str] = {}
            for part in in_parts(missing, IN_LIST):
                answer = await connection.execute(_PAYLOADS, {"ids": part})
                found.update((row.id, row.payload) for row in answer)
            return found

        fetched: dict[str, Mapping[str, Any]] = {}
        for id, text in (await self._database.read(work)).items():
            fetched[id] = json.loads(text)
            self.keep(id, fetched[id], len(text))
        return self._filled(rows, fetched)  # one that is gone was forgotten between the two reads

    def _filled(
        self, rows: Sequence[Replacement], fetched: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Replacement, ...]:
        filled: list[Replacement] = []
        for row in rows:
            cached = self._cached.get(row.id)
            payload = fetched.get(row.id) if cached is None else cached[0]
            if payload is not None:
                filled.append(with_payload(row, payload))
        return tuple(filled)


def with_payload(row: Replacement, payload: Mapping[str, Any]) -> Replacement:
    """The row with its payload."""
    return Replacement(
        row.id,
        row.order,
        row.kind,
        row.start,
        row.end,
        row.end_fingerprint,
        payload,
        row.revoked,
    )
