"""The steps that bring any older schema to today's.

A migration that was released never changes. It makes tables as they are written in schema.py; when
a later one changes or drops a table, the definition that the earlier one made stands here.
"""

from collections.abc import Awaitable, Callable

from sqlalchemy import (
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    case,
    func,
    insert,
    literal,
    select,
    true,
    tuple_,
)

from proxy.core.errors import StoreUnavailable
from proxy.store.async_engine import AsyncConnection
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
    metadata,
    refs,
    replacements,
    revocations,
    scheduled,
    schema_versions,
    secrets,
    segments,
)
from proxy.store.segments import FINGERPRINT_BYTES, pack_sizes

MIGRATION_LOCK = 0x7469646567617465  # "tidegate": one worker migrates, the others wait

CARRIED_ROWS = 20_000  # by one statement, to which PostgreSQL has ten seconds

# Until m005: a row for each message, `content` empty where its text was not kept; and where the
# requests of each conversation ended.
_former = MetaData()

nodes = Table(
    "nodes",
    _former,
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

turns = Table(
    "turns",
    _former,
    Column("tenant", Name, primary_key=True),
    Column("conversation", Name, primary_key=True),
    Column("fingerprint", LargeBinary, primary_key=True),
    Column("seen", Double, nullable=False),
    Index("turns_by_fingerprint", "tenant", "fingerprint"),
    Index("turns_by_seen", "seen"),
    sqlite_with_rowid=False,
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
    await _create(connection, contents, extras, conversations, events)
    await connection.run_sync(lambda sync: _former.create_all(sync))


@migration
async def m003_workers(connection: AsyncConnection) -> None:
    """What workers tell each other: the runs in flight, the limits that providers stated."""
    await _create(connection, in_flight, learned)


@migration
async def m004_by_hand(connection: AsyncConnection) -> None:
    """Revocations in their order, our own chat answers, compactions to be done later."""
    await _create(connection, revocations, answers, scheduled)


@migration
async def m005_segments(connection: AsyncConnection) -> None:
    """Runs of messages in place of single ones: each message becomes a run of one, which belongs
    to a conversation whose request ended with it."""
    await _create(connection, segments, refs)
    place = nodes.c.tenant, nodes.c.fingerprint
    after: tuple[str, bytes] | None = None
    while True:
        left = true() if after is None else tuple_(*place) > after
        ordered = select(*place).where(left).order_by(*place)
        row = (await connection.execute(ordered.offset(CARRIED_ROWS - 1).limit(1))).first()
        last = None if row is None else (row.tenant, row.fingerprint)
        await _carry_over(connection, left if last is None else left & (tuple_(*place) <= last))
        if last is None:
            break
        after = last
    await connection.run_sync(lambda sync: _former.drop_all(sync))


async def _carry_over(connection: AsyncConnection, some: ColumnElement[bool]) -> None:
    """Some of the nodes become segments, and their contents are referred to by them."""
    owner = (
        select(func.min(turns.c.conversation))
        .where(turns.c.tenant == nodes.c.tenant, turns.c.fingerprint == nodes.c.fingerprint)
        .scalar_subquery()
    )
    kept = nodes.c.content != b""
    nothing = literal(None, LargeBinary())
    runs = select(
        nodes.c.tenant,
        func.coalesce(owner, ""),
        nodes.c.position,
        literal(1),
        nodes.c.fingerprint,
        case((nodes.c.position > 0, nodes.c.parent), else_=nodes.c.fingerprint),
        nodes.c.seen,
        literal(FINGERPRINT_BYTES),
        nodes.c.fingerprint,
        case((kept, literal(pack_sizes([0]), LargeBinary())), else_=nothing),
        nodes.c.content,
        case((kept, literal(b"", LargeBinary())), else_=nothing),
    ).where(some)
    columns = [column.name for column in segments.columns if column.name != "seq"]
    await connection.execute(insert(segments).from_select(columns, runs))
    references = select(nodes.c.tenant, nodes.c.content, nodes.c.fingerprint).where(some, kept)
    await connection.execute(insert(refs).from_select(list(refs.columns.keys()), references))


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
