"""Reading the log: conversations, events and histories, in pages that an index can serve."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import CTE, bindparam, func, select, tuple_

from proxy.store.async_engine import AsyncConnection
from proxy.store.database import AnyRow, Database
from proxy.store.schema import Name, contents, conversations, events, nodes, replacements
from proxy.store.store import Conversation, Counts, Event, EventKind, read_cursor

RECENT = 500  # how far back the next request's ancestor is looked for by index

_OF_ROOT = (
    conversations.c.tenant == bindparam("tenant"),
    conversations.c.root == bindparam("root"),
)
_RECENT_ENDS = select(conversations).where(
    *_OF_ROOT, conversations.c.last_fingerprint.in_(bindparam("ends", expanding=True))
)
_ALL_ENDS = select(
    conversations.c.id, conversations.c.last_fingerprint, conversations.c.seen_at
).where(*_OF_ROOT)


def path_to(fingerprints: Any, tenant: Any) -> CTE:
    """The nodes from these fingerprints up to the first message, each once."""
    columns = (
        nodes.c.fingerprint,
        nodes.c.parent,
        nodes.c.position,
        nodes.c.content,
    )
    path = (
        select(*columns)
        .where(nodes.c.tenant == tenant, nodes.c.fingerprint.in_(fingerprints))
        .cte("path", recursive=True)
    )
    above = select(*columns).where(nodes.c.tenant == tenant, nodes.c.fingerprint == path.c.parent)
    return path.union(above)


_TENANT = bindparam("tenant", type_=Name())
_PATH = path_to([bindparam("last")], _TENANT)
_CHAIN = select(_PATH.c.position, _PATH.c.fingerprint).order_by(_PATH.c.position)
_HISTORY = (
    select(_PATH.c.position, contents.c.body)
    .outerjoin_from(
        _PATH, contents, (contents.c.tenant == _TENANT) & (contents.c.key == _PATH.c.content)
    )
    .order_by(_PATH.c.position)
)


class LogReader:
    """The part of a store that answers questions about the log."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    async def find_conversation(
        self, tenant: str, root: bytes, chain: Sequence[bytes]
    ) -> Conversation | None:
        """The last messages first, by index; only then every conversation that began alike."""
        places = {fingerprint: place for place, fingerprint in enumerate(chain)}
        parameters = {"tenant": tenant, "root": root}

        async def work(connection: AsyncConnection) -> Conversation | None:
            answer = await connection.execute(
                _RECENT_ENDS, {**parameters, "ends": list(chain[-RECENT:])}
            )
            best = _best(answer.all(), places)
            if best is not None:
                return _conversation(best)
            if len(chain) <= RECENT:
                return None
            ends = (await connection.execute(_ALL_ENDS, parameters)).all()
            best = _best(ends, places)
            return None if best is None else await _by_id(connection, tenant, best.id)

        return await self._database.read(work)

    async def conversation(self, tenant: str | None, id: str) -> Conversation | None:
        """One conversation; for the operator the newest of that id."""
        return await self._database.read(lambda connection: _by_id(connection, tenant, id))

    async def conversations(
        self, tenant: str | None, *, limit: int = 50, before: str | None = None
    ) -> tuple[Conversation, ...]:
        """By the time of the last request, which an index keeps in order."""
        table = conversations.c
        place = (table.seen_at, table.tenant, table.id)
        statement = select(conversations).order_by(*(column.desc() for column in place))
        if tenant is not None:
            statement = statement.where(table.tenant == tenant)
        if before is not None:
            statement = statement.where(tuple_(*place) < tuple_(*read_cursor(before)))

        async def work(connection: AsyncConnection) -> tuple[Conversation, ...]:
            answer = await connection.execute(statement.limit(limit))
            return tuple(_conversation(row) for row in answer)

        return await self._database.read(work)

    async def events(
        self,
        tenant: str | None,
        conversation: str | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """By their place in the log."""
        order = events.c.seq.desc() if newest else events.c.seq
        statement = select(events).where(events.c.seq > after).order_by(order).limit(limit)
        if conversation is not None:
            statement = statement.where(events.c.conversation == conversation)
        if tenant is not None:
            # Without a conversation the few rows after a place are read, not all of the tenant's:
            # an expression keeps SQLite from its index by tenant (measured: 29 ms of 1,000,000).
            of = events.c.tenant if conversation is not None else events.c.tenant.concat("")
            statement = statement.where(of == tenant)

        async def work(connection: AsyncConnection) -> tuple[Event, ...]:
            found = [_event(row) for row in await connection.execute(statement)]
            return tuple(reversed(found)) if newest else tuple(found)

        return await self._database.read(work)

    async def last_event(self) -> int:
        """The order of the newest event, 0 when there is none."""

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(select(func.max(events.c.seq)))).scalar_one() or 0

        return await self._database.read(work)

    async def chain(self, tenant: str, last_fingerprint: bytes) -> tuple[bytes, ...] | None:
        """The fingerprints from position 0 on; None when some are gone."""

        async def work(connection: AsyncConnection) -> tuple[bytes, ...] | None:
            rows = (
                await connection.execute(_CHAIN, {"tenant": tenant, "last": last_fingerprint})
            ).all()
            return tuple(row.fingerprint for row in rows) if _is_whole(rows) else None

        return await self._database.read(work)

    async def history(self, tenant: str, last_fingerprint: bytes) -> tuple[bytes, ...] | None:
        """The JSON of each message; None when some were not kept or are gone."""

        async def work(connection: AsyncConnection) -> tuple[bytes, ...] | None:
            rows = (
                await connection.execute(_HISTORY, {"tenant": tenant, "last": last_fingerprint})
            ).all()
            if not _is_whole(rows) or any(row.body is None for row in rows):
                return None
            return tuple(row.body for row in rows)

        return await self._database.read(work)

    async def openings(
        self, places: Collection[tuple[str, bytes]]
    ) -> Mapping[tuple[str, bytes], bytes]:
        """By tenant and fingerprint apart: SQLite uses no index for a list of pairs."""
        if not places:
            return {}
        statement = select(nodes.c.tenant, nodes.c.fingerprint, contents.c.body).join_from(
            nodes,
            contents,
            (contents.c.tenant == nodes.c.tenant) & (contents.c.key == nodes.c.content),
        )
        statement = statement.where(
            nodes.c.tenant.in_({tenant for tenant, _ in places}),
            nodes.c.fingerprint.in_({root for _, root in places}),
        )

        async def work(connection: AsyncConnection) -> Mapping[tuple[str, bytes], bytes]:
            found = {(r.tenant, r.fingerprint): r.body for r in await connection.execute(statement)}
            return {place: found[place] for place in places if place in found}

        return await self._database.read(work)

    async def content(self, tenant: str, key: bytes) -> bytes | None:
        """One content by its key."""
        statement = select(contents.c.body).where(
            contents.c.tenant == tenant, contents.c.key == key
        )

        async def work(connection: AsyncConnection) -> bytes | None:
            return (await connection.execute(statement)).scalar_one_or_none()

        return await self._database.read(work)

    async def counts(self, tenant: str | None) -> Counts:
        """Counted in the indexes, without reading a row."""

        async def work(connection: AsyncConnection) -> Counts:
            found = {}
            for table in (conversations, nodes, contents, events, replacements):
                size = func.sum(table.c.bytes) if "bytes" in table.c else func.sum(0)
                statement = select(func.count(), size).select_from(table)
                if tenant is not None:
                    statement = statement.where(table.c.tenant == tenant)
                found[table.name] = (await connection.execute(statement)).one()
            return Counts(
                conversations=found["conversations"][0],
                messages=found["nodes"][0],
                contents=found["contents"][0],
                events=found["events"][0],
                replacements=found["replacements"][0],
                bytes=sum(int(size or 0) for _, size in found.values()),
            )

        return await self._database.read(work)


async def _by_id(connection: AsyncConnection, tenant: str | None, id: str) -> Conversation | None:
    statement = select(conversations).where(conversations.c.id == id)
    if tenant is not None:
        statement = statement.where(conversations.c.tenant == tenant)
    statement = statement.order_by(conversations.c.seen_at.desc()).limit(1)
    row = (await connection.execute(statement)).first()
    return None if row is None else _conversation(row)


def _best(rows: Sequence[AnyRow], places: dict[bytes, int]) -> AnyRow | None:
    """The row whose last request reaches furthest into the chain, of equals the newest."""
    in_chain = [row for row in rows if row.last_fingerprint in places]
    return max(in_chain, key=lambda row: (places[row.last_fingerprint], row.seen_at), default=None)


def _is_whole(rows: Sequence[AnyRow]) -> bool:
    return bool(rows) and rows[0].position == 0 and rows[-1].position == len(rows) - 1


def _conversation(row: AnyRow) -> Conversation:
    return Conversation(
        tenant=row.tenant,
        id=row.id,
        root=row.root,
        last_fingerprint=row.last_fingerprint,
        message_count=row.message_count,
        upstream=row.upstream,
        model=row.model,
        head=row.head,
        tools=row.tools,
        labels=json.loads(row.labels),
        gauge=json.loads(row.gauge),
        created_at=row.created_at,
        seen_at=row.seen_at,
    )


def _event(row: AnyRow) -> Event:
    return Event(
        tenant=row.tenant,
        conversation=row.conversation,
        kind=EventKind(row.kind),
        time=row.time,
        data=json.loads(row.data),
        id=row.id,
        order=row.seq,
    )
