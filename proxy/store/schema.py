"""The tables as they are now, and what is peculiar to their columns."""

import hashlib
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

MAX_NAME_CHARS = 256  # an index entry of PostgreSQL holds some 2,700 bytes


class DatabaseNow(FunctionElement[float]):
    """The database's own clock, in seconds since 1970: the one clock that all workers share."""

    type = Double()
    inherit_cache = True


@compiles(DatabaseNow, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(DatabaseNow, "postgresql")
def _postgresql_now(*_: Any, **__: Any) -> str:
    # Not now(): a transaction that waited for a lock must see the time after the wait.
    return "(extract(epoch from clock_timestamp())::double precision)"


def are_plain(names: Collection[str]) -> bool:
    """Whether all of them are stored as they are, which most are."""
    return (
        all(map(str.isascii, names))
        and max(map(len, names), default=0) <= MAX_NAME_CHARS
        and "\0" not in "".join(names)
    )


def stored_name(value: str) -> str:
    """NUL and lone surrogates, which PostgreSQL refuses, are replaced; a long name keeps its
    beginning and a hash, so that equal names stay equal and others differ."""
    if len(value) > MAX_NAME_CHARS:
        digest = hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=16)
        value = f"{value[: MAX_NAME_CHARS - 33]}~{digest.hexdigest()}"
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


class Name(TypeDecorator[str]):
    """Text that clients choose."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The name as it is stored and looked up."""
        return None if value is None else stored_name(value)


# SQLite numbers rows by itself only when the type is exactly INTEGER.
Sequence = BigInteger().with_variant(Integer(), "sqlite")
metadata = MetaData()

schema_versions = Table(
    "schema_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("applied_at", Double, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

replacements = Table(
    "replacements",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Name, nullable=False),
    Column("upstream", Name, nullable=False),
    Column("model", Name, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("start", Integer, nullable=False),
    Column("stop", Integer, nullable=False),
    Column("end_fingerprint", LargeBinary, nullable=False),
    Column("payload", Text, nullable=False),
    Column("conversation", Name, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
    Column("made_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    # Tenant and root first, so that what other models have can be found by the same index.
    Index("replacements_by_root", "tenant", "root", "upstream", "model"),
    Index("replacements_by_conversation", "tenant", "conversation"),
    Index("replacements_by_use", "used_at"),
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("upstream", Name, primary_key=True),
    Column("model", Name, primary_key=True),
    Column("root", LargeBinary, primary_key=True),
    Column("end_fingerprint", LargeBinary, primary_key=True),
    Column("stop", Integer, nullable=False),
    Column("owner", Name, nullable=False),
    Column("token", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

in_flight = Table(
    "in_flight",
    metadata,
    Column("worker", Name, primary_key=True),
    Column("runs", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

learned = Table(
    "learned",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("upstream", Name, primary_key=True),
    Column("model", Name, primary_key=True),
    Column("kind", Name, primary_key=True),
    Column("value", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

# When a replacement was revoked: the surface at every generation can be told from it.
revocations = Table(
    "revocations",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("tenant", Name, nullable=False),
    Column("replacement", Text, nullable=False, unique=True),
    Column("after_order", Sequence, nullable=False),
    Column("made_at", Double, nullable=False),
    sqlite_autoincrement=True,
)

# Digests of what Tidegate itself said in a chat: such messages never reach a model.
answers = Table(
    "answers",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("conversation", Name, primary_key=True),
    Column("used_at", Double, nullable=False),
    Index("answers_by_conversation", "tenant", "conversation"),
    Index("answers_by_use", "used_at"),
    sqlite_with_rowid=False,
)

# Compactions asked for without a credential to pay for them: done on the tenant's next chat.
scheduled = Table(
    "scheduled",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("conversation", Name, primary_key=True),
    Column("options", Text, nullable=False),
    Column("made_at", Double, nullable=False),
)

contents = Table(
    "contents",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("bytes", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("contents_by_bytes", "tenant", "bytes"),  # sums without reading the bodies
)

# The histories, as a trie of segments: the run of messages that a request added to what was there.
# `last` is the fingerprint after it, `parent` the one before it; a segment that begins a history
# has the fingerprint of its first message there. `sizes` and `bodies` are NULL where the text is
# not kept. See segments.py for what is in them. The long columns stand last, so that the others
# are read without them.
segments = Table(
    "segments",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("tenant", Name, nullable=False),
    Column("conversation", Name, nullable=False),  # the first that sent it, of those there are
    Column("start", Integer, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("last", LargeBinary, nullable=False),
    Column("parent", LargeBinary, nullable=False),
    Column("seen", Double, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("fingerprints", LargeBinary, nullable=False),
    Column("sizes", LargeBinary),
    Column("content_keys", LargeBinary, nullable=False),
    Column("bodies", LargeBinary),
    Index("segments_by_last", "tenant", "last", unique=True),
    Index("segments_by_parent", "tenant", "parent"),
    # With what is counted, without reading the rows.
    Index("segments_by_conversation", "tenant", "conversation", "messages", "bytes"),
)
# Followers before what they follow, which is never older.
Index("segments_by_age", segments.c.seen, segments.c.start.desc())

# Which segments a content stands in.
refs = Table(
    "refs",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("content", LargeBinary, primary_key=True),
    Column("last", LargeBinary, primary_key=True),
    sqlite_with_rowid=False,
)

# Which contents a conversation has sent as its head or its tools.
extras = Table(
    "extras",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("conversation", Name, primary_key=True),
    Column("content", LargeBinary, primary_key=True),
    Column("seen", Double, nullable=False),
    Index("extras_by_content", "tenant", "content"),
    Index("extras_by_seen", "seen"),
    sqlite_with_rowid=False,
)

conversations = Table(
    "conversations",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("id", Name, primary_key=True),
    Column("root", LargeBinary, nullable=False),
    Column("last_fingerprint", LargeBinary, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("upstream", Name, nullable=False),
    Column("model", Name, nullable=False),
    Column("head", LargeBinary),
    Column("tools", LargeBinary),
    Column("labels", Text, nullable=False),
    Column("gauge", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Index("conversations_by_root", "tenant", "root", "last_fingerprint"),
    Index("conversations_by_tenant", "tenant", "seen_at", "id"),
    Index("conversations_by_time", "seen_at", "tenant", "id"),
    Index("conversations_by_id", "id"),
)

events = Table(
    "events",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Name, nullable=False),
    Column("conversation", Name, nullable=False),
    Column("kind", Text, nullable=False),
    Column("time", Double, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("data", Text, nullable=False),
    Index("events_by_conversation", "tenant", "conversation", "seq", "bytes"),
    sqlite_autoincrement=True,
)
