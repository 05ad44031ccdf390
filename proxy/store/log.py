"""Appending to the log: events, conversations, and histories as segments over contents.

A batch holds the log's lock alone, so that what it builds upon stays there, and the order of events
is the order of their commits. A batch that is written twice is there once, and a history that is
sent again writes only what is new. Once an hour it is sent from its beginning: that renews `seen`
of all that it goes through.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from proxy.core.newest import Newest
from proxy.store.async_engine import AsyncConnection
from proxy.store.contents import ContentRows, drop_references, drop_unreferenced
from proxy.store.database import IN_LIST, Database, in_parts
from proxy.store.replacements import ReplacementRows
from proxy.store.rows import Lookup, Rows
from proxy.store.schema import Name, conversations, events, extras, segments, stored_name
from proxy.store.segments import (
    STAMP_SECONDS,
    End,
    NewSegment,
    Packed,
    Plan,
    content_key,
    pack,
    text_bytes,
)
from proxy.store.store import Batch, Event, Turn

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

LOG_LOCK = "log"
CONTENT_SECRET = "contents"
STAMPS = 32_768  # some 330 bytes each
WRITTEN = 16_384  # some 150 bytes each: what 80 clients repeat that send 200 messages at a time
OFF_LOOP_BYTES = 256 * 1024  # more than this is hashed and copied in a thread

_STORED_ENDS = Lookup(
    select(
        segments.c.last,
        segments.c.start,
        segments.c.parent,
        segments.c.seen,
        segments.c.sizes.is_not(None).label("has_text"),
    ).where(
        segments.c.tenant == bindparam("tenant"),
        segments.c.last.in_(bindparam("values", expanding=True)),
    )
)
_OF_TENANT = segments.c.tenant == bindparam("of_tenant", type_=Name())
_RENEW = (
    update(segments)
    .where(_OF_TENANT, segments.c.last == bindparam("of_last"))
    .values(seen=bindparam("new_seen"))
)
_DROP = (
    delete(segments)
    .where(_OF_TENANT, segments.c.last.in_(bindparam("replaced", expanding=True)))
    .returning(segments.c.tenant, segments.c.last, segments.c.content_keys)
)
_OF_LAST_REQUEST = (
    "root",
    "last_fingerprint",
    "message_count",
    "upstream",
    "model",
    "head",
    "tools",
    "labels",
    "gauge",
    "seen_at",
)
_ENCODER = msgspec.json.Encoder(enc_hook=str)
_EVENT_COLUMNS = ("id", "tenant", "conversation", "kind", "time", "bytes", "data")


_New = tuple[str, bytes, NewSegment]  # behind its tenant and its end


@dataclass(slots=True)
class _Tenant:
    """What a batch holds of one tenant, each thing once; of a conversation its last turn."""

    turns: list[Turn] = field(default_factory=list)
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    extras: dict[tuple[str, bytes], float] = field(default_factory=dict)
    conversations: dict[str, tuple[Any, ...]] = field(default_factory=dict)


class LogWriter:
    """The part of a store that appends."""

    def __init__(
        self,
        database: Database,
        secret: Callable[[str], Awaitable[bytes]],
        replacement_rows: ReplacementRows,
    ) -> None:
        """`replacement_rows` may have uses to write down, which go along with a batch."""
        self._database = database
        self._secret = secret
        self._replacement_rows = replacement_rows
        self._contents = ContentRows(database)
        self._new_segments = Rows(database.insert(segments), segments.columns.keys()[1:])
        self._extras = Rows(_renewing(database.insert(extras)), extras.columns.keys())
        self._last_requests = Rows(
            _newer(database.insert(conversations)), conversations.columns.keys()
        )
        self._new_events = Rows(
            database.insert(events).on_conflict_do_nothing(index_elements=["id"]), _EVENT_COLUMNS
        )
        # What this process is sure to have logged: ends, and what conversations have; since when.
        self._stamps: Newest[tuple[Any, ...], float] = Newest(STAMPS)
        self._written: Newest[int, None] = Newest(WRITTEN)  # hashes of tenant and long body

    def unlogged(self, tenant: str, chain: Sequence[bytes]) -> int:
        """Look back for the newest request that this process has logged within the hour."""
        since = time.monotonic() - STAMP_SECONDS
        for position in range(len(chain), 0, -1):
            if self._stamps.get((tenant, chain[position - 1]), since) > since:
                return position
        return 0

    def forget_stamps(self) -> None:
        """Messages were deleted: look again before believing that one is there."""
        self._stamps.clear()

    async def write(self, batch: Batch) -> None:
        """One transaction for all of it."""
        secret = await self._secret(CONTENT_SECRET)
        if sum(map(text_bytes, batch.turns)) > OFF_LOOP_BYTES:
            tenants = await asyncio.to_thread(self._sorted_out, batch, secret)
        else:
            tenants = self._sorted_out(batch, secret)

        async def work(connection: AsyncConnection) -> tuple[bool, Collection[str]]:
            await self._database.lock(connection, LOG_LOCK)
            whole = await self._write_histories(connection, tenants, secret)
            await self._write_conversations(connection, tenants)
            touched = await self._replacement_rows.touch_used(connection)
            await self._new_events.write(connection, [_event_row(event) for event in batch.events])
            return whole, touched

        whole, touched = await self._database.write(work)
        self._replacement_rows.touched(touched)
        if whole:
            self._stamp(batch.turns, tenants)
        else:
            # Somebody deleted what these histories begin with; their next turn writes it again.
            self.forget_stamps()

    def _stamp(self, turns: Sequence[Turn], tenants: Mapping[str, _Tenant]) -> None:
        now = time.monotonic()
        for turn in turns:
            # As old as what it stands on, so that the whole path is looked at again in an hour.
            since = self._stamps.get((turn.tenant, turn.parent)) if turn.start else now
            if since is not None and turn.fingerprints:
                self._stamps.put((turn.tenant, turn.last_fingerprint), since)
        for tenant, things in tenants.items():
            for (conversation, key), seen in things.extras.items():
                self._stamps.put((tenant, conversation, key), seen)

    def _sorted_out(self, batch: Batch, secret: bytes) -> dict[str, _Tenant]:
        """By the names that tenants have in the database, where two may have the same."""
        tenants: dict[str, _Tenant] = {}
        as_sent: dict[str, _Tenant] = {}
        for turn in batch.turns:
            things = as_sent.get(turn.tenant)
            if things is None:
                things = tenants.setdefault(stored_name(turn.tenant), _Tenant())
                as_sent[turn.tenant] = things
            if turn.last_fingerprint:
                things.turns.append(turn)
            keys = []
            for body in (turn.head, turn.tools):
                key = None if body is None else content_key(body, secret)
                keys.append(key)
                if body is None or key is None:
                    continue
                since = self._stamps.get((turn.tenant, turn.conversation, key))
                if since is None or since < turn.time - STAMP_SECONDS:
                    things.bodies[key] = body
                    things.extras[turn.conversation, key] = turn.time
            before = things.conversations.get(turn.conversation)
            if before is None:
                row = _conversation_row(turn, keys, turn.time)
            elif before[-1] <= turn.time:
                row = _conversation_row(turn, keys, before[-2])
            else:
                continue
            things.conversations[turn.conversation] = row
        return tenants

    async def _write_histories(
        self, connection: AsyncConnection, tenants: Mapping[str, _Tenant], secret: bytes
    ) -> bool:
        """Whether every history in the batch is now there from its first message on."""
        plans: dict[str, Plan] = {}
        whole = True
        for tenant, things in tenants.items():
            plan = plans[tenant] = Plan(await _stored_ends(connection, tenant, things.turns))
            for turn in things.turns:
                whole &= plan.add(turn)
        new = [(tenant, *item) for tenant, plan in plans.items() for item in plan.new.items()]
        if sum(text_bytes(each.turn) for *_, each in new) > OFF_LOOP_BYTES:
            packed = await asyncio.to_thread(self._packed, new, secret)
        else:
            packed = self._packed(new, secret)
        dropped: list[tuple[str, bytes]] = []
        for tenant, plan in plans.items():
            dropped += await _drop(connection, tenant, plan.replaced)
        bodies = {tenant: dict(things.bodies) for tenant, things in tenants.items()}
        references: list[tuple[str, bytes, bytes]] = []
        for (tenant, last, _), parts in zip(new, packed, strict=True):
            if parts is not None:
                bodies[tenant].update(parts.contents)
                references += [(tenant, key, last) for key in parts.contents]
        await self._contents.add(connection, bodies)
        await self._contents.refer(connection, references)
        await self._new_segments.write(connection, list(map(_segment_row, new, packed)))
        renewed = [
            {"of_tenant": tenant, "of_last": last, "new_seen": plan.seen(last)}
            for tenant, plan in plans.items()
            for last in sorted(plan.renewed)
        ]
        if renewed:
            await connection.execute(_RENEW, renewed)
        await drop_unreferenced(connection, dropped)
        return whole

    def _packed(self, new: Sequence[_New], secret: bytes) -> list[Packed | None]:
        """One of each, None where no text is kept."""
        packed: list[Packed | None] = []
        for tenant, _, each in new:
            bodies = each.turn.bodies
            if bodies is None:
                packed.append(None)
            else:
                is_repeated = partial(self._is_repeated, tenant)
                packed.append(pack(bodies[each.first :], secret, is_repeated))
        return packed

    def _is_repeated(self, tenant: str, body: bytes) -> bool:
        """Whether it was written lately; now it is."""
        hashed = hash((tenant, body))
        known = hashed in self._written
        self._written.put(hashed, None)
        return known

    async def _write_conversations(
        self, connection: AsyncConnection, tenants: Mapping[str, _Tenant]
    ) -> None:
        await self._extras.write(
            connection,
            [
                (tenant, conversation, key, seen)
                for tenant, things in tenants.items()
                for (conversation, key), seen in things.extras.items()
            ],
        )
        await self._last_requests.write(
            connection,
            [row for things in tenants.values() for row in things.conversations.values()],
        )


async def _stored_ends(
    connection: AsyncConnection, tenant: str, turns: Sequence[Turn]
) -> dict[bytes, End]:
    """The segments that end at a fingerprint of the turns, or before what they bring."""
    asked: set[bytes] = set()
    for turn in turns:
        asked.update(turn.fingerprints)
        if turn.start:
            asked.add(turn.parent)
    stored: dict[bytes, End] = {}
    for part in in_parts(sorted(asked), IN_LIST):
        for last, *end in await _STORED_ENDS.rows(connection, tenant, part):
            stored[last] = End(*end)
    return stored


async def _drop(
    connection: AsyncConnection, tenant: str, replaced: Sequence[bytes]
) -> list[tuple[str, bytes]]:
    """Delete these segments; the contents that they referred to."""
    gone: list[tuple[str, bytes]] = []
    for part in in_parts(replaced, IN_LIST):
        answer = await connection.execute(_DROP, {"of_tenant": tenant, "replaced": part})
        gone += await drop_references(connection, answer.all())
    return gone


def _renewing(insertion: "postgresql.Insert") -> "postgresql.Insert":
    """What a conversation has; once an hour it is noted that it still has it."""
    return insertion.on_conflict_do_update(
        index_elements=extras.primary_key.columns,
        set_={"seen": insertion.excluded.seen},
        where=extras.c.seen < insertion.excluded.seen - STAMP_SECONDS,
    )


def _newer(insertion: "postgresql.Insert") -> "postgresql.Insert":
    """The last request of a conversation stands, in whatever order they are written."""
    return insertion.on_conflict_do_update(
        index_elements=["tenant", "id"],
        set_={name: insertion.excluded[name] for name in _OF_LAST_REQUEST},
        where=insertion.excluded.seen_at >= conversations.c.seen_at,
    )


def _segment_row(new: _New, packed: Packed | None) -> tuple[Any, ...]:
    tenant, last, segment = new
    end, turn, first = segment.end, segment.turn, segment.first
    fingerprints = b"".join(turn.fingerprints[first:])
    return (
        tenant,
        turn.conversation,
        end.start,
        len(turn.fingerprints) - first,
        last,
        end.parent,
        end.seen,
        len(fingerprints) + (len(packed.bodies) if packed is not None else 0),
        fingerprints,
        packed.sizes if packed is not None else None,
        packed.content_keys if packed is not None else b"",
        packed.bodies if packed is not None else None,
    )


def _conversation_row(
    turn: Turn, keys: Sequence[bytes | None], created_at: float
) -> tuple[Any, ...]:
    return (
        turn.tenant,
        turn.conversation,
        turn.root,
        turn.last_fingerprint,
        turn.message_count,
        turn.upstream,
        turn.model,
        *keys,
        to_json(turn.labels),
        to_json(turn.gauge),
        created_at,
        turn.time,
    )


def to_json(value: Mapping[str, Any]) -> str:
    """What JSON has no word for is written as its text; a number that is none, as null."""
    try:
        return _ENCODER.encode(dict(value)).decode()
    except (UnicodeEncodeError, msgspec.MsgspecError, OverflowError, TypeError):
        return json.dumps(dict(value), default=str)


def _event_row(event: Event) -> tuple[Any, ...]:
    data = to_json(event.data)
    return (
        event.id,
        event.tenant,
        event.conversation,
        event.kind.value,
        event.time,
        len(data),
        data,
    )
