"""Appending to the log: events, and histories as a trie of fingerprints over contents.

Everything is insert-if-absent, so a batch written twice is there once, and a history that is sent
again writes only what is new. `seen` of a node is renewed hourly along its whole path; therefore
no message grows older than one that follows it.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cachetools import TTLCache
from sqlalchemy import Table, bindparam, select, update

from proxy.store.async_engine import AsyncConnection
from proxy.store.database import Database
from proxy.store.replacements import ReplacementRows
from proxy.store.rows import Rows
from proxy.store.schema import Name, contents, conversations, events, extras, nodes, turns
from proxy.store.store import Batch, Event, LoggedMessage, Turn

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

T = TypeVar("T")

LOG_LOCK = "log"  # shared by who appends, exclusive for who deletes
EVENT_LOCK = "events"  # on several workers, the order of events is the order of their commits
CONTENT_SECRET = "contents"
STAMP_SECONDS = 3600.0  # how often `seen` is renewed; retention counts in days
STAMPED_NODES = 100_000  # some 400 bytes each
IN_LIST = 5_000
OFF_LOOP_BYTES = 256 * 1024  # more than this is hashed in a thread

_STORED_NODES = select(nodes.c.fingerprint, nodes.c.content, nodes.c.seen).where(
    nodes.c.tenant == bindparam("tenant"),
    nodes.c.fingerprint.in_(bindparam("fingerprints", expanding=True)),
)
_STORED_CONTENTS = select(contents.c.key).where(
    contents.c.tenant == bindparam("tenant"), contents.c.key.in_(bindparam("keys", expanding=True))
)
_RENEW_NODE = (
    update(nodes)
    .where(
        nodes.c.tenant == bindparam("of_tenant", type_=Name()),
        nodes.c.fingerprint == bindparam("of_fingerprint"),
    )
    .values(seen=bindparam("new_seen"), content=bindparam("new_content"))
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


@dataclass(slots=True)
class _Tenant:
    """What a batch holds of one tenant, each thing once."""

    nodes: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    anchors: set[bytes] = field(default_factory=set)
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    extras: dict[tuple[str, bytes], float] = field(default_factory=dict)
    turns: dict[tuple[str, bytes], float] = field(default_factory=dict)
    conversations: dict[str, dict[str, Any]] = field(default_factory=dict)


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
        self._new_nodes = Rows(database.insert(nodes).on_conflict_do_nothing())
        self._new_contents = Rows(database.insert(contents).on_conflict_do_nothing())
        self._new_events = Rows(
            database.insert(events).on_conflict_do_nothing(index_elements=["id"])
        )
        self._of_conversations = {
            table: _renewing(database.insert(table), table) for table in (turns, extras)
        }
        self._last_requests = _newer(database.insert(conversations))
        self._stamped: TTLCache[tuple[str, bytes], bool] = TTLCache(STAMPED_NODES, STAMP_SECONDS)

    def unlogged(self, tenant: str, chain: Sequence[bytes]) -> int:
        """Look back for the newest message that this process has logged within the hour."""
        for position in range(len(chain) - 1, -1, -1):
            if (tenant, chain[position]) in self._stamped:
                return position + 1
        return 0

    def forget_stamps(self) -> None:
        """Messages were deleted: look again before believing that one is there."""
        self._stamped.clear()

    async def write(self, batch: Batch) -> None:
        """One transaction for all of it."""
        key = await self._secret(CONTENT_SECRET)
        if _size_bytes(batch) > OFF_LOOP_BYTES:
            tenants = await asyncio.to_thread(_sorted_out, batch, key)
        else:
            tenants = _sorted_out(batch, key)

        async def work(connection: AsyncConnection) -> tuple[bool, Collection[str]]:
            await self._database.lock_shared(connection, LOG_LOCK)
            whole = True
            for tenant, things in sorted(tenants.items()):
                whole &= await self._write_histories(connection, tenant, things)
                await self._write_conversations(connection, tenant, things)
            touched = await self._replacement_rows.touch_used(connection)
            await self._write_events(connection, batch.events)
            return whole, touched

        whole, touched = await self._database.write(work)
        self._replacement_rows.touched(touched)
        if not whole:
            # Somebody deleted what these histories begin with; their next turn writes it again.
            self.forget_stamps()
            return
        for tenant, things in tenants.items():
            for fingerprint in things.nodes:
                self._stamped[tenant, fingerprint] = True

    async def _write_histories(
        self, connection: AsyncConnection, tenant: str, things: _Tenant
    ) -> bool:
        """Whether every history in the batch is now there from its first message on."""
        stored: dict[bytes, tuple[bytes, float]] = {}
        for part in in_parts(sorted({*things.nodes, *things.anchors}), IN_LIST):
            answer = await connection.execute(
                _STORED_NODES, {"tenant": tenant, "fingerprints": part}
            )
            stored.update((row.fingerprint, (row.content, row.seen)) for row in answer)
        new, renewed = [], []
        needed = {key for _, key in things.extras}
        for fingerprint, node in sorted(things.nodes.items()):
            if fingerprint not in stored:
                new.append({"tenant": tenant, **node})
                needed.add(node["content"])
                continue
            content, seen = stored[fingerprint]
            if node["content"] and not content:
                needed.add(node["content"])
            if (node["content"] and not content) or seen < node["seen"] - STAMP_SECONDS:
                renewed.append(
                    {
                        "of_tenant": tenant,
                        "of_fingerprint": fingerprint,
                        "new_seen": max(seen, node["seen"]),
                        "new_content": content or node["content"],
                    }
                )
        bodies = {key: things.bodies[key] for key in needed if key}
        await self._write_contents(connection, tenant, bodies)
        await self._new_nodes.write(connection, new)
        if renewed:
            await connection.execute(_RENEW_NODE, renewed)
        return things.anchors <= stored.keys() | things.nodes.keys()

    async def _write_contents(
        self, connection: AsyncConnection, tenant: str, bodies: dict[bytes, bytes]
    ) -> None:
        missing = set(bodies)
        for part in in_parts(sorted(bodies), IN_LIST):
            answer = await connection.execute(_STORED_CONTENTS, {"tenant": tenant, "keys": part})
            missing.difference_update(answer.scalars())
        await self._new_contents.write(
            connection,
            [
                {"tenant": tenant, "key": key, "bytes": len(bodies[key]), "body": bodies[key]}
                for key in sorted(missing)
            ],
        )

    async def _write_conversations(
        self, connection: AsyncConnection, tenant: str, things: _Tenant
    ) -> None:
        for table, column, seen in (
            (turns, "fingerprint", things.turns),
            (extras, "content", things.extras),
        ):
            await self._of_conversations[table].write(
                connection,
                [
                    {"tenant": tenant, "conversation": conversation, column: value, "seen": at}
                    for (conversation, value), at in sorted(seen.items())
                ],
            )
        await self._last_requests.write(
            connection,
            [
                {"tenant": tenant, "id": id, **row}
                for id, row in sorted(things.conversations.items())
            ],
        )

    async def _write_events(self, connection: AsyncConnection, happened: Sequence[Event]) -> None:
        if not happened:
            return
        await self._database.lock(connection, EVENT_LOCK)
        await self._new_events.write(connection, [_event_row(event) for event in happened])


def _renewing(insertion: "postgresql.Insert", table: Table) -> Rows:
    """What a conversation has; once an hour it is noted that it still has it."""
    return Rows(
        insertion.on_conflict_do_update(
            index_elements=table.primary_key.columns,
            set_={"seen": insertion.excluded.seen},
            where=table.c.seen < insertion.excluded.seen - STAMP_SECONDS,
        )
    )


def _newer(insertion: "postgresql.Insert") -> Rows:
    """The last request of a conversation stands, in whatever order they are written."""
    return Rows(
        insertion.on_conflict_do_update(
            index_elements=["tenant", "id"],
            set_={name: insertion.excluded[name] for name in _OF_LAST_REQUEST},
            where=insertion.excluded.seen_at >= conversations.c.seen_at,
        )
    )


def in_parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The values in order, at most `size` at a time."""
    for first in range(0, len(values), size):
        yield values[first : first + size]


def content_key(body: bytes, secret: bytes) -> bytes:
    """A content's name: keyed, because short texts can be guessed from a plain hash."""
    return hashlib.blake2b(body, key=secret, digest_size=16).digest()


def _size_bytes(batch: Batch) -> int:
    return sum(
        len(turn.head or b"")
        + len(turn.tools or b"")
        + sum(len(message.body or b"") for message in turn.messages)
        for turn in batch.turns
    )


def _sorted_out(batch: Batch, secret: bytes) -> dict[str, _Tenant]:
    """By tenant, each message, content and conversation once; of a conversation its last turn."""
    tenants: dict[str, _Tenant] = {}
    for turn in batch.turns:
        things = tenants.setdefault(turn.tenant, _Tenant())
        for message in turn.messages:
            _add_node(things, message, turn.time, secret)
        if turn.messages and turn.messages[0].parent:
            things.anchors.add(turn.messages[0].parent)
        keys: dict[str, bytes | None] = {"head": None, "tools": None}
        for name, body in (("head", turn.head), ("tools", turn.tools)):
            if body is not None:
                key = keys[name] = content_key(body, secret)
                things.bodies[key] = body
                things.extras[turn.conversation, key] = turn.time
        if turn.last_fingerprint:
            things.turns[turn.conversation, turn.last_fingerprint] = turn.time
        before = things.conversations.get(turn.conversation)
        if before is None or before["seen_at"] <= turn.time:
            created_at = before["created_at"] if before is not None else turn.time
            things.conversations[turn.conversation] = _conversation_row(turn, keys, created_at)
    return tenants


def _add_node(things: _Tenant, message: LoggedMessage, at: float, secret: bytes) -> None:
    content = b""
    if message.body is not None:
        content = content_key(message.body, secret)
        things.bodies[content] = message.body
    known = things.nodes.get(message.fingerprint)
    if known is not None:
        # The first to send it gives the text: equal fingerprints mean the same message.
        content = known["content"] or content
        at = max(at, known["seen"])
    things.nodes[message.fingerprint] = {
        "fingerprint": message.fingerprint,
        "parent": message.parent,
        "position": message.position,
        "content": content,
        "seen": at,
    }


def _conversation_row(
    turn: Turn, keys: dict[str, bytes | None], created_at: float
) -> dict[str, Any]:
    return {
        "root": turn.root,
        "last_fingerprint": turn.last_fingerprint,
        "message_count": turn.message_count,
        "upstream": turn.upstream,
        "model": turn.model,
        **keys,
        "labels": json.dumps(dict(turn.labels), default=str),
        "gauge": json.dumps(dict(turn.gauge), default=str),
        "created_at": created_at,
        "seen_at": turn.time,
    }


def _event_row(event: Event) -> dict[str, Any]:
    data = json.dumps(dict(event.data), default=str)
    return {
        "id": event.id,
        "tenant": event.tenant,
        "conversation": event.conversation,
        "kind": event.kind.value,
        "time": event.time,
        "bytes": len(data),
        "data": data,
    }
