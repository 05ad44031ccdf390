"""Taking away: what is too old, what is too much, and what somebody wants forgotten.

A content goes with the last message, head or tools that refers to it. Deleting holds the log's lock
alone, in short transactions, so that no writer refers to what is about to go.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

from sqlalchemy import (
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
)

from proxy.store.async_engine import AsyncConnection
from proxy.store.by_hand import drop_revocations
from proxy.store.database import AnyRow, Database
from proxy.store.log import IN_LIST, LOG_LOCK, in_parts
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
    nodes,
    replacements,
    scheduled,
    turns,
)
from proxy.store.store import Counts, Retention

ROWS_AT_A_TIME = 1000  # some 20 ms with the lock held
NEWEST_SECONDS = 60.0  # never taken away for size: it may be in use right now

_TENANT = bindparam("of_tenant", type_=Name())
_CONVERSATION = bindparam("of_conversation", type_=Name())
_USED_PATH = path_to(
    select(turns.c.fingerprint).where(
        turns.c.tenant == _TENANT, turns.c.conversation == _CONVERSATION
    ),
    _TENANT,
)
_USED_NODES = select(_USED_PATH).order_by(_USED_PATH.c.position.desc())
_FOREIGN_TURNS = select(turns.c.fingerprint).where(
    turns.c.tenant == _TENANT,
    turns.c.conversation != _CONVERSATION,
    turns.c.fingerprint.in_(bindparam("fingerprints", expanding=True)),
)
_CHILDREN = select(nodes.c.parent, nodes.c.fingerprint).where(
    nodes.c.tenant == _TENANT, nodes.c.parent.in_(bindparam("fingerprints", expanding=True))
)


_ROWS = bindparam("rows", type_=Integer())


def _oldest(table: Table, *order: ColumnElement[Any], old: ColumnElement[bool]) -> Delete:
    """Delete the first rows in that order, as many as one transaction should."""
    key = table.primary_key.columns
    return delete(table).where(
        tuple_(*key).in_(select(*key).where(old).order_by(*order).limit(_ROWS))
    )


_CUTOFF = bindparam("cutoff", type_=Float())
# A message never before those that follow it, which are as old at most.
_OLD_NODES = _oldest(
    nodes, nodes.c.seen, nodes.c.position.desc(), old=nodes.c.seen <= _CUTOFF
).returning(nodes.c.tenant, nodes.c.content)
_OLD_EXTRAS = _oldest(extras, extras.c.seen, old=extras.c.seen <= _CUTOFF).returning(
    extras.c.tenant, extras.c.content
)
_OLD_TURNS = _oldest(turns, turns.c.seen, old=turns.c.seen <= _CUTOFF).returning(turns.c.tenant)
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


_NODE_STEP = _nth(nodes.c.seen)
_EXTRA_STEP = _nth(extras.c.seen)
_EVENT_STEP = select(func.max(events.c.time)).where(events.c.seq.in_(_FIRST_EVENTS))


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
        for statement, per_row in ((_OLD_NODES, 1), (_OLD_EXTRAS, 0)):

            async def work(connection: AsyncConnection, deletion: Any = statement) -> Counts:
                await self._database.lock(connection, LOG_LOCK)
                rows = (await connection.execute(deletion, _step(cutoff))).all()
                keys = defaultdict(set)
                for row in rows:
                    keys[row.tenant].add(row.content)
                sizes: list[int] = []
                for tenant, candidates in sorted(keys.items()):
                    sizes += await _delete_unreferenced(connection, tenant, candidates)
                return Counts(messages=len(rows), contents=len(sizes), bytes=sum(sizes))

            while any(astuple(step := await self._database.write(work))):
                gone = plus(
                    gone, step if per_row else Counts(0, 0, step.contents, bytes=step.bytes)
                )
        await self._in_steps(_OLD_TURNS, cutoff)
        sizes = [row.bytes for row in await self._in_steps(_OLD_EVENTS, cutoff)]
        return plus(gone, Counts(events=len(sizes), bytes=sum(sizes)))

    async def _sweep_size(self, max_bytes: int, newest: float) -> Counts:
        """The oldest first, a step at a time, until the rest fits."""

        async def total(connection: AsyncConnection) -> int:
            sums = [
                (await connection.execute(select(func.sum(table.c.bytes)))).scalar_one() or 0
                for table in (contents, events)
            ]
            return int(sum(sums))

        async def next_cutoff(connection: AsyncConnection) -> float | None:
            steps = [
                (await connection.execute(statement, {"rows": ROWS_AT_A_TIME})).scalar_one()
                for statement in (_NODE_STEP, _EXTRA_STEP, _EVENT_STEP)
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


async def _forget(connection: AsyncConnection, tenant: str, id: str) -> Counts:
    doomed = await _used_by_it_alone(connection, tenant, id)
    for part in in_parts([row.fingerprint for row in doomed], IN_LIST):
        await connection.execute(
            delete(nodes).where(nodes.c.tenant == tenant, nodes.c.fingerprint.in_(part))
        )

    async def delete_its(table: Table, returned: str) -> Sequence[Any]:
        statement = delete(table).where(table.c.tenant == tenant, table.c.conversation == id)
        return (await connection.execute(statement.returning(table.c[returned]))).scalars().all()

    keys = {row.content for row in doomed} | set(await delete_its(extras, "content"))
    await delete_its(turns, "fingerprint")
    event_sizes = await delete_its(events, "bytes")
    replacement_ids = await delete_its(replacements, "id")
    await drop_revocations(connection, replacement_ids)
    await delete_its(answers, "digest")
    await delete_its(scheduled, "made_at")
    known = await connection.execute(
        delete(conversations).where(conversations.c.tenant == tenant, conversations.c.id == id)
    )
    sizes = await _delete_unreferenced(connection, tenant, keys)
    return Counts(
        conversations=known.rowcount,
        messages=len(doomed),
        contents=len(sizes),
        events=len(event_sizes),
        replacements=len(replacement_ids),
        bytes=sum(sizes) + sum(event_sizes),
    )


async def _used_by_it_alone(connection: AsyncConnection, tenant: str, id: str) -> Sequence[AnyRow]:
    """Its messages that no other conversation sent, nor anything that follows them."""
    of_it = {"of_tenant": tenant, "of_conversation": id}
    used = (await connection.execute(_USED_NODES, of_it)).all()
    foreign: set[bytes] = set()
    children: dict[bytes, set[bytes]] = defaultdict(set)
    for part in in_parts([row.fingerprint for row in used], IN_LIST):
        answer = await connection.execute(_FOREIGN_TURNS, {**of_it, "fingerprints": part})
        foreign.update(answer.scalars())
        below = await connection.execute(_CHILDREN, {"of_tenant": tenant, "fingerprints": part})
        for row in below:
            children[row.parent].add(row.fingerprint)
    doomed: dict[bytes, AnyRow] = {}
    for row in used:  # the last messages first, so that all that follows one is decided
        if row.fingerprint not in foreign and children[row.fingerprint] <= doomed.keys():
            doomed[row.fingerprint] = row
    return list(doomed.values())


async def _delete_unreferenced(
    connection: AsyncConnection, tenant: str, keys: Collection[bytes]
) -> list[int]:
    """Delete those contents of the tenant that nothing refers to any more; their sizes."""
    sizes: list[int] = []
    for part in in_parts(sorted(key for key in keys if key), IN_LIST):
        referred: set[bytes] = set()
        for table in (nodes, extras):
            statement = select(table.c.content).where(
                table.c.tenant == tenant, table.c.content.in_(part)
            )
            referred.update((await connection.execute(statement)).scalars())
        unreferred = [key for key in part if key not in referred]
        deletion = delete(contents).where(
            contents.c.tenant == tenant, contents.c.key.in_(unreferred)
        )
        answer = await connection.execute(deletion.returning(contents.c.bytes))
        sizes.extend(answer.scalars())
    return sizes
