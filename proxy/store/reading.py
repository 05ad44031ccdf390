"""Reading the log: conversations, events and histories, in pages that an index can serve."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import CTE, ColumnElement, Integer, Select, bindparam, func, literal, select, tuple_

from proxy.store.async_engine import AsyncConnection
from proxy.store.contents import STORED_CONTENTS
from proxy.store.database import IN_LIST, AnyRow, Database, in_parts
from proxy.store.schema import Name, contents, conversations, events, replacements, segments
from proxy.store.segments import INLINE_BYTES, KEY_BYTES, first_size, in_sixteens, unpacked
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


_STEP = (segments.c.last, segments.c.parent, segments.c.start)


def path_to(ends: Any, tenant: Any) -> CTE:
    """The segments from those that end there up to the beginning, each once."""
    path = (
        select(*_STEP)
        .where(segments.c.tenant == tenant, segments.c.last.in_(ends))
        .cte("path", recursive=True)
    )
    above = select(*_STEP).where(
        segments.c.tenant == tenant, segments.c.last == path.c.parent, path.c.start > 0
    )
    return path.union(above)


_TENANT = bindparam("tenant", type_=Name())
_PATH = path_to([bindparam("last")], _TENANT)


def _of_path(*columns: ColumnElement[Any]) -> Select[Any]:
    return (
        select(segments.c.start, segments.c.messages, *columns)
        .join_from(
            _PATH, segments, (segments.c.tenant == _TENANT) & (segments.c.last == _PATH.c.last)
        )
        .order_by(segments.c.start)
    )


_CHAIN = _of_path(segments.c.fingerprints)
_HISTORY = _of_path(segments.c.sizes, segments.c.content_keys, segments.c.bodies)
# However many histories begin alike, one of them is enough.
_OPENING = (
    select(
        func.substr(segments.c.sizes, 1, 4).label("sizes"),
        # SQLite makes NULL of a part of nothing.
        func.coalesce(func.substr(segments.c.content_keys, 1, KEY_BYTES), literal(b"")).label(
            "content_keys"
        ),
        func.substr(segments.c.bodies, 1, bindparam("most_bytes", type_=Integer())).label("bodies"),
    )
    .where(
        segments.c.tenant == _TENANT,
        segments.c.parent == bindparam("root"),
        segments.c.start == 0,
        segments.c.sizes.is_not(None),
    )
    .limit(1)
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
            joined = b"".join(row.fingerprints for row in rows)
            return tuple(in_sixteens(joined)) if _is_whole(rows) else None

        return await self._database.read(work)

    async def history(self, tenant: str, last_fingerprint: bytes) -> tuple[bytes, ...] | None:
        """The JSON of each message; None when some were not kept or are gone."""

        async def work(connection: AsyncConnection) -> tuple[bytes, ...] | None:
            rows = (
                await connection.execute(_HISTORY, {"tenant": tenant, "last": last_fingerprint})
            ).all()
            if not _is_whole(rows) or any(row.sizes is None for row in rows):
                return None
            bodies = await _bodies(connection, tenant, rows)
            return None if None in bodies else tuple(body for body in bodies if body is not None)

        return await self._database.read(work)

    async def openings(
        self, places: Collection[tuple[str, bytes]]
    ) -> Mapping[tuple[str, bytes], bytes]:
        """By tenant and fingerprint, one after the other."""
        if not places:
            return {}

        async def work(connection: AsyncConnection) -> Mapping[tuple[str, bytes], bytes]:
            found: dict[tuple[str, bytes], bytes] = {}
            for tenant, root in sorted(places):
                body = await _opening(connection, tenant, root)
                if body is not None:
                    found[tenant, root] = body
            return found

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
            for table in (conversations, segments, contents, events, replacements):
                size = func.sum(table.c.bytes) if "bytes" in table.c else func.sum(0)
                number = func.sum(table.c.messages) if table is segments else func.count()
                statement = select(number, size).select_from(table)
                if tenant is not None:
                    statement = statement.where(table.c.tenant == tenant)
                found[table.name] = (await connection.execute(statement)).one()
            return Counts(
                conversations=found["conversations"][0],
                messages=int(found["segments"][0] or 0),
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
    """Whether each begins where the one before it ends, and the first at the beginning."""
    at = 0
    for row in rows:
        if row.start != at:
            return False
        at += row.messages
    return at > 0


async def _opening(connection: AsyncConnection, tenant: str, root: bytes) -> bytes | None:
    """The first message of a history, without what stands behind it, which may be megabytes."""
    most_bytes = INLINE_BYTES
    while True:
        asked = {"tenant": tenant, "root": root, "most_bytes": most_bytes}
        rows = (await connection.execute(_OPENING, asked)).all()
        size_bytes = max((first_size(row.sizes) for row in rows), default=0)
        if size_bytes <= most_bytes:
            return next(iter(await _bodies(connection, tenant, rows)), None)
        most_bytes = size_bytes


async def _bodies(
    connection: AsyncConnection, tenant: str, rows: Sequence[AnyRow]
) -> list[bytes | None]:
    """Of these segments in their order; None for one whose content is gone."""
    keys = sorted({key for row in rows for key in in_sixteens(row.content_keys)})
    found: dict[bytes, bytes] = {}
    for part in in_parts(keys, IN_LIST):
        answer = await connection.execute(STORED_CONTENTS, {"tenant": tenant, "keys": part})
        found.update((row.key, row.body) for row in answer)
    return [
        body for row in rows for body in unpacked(row.sizes, row.content_keys, row.bodies, found)
    ]


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
