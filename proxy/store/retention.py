"""Taking away: what is too old, what is too much, and what somebody wants forgotten.

Deleting holds the log's lock alone, in short transactions, so that no writer refers to what is
about to go.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Delete,
    Float,
    Integer,
    Select,
    Table,
    bindparam,
    delete,
    func,
    select,
    tuple_,
    union_all,
    update,
)

from proxy.store.async_engine import AsyncConnection
from proxy.store.by_hand import drop_revocations
from proxy.store.contents import drop_references, drop_unreferenced
from proxy.store.database import IN_LIST, AnyRow, Database, in_parts
from proxy.store.log import LOG_LOCK
from proxy.store.reading import path_to
from proxy.store.replacements import ReplacementRows
from proxy.store.schema import (
    DatabaseNow,
    Name,
    answers,
    contents,
    conversations,
    events,
    extras,
    in_flight,
    learned,
    leases,
    replacements,
    scheduled,
    segments,
)
from proxy.store.store import Counts, Retention

ROWS_AT_A_TIME = 1000  # some 20 ms with the lock held
NEWEST_SECONDS = 60.0  # never taken away for size: it may be in use right now

_TENANT = bindparam("of_tenant", type_=Name())
_CONVERSATION = bindparam("of_conversation", type_=Name())
_USED_PATH = path_to(
    union_all(
        select(segments.c.last).where(
            segments.c.tenant == _TENANT, segments.c.conversation == _CONVERSATION
        ),
        select(conversations.c.last_fingerprint).where(
            conversations.c.tenant == _TENANT, conversations.c.id == _CONVERSATION
        ),
    ),
    _TENANT,
)
_STOOD_ON = (
    segments.c.last,
    segments.c.parent,
    segments.c.start,
    segments.c.messages,
    segments.c.conversation,
)
_USED = (
    select(*_STOOD_ON)
    .join_from(
        _USED_PATH,
        segments,
        (segments.c.tenant == _TENANT) & (segments.c.last == _USED_PATH.c.last),
    )
    .order_by((segments.c.start + segments.c.messages).desc())
)
_ENDS: BindParameter[bytes] = bindparam("ends", expanding=True)
_CHILDREN = select(segments.c.last, segments.c.parent, segments.c.conversation).where(
    segments.c.tenant == _TENANT, segments.c.parent.in_(_ENDS), segments.c.start > 0
)
_LAST_REQUESTS = select(conversations.c.last_fingerprint, conversations.c.id).where(
    conversations.c.tenant == _TENANT,
    conversations.c.root.in_(bindparam("roots", expanding=True)),
    conversations.c.last_fingerprint.in_(_ENDS),
    conversations.c.id != _CONVERSATION,
)
_HAND_OVER = (
    update(segments)
    .where(segments.c.tenant == _TENANT, segments.c.last == bindparam("of_last"))
    .values(conversation=bindparam("heir"))
)


_ROWS = bindparam("rows", type_=Integer())


def _oldest(table: Table, *order: ColumnElement[Any], old: ColumnElement[bool]) -> Delete:
    """Delete the first rows in that order, as many as one transaction should."""
    key = table.primary_key.columns
    return delete(table).where(
        tuple_(*key).in_(select(*key).where(old).order_by(*order).limit(_ROWS))
    )


_CUTOFF = bindparam("cutoff", type_=Float())
_GONE = (
    segments.c.tenant,
    segments.c.last,
    segments.c.content_keys,
    segments.c.messages,
    segments.c.bytes,
)
_OLD_SEGMENTS = _oldest(
    segments, segments.c.seen, segments.c.start.desc(), old=segments.c.seen <= _CUTOFF
).returning(*_GONE)
_OLD_EXTRAS = _oldest(extras, extras.c.seen, old=extras.c.seen <= _CUTOFF).returning(
    extras.c.tenant, extras.c.content
)
_OLD_CONVERSATIONS = _oldest(
    conversations, conversations.c.seen_at, old=conversations.c.seen_at <= _CUTOFF
).returning(conversations.c.id)
_OLD_REPLACEMENTS = _oldest(
    replacements, replacements.c.used_at, old=replacements.c.used_at <= _CUTOFF
).returning(replacements.c.id)
_OLD_ANSWERS = _oldest(answers, answers.c.used_at, old=answers.c.used_at <= _CUTOFF).returning(
    answers.c.tenant
)
_OLD_SCHEDULED = _oldest(
    scheduled, scheduled.c.made_at, old=scheduled.c.made_at <= _CUTOFF
).returning(scheduled.c.tenant)
# In the order of the log, so that no index by time is needed: events come in about that order.
_FIRST_EVENTS = select(events.c.seq).order_by(events.c.seq).limit(_ROWS)
_OLD_EVENTS = (
    delete(events)
    .where(events.c.seq.in_(_FIRST_EVENTS), events.c.time <= _CUTOFF)
    .returning(events.c.bytes)
)


def _nth(column: ColumnElement[float]) -> Select[float]:
    """The time of the row that one transaction would delete last."""
    first = select(column.label("time")).order_by(column).limit(_ROWS).subquery()
    return select(func.max(first.c.time))


_SEGMENT_STEP = _nth(segments.c.seen)
_EXTRA_STEP = _nth(extras.c.seen)
_EVENT_STEP = select(func.max(events.c.time)).where(events.c.seq.in_(_FIRST_EVENTS))


Deletion = Callable[[AsyncConnection, float], Awaitable[Counts | None]]


class Sweeper:
    """The part of a store that deletes."""

    def __init__(self, database: Database, replacement_rows: ReplacementRows) -> None:
        """`replacement_rows` may have uses to write down before any age is judged."""
        self._database = database
        self._replacement_rows = replacement_rows

    async def forget(self, tenant: str, id: str) -> Counts | None:
        """Delete a conversation and all that only it uses; None when there is none."""

        async def work(connection: AsyncConnection) -> Counts:
            await self._database.lock(connection, LOG_LOCK)
            return await _forget(connection, tenant, id)

        counts = await self._database.write(work)
        if not any(astuple(counts)):
            return None
        await self._database.scrub()
        return counts

    async def sweep(self, retention: Retention, *, now: float | None = None) -> Counts:
        """Delete what is too old or too much, and what has expired."""
        database_now = await self._database.write(self._delete_expired)
        now = database_now if now is None else now
        gone = Counts()
        if retention.replacement_seconds is not None:
            ids = await self._in_steps(_OLD_REPLACEMENTS, now - retention.replacement_seconds)
            await self._database.write(
                lambda connection: drop_revocations(connection, [row.id for row in ids])
            )
            await self._in_steps(_OLD_ANSWERS, now - retention.replacement_seconds)
            await self._in_steps(_OLD_SCHEDULED, now - retention.replacement_seconds)
            gone = plus(gone, Counts(replacements=len(ids)))
        if retention.log_seconds is not None:
            cutoff = now - retention.log_seconds
            gone = plus(gone, await self._sweep_log(cutoff))
            ids = await self._in_steps(_OLD_CONVERSATIONS, cutoff)
            gone = plus(gone, Counts(conversations=len(ids)))
        if retention.max_log_bytes is not None:
            gone = plus(gone, await self._sweep_size(retention.max_log_bytes, now - NEWEST_SECONDS))
        if any(astuple(gone)):
            await self._database.scrub()
        return gone

    async def _delete_expired(self, connection: AsyncConnection) -> float:
        self._replacement_rows.touched(await self._replacement_rows.touch_used(connection))
        for table in (leases, in_flight, learned):
            await connection.execute(delete(table).where(table.c.expires_at <= DatabaseNow()))
        return (await connection.execute(select(DatabaseNow()))).scalar_one()

    async def _in_steps(self, statement: Any, cutoff: float) -> list[AnyRow]:
        """What the statement deleted, in as many transactions as it takes."""
        gone: list[AnyRow] = []

        async def work(connection: AsyncConnection) -> Sequence[AnyRow]:
            await self._database.lock(connection, LOG_LOCK)
            return (await connection.execute(statement, _step(cutoff))).all()

        while step := await self._database.write(work):
            gone.extend(step)
        return gone

    async def _sweep_log(self, cutoff: float) -> Counts:
        """Messages, heads, tools and events that were last seen at `cutoff` or before."""
        gone = Counts()
        for delete_some in (_delete_old_segments, _delete_old_extras):

            async def work(
                connection: AsyncConnection, deletion: Deletion = delete_some
            ) -> Counts | None:
                await self._database.lock(connection, LOG_LOCK)
                return await deletion(connection, cutoff)

            while (step := await self._database.write(work)) is not None:
                gone = plus(gone, step)
        sizes = [row.bytes for row in await self._in_steps(_OLD_EVENTS, cutoff)]
        return plus(gone, Counts(events=len(sizes), bytes=sum(sizes)))

    async def _sweep_size(self, max_bytes: int, newest: float) -> Counts:
        """The oldest first, a step at a time, until the rest fits."""

        async def total(connection: AsyncConnection) -> int:
            sums = [
                (await connection.execute(select(func.sum(table.c.bytes)))).scalar_one() or 0
                for table in (segments, contents, events)
            ]
            return int(sum(sums))

        async def next_cutoff(connection: AsyncConnection) -> float | None:
            steps = [
                (await connection.execute(statement, {"rows": ROWS_AT_A_TIME})).scalar_one()
                for statement in (_SEGMENT_STEP, _EXTRA_STEP, _EVENT_STEP)
            ]
            return min((step for step in steps if step is not None), default=None)

        size = await self._database.read(total)
        gone = Counts()
        while size > max_bytes:
            cutoff = await self._database.read(next_cutoff)
            if cutoff is None or cutoff > newest:
                break
            step = await self._sweep_log(cutoff)
            size -= step.bytes
            gone = plus(gone, step)
        return gone


def _step(cutoff: float) -> dict[str, float]:
    return {"cutoff": cutoff, "rows": ROWS_AT_A_TIME}


def plus(one: Counts, other: Counts) -> Counts:
    """Both together."""
    return Counts(*(a + b for a, b in zip(astuple(one), astuple(other), strict=True)))


async def _delete_old_segments(connection: AsyncConnection, cutoff: float) -> Counts | None:
    """As many as one transaction should, with what only they had; None when there are none."""
    rows = (await connection.execute(_OLD_SEGMENTS, _step(cutoff))).all()
    sizes = await drop_unreferenced(connection, await drop_references(connection, rows))
    of_rows = sum(row.bytes for row in rows)
    messages = sum(row.messages for row in rows)
    gone = Counts(messages=messages, contents=len(sizes), bytes=of_rows + sum(sizes))
    return gone if rows else None


async def _delete_old_extras(connection: AsyncConnection, cutoff: float) -> Counts | None:
    rows = (await connection.execute(_OLD_EXTRAS, _step(cutoff))).all()
    sizes = await drop_unreferenced(connection, [(row.tenant, row.content) for row in rows])
    return Counts(contents=len(sizes), bytes=sum(sizes)) if rows else None


async def _forget(connection: AsyncConnection, tenant: str, id: str) -> Counts:
    doomed = await _used_by_it_alone(connection, tenant, id)
    segments_gone: list[AnyRow] = []
    for part in in_parts(doomed, IN_LIST):
        deletion = delete(segments).where(segments.c.tenant == tenant, segments.c.last.in_(part))
        answer = await connection.execute(deletion.returning(*_GONE))
        segments_gone += answer.all()
    keys = await drop_references(connection, segments_gone)

    async def delete_its(table: Table, returned: str) -> Sequence[Any]:
        statement = delete(table).where(table.c.tenant == tenant, table.c.conversation == id)
        return (await connection.execute(statement.returning(table.c[returned]))).scalars().all()

    keys += [(tenant, key) for key in await delete_its(extras, "content")]
    event_sizes = await delete_its(events, "bytes")
    replacement_ids = await delete_its(replacements, "id")
    await drop_revocations(connection, replacement_ids)
    await delete_its(answers, "digest")
    await delete_its(scheduled, "made_at")
    known = await connection.execute(
        delete(conversations).where(conversations.c.tenant == tenant, conversations.c.id == id)
    )
    sizes = await drop_unreferenced(connection, keys)
    return Counts(
        conversations=known.rowcount,
        messages=sum(row.messages for row in segments_gone),
        contents=len(sizes),
        events=len(event_sizes),
        replacements=len(replacement_ids),
        bytes=sum(row.bytes for row in segments_gone) + sum(sizes) + sum(event_sizes),
    )


async def _used_by_it_alone(connection: AsyncConnection, tenant: str, id: str) -> list[bytes]:
    """The ends of those of its segments on which no other conversation stands.

    The others are handed to one that does, so that they go with the last of them.
    """
    of_it = {"of_tenant": tenant, "of_conversation": id}
    used = (await connection.execute(_USED, of_it)).all()
    heirs = await _heirs(connection, of_it, used)
    doomed: list[bytes] = []
    handed: list[dict[str, Any]] = []
    for row in used:  # the last ones first, so that all that follows one is decided
        heir = heirs.get(row.last)
        if heir is None:
            doomed.append(row.last)
            continue
        if row.start:
            heirs.setdefault(row.parent, heir)
        if row.conversation == id:
            handed.append({"of_tenant": tenant, "of_last": row.last, "heir": heir})
    if handed:
        await connection.execute(_HAND_OVER, handed)
    return doomed


async def _heirs(
    connection: AsyncConnection, of_it: dict[str, str], used: Sequence[AnyRow]
) -> dict[bytes, str]:
    """By their ends, who else made a request that ends there, or goes on from there."""
    ends = {row.last for row in used}
    roots = sorted({row.parent for row in used if row.start == 0})
    heirs: dict[bytes, str] = {}
    for part in in_parts(sorted(ends), IN_LIST):
        of_part = {**of_it, "ends": part}
        for child in await connection.execute(
            _CHILDREN, {"of_tenant": of_it["of_tenant"], "ends": part}
        ):
            if child.last not in ends:
                heirs[child.parent] = child.conversation
        for some in in_parts(roots, IN_LIST):
            for other in await connection.execute(_LAST_REQUESTS, {**of_part, "roots": some}):
                heirs[other.last_fingerprint] = other.id
    return heirs
