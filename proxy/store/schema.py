"""The tables, and the migrations that bring any older schema to them.

A migration that was released never changes. It makes tables as they are written here; when a later
one changes a table, the migration that made it gets a copy of the old definition.
"""

import hashlib
from collections.abc import Awaitable, Callable
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
    func,
    insert,
    select,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from proxy.core.errors import StoreUnavailable
from proxy.store.async_engine import AsyncConnection

MAX_NAME_CHARS = 256  # an index entry of PostgreSQL holds some 2,700 bytes
MIGRATION_LOCK = 0x7469646567617465  # "tidegate": one worker migrates, the others wait


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


class Name(TypeDecorator[str]):
    """Text that clients choose. NUL and lone surrogates, which PostgreSQL refuses, are replaced; a
    long name keeps its beginning and a hash, so that equal names stay equal and others differ."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The name as it is stored and looked up."""
        return None if value is None else stored_name(value)


def stored_name(value: str) -> str:
    """The text that a name of a client's is stored as."""
    if len(value) > MAX_NAME_CHARS:
        digest = hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=16)
        value = f"{value[: MAX_NAME_CHARS - 33]}~{digest.hexdigest()}"
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


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

# The histories, as a trie. `content` is empty where the text of the message is not kept.
nodes = Table(
    "nodes",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("fingerprint", LargeBinary, primary_key=True),
    Column("parent", LargeBinary, nullable=False),
    Column("position", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("seen", Double, nullable=False),
    Index("nodes_by_parent", "tenant", "parent"),
    Index("nodes_by_content", "tenant", "content"),
    Index("nodes_by_seen", "seen"),
    sqlite_with_rowid=False,
)

# Which histories a conversation has sent: what forgetting it may take away.
turns = Table(
    "turns",
    metadata,
    Column("tenant", Name, primary_key=True),
    Column("conversation", Name, primary_key=True),
    Column("fingerprint", LargeBinary, primary_key=True),
    Column("seen", Double, nullable=False),
    Index("turns_by_fingerprint", "tenant", "fingerprint"),
    Index("turns_by_seen", "seen"),
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

Migration = Callable[[AsyncConnection], Awaitable[None]]
MIGRATIONS: list[Migration] = []


def migration(function: Migration) -> Migration:
    """Append to the list; its place there is the schema version that it makes."""
    MIGRATIONS.append(function)
    return function


async def _create(connection: AsyncConnection, *tables: Table) -> None:
    await connection.run_sync(lambda sync: metadata.create_all(sync, tables))


@migration
async def m001_replacements(connection: AsyncConnection) -> None:
    """What the surface is made from, and who may add to it."""
    await _create(connection, secrets, replacements, leases)


@migration
async def m002_log(connection: AsyncConnection) -> None:
    """Histories by content, conversations, events."""
    await _create(connection, contents, nodes, turns, extras, conversations, events)


@migration
async def m003_workers(connection: AsyncConnection) -> None:
    """What workers tell each other: the runs in flight, the limits that providers stated."""
    await _create(connection, in_flight, learned)


@migration
async def m004_by_hand(connection: AsyncConnection) -> None:
    """Revocations in their order, our own chat answers, compactions to be done later."""
    await _create(connection, revocations, answers, scheduled)


async def migrate(connection: AsyncConnection) -> None:
    """Bring the schema to the newest version; safe to call from every worker at once.

    Raises:
        StoreUnavailable: the schema is newer than this program.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    await _create(connection, schema_versions)
    answer = await connection.execute(select(func.max(schema_versions.c.version)))
    version: int = answer.scalar_one() or 0
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"The store's schema is version {version}; this Tidegate knows {len(MIGRATIONS)}. "
            "Run the newer Tidegate, or give this one a store of its own."
        )
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        await step(connection)
        await connection.execute(
            insert(schema_versions).values(
                version=number, name=step.__name__, applied_at=DatabaseNow()
            )
        )
