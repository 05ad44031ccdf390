"""What a store is asked and told: the protocol, and the values that pass through it.

Every method may raise `StoreUnavailable`, and nothing else that comes from a database. Times are
seconds since 1970 and come from the caller; leases alone live by the database's clock. A tenant
never sees another tenant's rows; `tenant=None`, where it is allowed, is the operator.
"""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import getrandbits
from time import time_ns
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from proxy.core.errors import InvalidRequest, StoreUnavailable
from proxy.core.generations import Revocation
from proxy.core.replacements import NewReplacement, Replacement, Scope

LEASE_SECONDS = 30.0
FAILURE_SHARED_SECONDS = 30.0  # nobody starts work again that failed so lately
IN_FLIGHT_SECONDS = 5.0  # published once a second: a worker is believed dead after four misses


def new_id() -> str:
    """An id of 32 hex digits in the order of time: an index grows at its end and nowhere else.

    Tells things apart and keeps nothing secret. The system's randomness would cost more than its
    call: the interpreter goes to the log's thread meanwhile, and has to be waited for.
    """
    return f"{time_ns():016x}{getrandbits(64):016x}"


class StoreRefused(StoreUnavailable):
    """The database works but did not take this; the same again would be refused again."""

    code = "store_refused"


class EventKind(StrEnum):
    """Everything that the log tells."""

    REQUEST = "request"
    COMPACTION_START = "compaction_start"
    SUMMARY = "summary"
    REPLACEMENT = "replacement"
    COMPACTION_END = "compaction_end"
    PRUNE = "prune"
    OFFLOAD = "offload"
    OVERFLOW = "overflow"
    REPLAY = "replay"
    REVOKE = "revoke"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; never changed afterwards.

    An `id` is stored once, however often it is sent. `order` is 0 until the store has given it its
    place. `data` holds no message text.
    """

    tenant: str
    conversation: str
    kind: EventKind
    time: float
    data: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=new_id)
    order: int = 0


class Turn(NamedTuple):
    """One chat request as the log keeps it.

    It brings the messages from position `start` on, those that the store may not have yet: the
    fingerprint after each, and the JSON of each, or None where no text is to be kept. `parent` is
    the fingerprint before them, empty at the beginning of the history. `head` is the JSON array of
    the head's messages, `tools` the JSON of the tools; None where absent or not to be kept. `gauge`
    holds figures for people: tokens, window, trigger, generation.
    """

    tenant: str
    conversation: str
    time: float
    upstream: str
    model: str
    root: bytes
    last_fingerprint: bytes
    message_count: int
    start: int = 0
    parent: bytes = b""
    fingerprints: Sequence[bytes] = ()
    bodies: Sequence[bytes] | None = None
    head: bytes | None = None
    tools: bytes | None = None
    labels: Mapping[str, str] = MappingProxyType({})
    gauge: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Batch:
    """Log entries that are written in one transaction; written twice, they are there once."""

    events: Sequence[Event] = ()
    turns: Sequence[Turn] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What its last request was. `head` and `tools` are content keys, for `content()`."""

    tenant: str
    id: str
    root: bytes
    last_fingerprint: bytes
    message_count: int
    upstream: str
    model: str
    head: bytes | None
    tools: bytes | None
    labels: Mapping[str, str]
    gauge: Mapping[str, Any]
    created_at: float
    seen_at: float

    @property
    def scope(self) -> Scope:
        """Whose replacements apply to it."""
        return Scope(self.tenant, self.upstream, self.model)

    @property
    def cursor(self) -> str:
        """Where a listing goes on after this one."""
        place = json.dumps([self.seen_at, self.tenant, self.id]).encode()
        return base64.urlsafe_b64encode(place).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[float, str, str]:
    """The place in a listing that `Conversation.cursor` names.

    Raises:
        InvalidRequest: it was not made by us.
    """
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        seen_at, tenant, conversation = place
        return float(seen_at), str(tenant), str(conversation)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest("The cursor is not one of this listing.", status=422) from error


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to compact up to `end`, until `expires_at` of the database's clock."""

    scope: Scope
    root: bytes
    end: int
    end_fingerprint: bytes
    owner: str
    token: str = field(repr=False)
    expires_at: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What a provider showed about a model to one tenant, until `expires_at`."""

    scope: Scope
    kind: str
    value: Any
    expires_at: float


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; None is for ever. Replacements age from their last use."""

    log_seconds: float | None = None
    replacement_seconds: float | None = None
    max_log_bytes: int | None = None


class Recorded(NamedTuple):
    """What there may be under a first message; False where there surely is nothing."""

    replacements: bool = True
    conversations: bool = True


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is, or was taken away. `contents` are long messages, heads and tools, each of
    which is kept once; `bytes` is what histories, contents and events hold."""

    conversations: int = 0
    messages: int = 0
    contents: int = 0
    events: int = 0
    replacements: int = 0
    bytes: int = 0


class Store(Protocol):
    """The durable part of Tidegate."""

    async def open(self) -> None:
        """Connect and migrate. When it raises, each later call tries again by itself."""

    async def close(self) -> None:
        """Finish what runs and disconnect."""

    async def secret(self, name: str) -> bytes:
        """32 random bytes made at the first call for `name`, the same for every worker since."""

    # Replacements

    def recorded(self, scope: Scope, root: bytes) -> Recorded:
        """What may be recorded of chats that begin so, as far as can be said without waiting."""

    async def replacements(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """Those whose end is in the chain, in the order made, revoked ones too. Counts as use."""

    def remembered(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """The same from memory alone, as last seen by this process: for when the store is down."""

    async def adoptable(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """Unrevoked ones of that other upstream or model of the tenant which reaches furthest."""

    async def commit(
        self,
        scope: Scope,
        root: bytes,
        chain: Collection[bytes],
        *,
        planned_on: Sequence[str],
        new: Sequence[NewReplacement],
        lease: Lease | None,
        conversation: str,
    ) -> tuple[Replacement, ...]:
        """Store `new` iff the unrevoked ones (backoffs apart) that match are `planned_on` still.

        Raises:
            LeaseLost: the lease expired, or somebody took it over.
            HistoryChanged: another commit or a revocation came first.
        """

    async def revoke(self, tenant: str, replacement_id: str) -> Replacement | None:
        """Take one out of use for ever; None when the tenant has none of that id."""

    async def revocations(self, tenant: str, ids: Collection[str]) -> Mapping[str, Revocation]:
        """When those among `ids` were revoked that were, by id."""

    async def touch(self, ids: Collection[str]) -> None:
        """Mark replacements as used now."""

    # Leases and workers

    async def acquire(
        self,
        scope: Scope,
        root: bytes,
        *,
        end: int,
        end_fingerprint: bytes,
        owner: str,
        lease_seconds: float = LEASE_SECONDS,
        over_failure: bool = False,
    ) -> Lease | None:
        """A lease on that end, or None while somebody else's is live. An expired one is taken.

        A failure left there blocks it as a live lease does, unless `over_failure`.
        """

    async def renew(self, lease: Lease, lease_seconds: float = LEASE_SECONDS) -> bool:
        """Whether the lease was still ours, and now lasts longer."""

    async def release(self, lease: Lease, *, failure: str | None = None) -> None:
        """Give it back; nothing happens when it is no longer ours. A failure is left for others."""

    async def failure(self, scope: Scope, root: bytes, end_fingerprint: bytes) -> str | None:
        """What the last holder of a lease on that end left there within the last 30 seconds."""

    async def live_leases(self, scope: Scope, root: bytes) -> tuple[Lease, ...]:
        """Those that have not expired, failures apart."""

    async def publish_in_flight(
        self,
        worker: str,
        runs: Collection[tuple[str, str]],
        *,
        lease_seconds: float = IN_FLIGHT_SECONDS,
    ) -> None:
        """Tell the others which (tenant, conversation) this worker serves at the moment."""

    async def in_flight(
        self, tenant: str, conversation: str, *, except_worker: str | None = None
    ) -> bool:
        """Whether any worker, that one left aside, has published a run of the conversation."""

    # By hand

    async def keep_answer(self, tenant: str, conversation: str, digest: bytes) -> None:
        """Remember the digest of a message that Tidegate itself wrote."""

    async def known_answers(self, tenant: str, digests: Collection[bytes]) -> frozenset[bytes]:
        """Those of the digests that are of messages of ours. Counts as use."""

    async def schedule(self, tenant: str, conversation: str, options: Mapping[str, Any]) -> None:
        """Ask for a compaction on the next chat, in place of an earlier such request."""

    async def is_scheduled(self, tenant: str, conversation: str) -> bool:
        """Whether one is asked for; another worker's request may be known seconds later."""

    async def take_scheduled(self, tenant: str, conversation: str) -> Mapping[str, Any] | None:
        """The options of what was asked for, forgotten with it: only one worker gets them."""

    # Learned

    async def learn(self, scope: Scope, kind: str, value: Any, *, ttl_seconds: float) -> None:
        """Remember a JSON value under `kind`, in place of an earlier one."""

    async def learned(self, scope: Scope) -> Mapping[str, Learned]:
        """By kind, what has not expired; another worker's news arrives within seconds."""

    async def all_learned(self, tenant: str | None) -> tuple[Learned, ...]:
        """Everything that has not expired, for a listing."""

    async def forget_learned(self, tenant: str, model: str, kind: str | None = None) -> int:
        """Drop it for the model on every upstream; how many were dropped."""

    # The log

    async def write(self, batch: Batch) -> None:
        """Append; what is there already stays as it is."""

    def unlogged(self, tenant: str, chain: Sequence[bytes]) -> int:
        """The position behind the newest request in the chain that is known here to be logged."""

    async def find_conversation(
        self, tenant: str, root: bytes, chain: Sequence[bytes]
    ) -> Conversation | None:
        """The one whose last request is in this chain: the longest, then the newest."""

    async def conversation(self, tenant: str | None, id: str) -> Conversation | None:
        """One conversation; for the operator the newest of that id."""

    async def conversations(
        self, tenant: str | None, *, limit: int = 50, before: str | None = None
    ) -> tuple[Conversation, ...]:
        """The newest first, going on after the `cursor` of one."""

    async def events(
        self,
        tenant: str | None,
        conversation: str | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """At most `limit` with an order over `after`, oldest first; the last ones if `newest`."""

    async def last_event(self) -> int:
        """The order of the newest event, 0 when there is none: where to start listening."""

    async def chain(self, tenant: str, last_fingerprint: bytes) -> tuple[bytes, ...] | None:
        """The fingerprints of a logged request's history; None when some are gone."""

    async def history(self, tenant: str, last_fingerprint: bytes) -> tuple[bytes, ...] | None:
        """The JSON of each message of a logged request's history; None when some were not kept."""

    async def openings(
        self, places: Collection[tuple[str, bytes]]
    ) -> Mapping[tuple[str, bytes], bytes]:
        """By (tenant, root) the JSON of the first message, of those that were kept."""

    async def content(self, tenant: str, key: bytes) -> bytes | None:
        """One content by its key."""

    async def counts(self, tenant: str | None) -> Counts:
        """How much is stored."""

    async def forget(self, tenant: str, id: str) -> Counts | None:
        """Delete a conversation and all that only it uses; None when there is none."""

    async def sweep(self, retention: Retention, *, now: float | None = None) -> Counts:
        """Delete what is too old or too much. `now` is the database's clock if not given."""
