"""What is kept once per tenant however many have it: long messages, heads and tools.

A content goes with the last segment, head or tools that refers to it. Whoever writes or deletes
them holds the log's lock alone.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select

from proxy.store.async_engine import AsyncConnection
from proxy.store.database import IN_LIST, AnyRow, Database, in_parts
from proxy.store.rows import Lookup, Rows
from proxy.store.schema import contents, extras, refs
from proxy.store.segments import in_sixteens

ASK_OVER_BYTES = 64 * 1024

STORED_CONTENTS = select(contents.c.key, contents.c.body).where(
    contents.c.tenant == bindparam("tenant"), contents.c.key.in_(bindparam("keys", expanding=True))
)
_STORED_KEYS = Lookup(
    select(contents.c.key).where(
        contents.c.tenant == bindparam("tenant"),
        contents.c.key.in_(bindparam("values", expanding=True)),
    )
)


class ContentRows:
    """Writes contents, and who refers to them."""

    def __init__(self, database: Database) -> None:
        """Nothing is written yet."""
        self._new = Rows(
            database.insert(contents).on_conflict_do_nothing(), ("tenant", "key", "bytes", "body")
        )
        self._refs = Rows(
            database.insert(refs).on_conflict_do_nothing(), ("tenant", "content", "last")
        )

    async def add(
        self, connection: AsyncConnection, of_tenants: Mapping[str, Mapping[bytes, bytes]]
    ) -> None:
        """Those that are not there yet. Long ones are not sent only to find that out."""
        rows: list[tuple[str, bytes, int, bytes]] = []
        for tenant, bodies in of_tenants.items():
            missing = set(bodies)
            asked = sorted(bodies) if sum(map(len, bodies.values())) > ASK_OVER_BYTES else []
            for part in in_parts(asked, IN_LIST):
                missing.difference_update(
                    key for (key,) in await _STORED_KEYS.rows(connection, tenant, part)
                )
            rows += [(tenant, key, len(bodies[key]), bodies[key]) for key in sorted(missing)]
        await self._new.write(connection, rows)

    async def refer(
        self, connection: AsyncConnection, references: Sequence[tuple[str, bytes, bytes]]
    ) -> None:
        """By tenant, key and the end of the segment that has it."""
        await self._refs.write(connection, references)


async def drop_references(
    connection: AsyncConnection, rows: Collection[AnyRow]
) -> list[tuple[str, bytes]]:
    """Of segments that were deleted; the contents, by tenant and key, that they referred to."""
    referred = [
        {"of_tenant": row.tenant, "of_content": key, "of_last": row.last}
        for row in rows
        for key in set(in_sixteens(row.content_keys))
    ]
    if referred:
        await connection.execute(_DROP_REFERENCE, referred)
    return [(each["of_tenant"], each["of_content"]) for each in referred]


_DROP_REFERENCE = delete(refs).where(
    refs.c.tenant == bindparam("of_tenant", type_=refs.c.tenant.type),
    refs.c.content == bindparam("of_content"),
    refs.c.last == bindparam("of_last"),
)


async def drop_unreferenced(
    connection: AsyncConnection, keys: Collection[tuple[str, bytes]]
) -> list[int]:
    """Delete those contents, by tenant and key, that nothing refers to any more; their sizes."""
    of_tenants: dict[str, set[bytes]] = {}
    for tenant, key in keys:
        of_tenants.setdefault(tenant, set()).add(key)
    sizes: list[int] = []
    for tenant, candidates in sorted(of_tenants.items()):
        for part in in_parts(sorted(candidates), IN_LIST):
            sizes += await _drop_unreferenced(connection, tenant, part)
    return sizes


async def _drop_unreferenced(
    connection: AsyncConnection, tenant: str, keys: Sequence[bytes]
) -> Sequence[int]:
    referred: set[Any] = set()
    for table in (refs, extras):
        statement = select(table.c.content).where(
            table.c.tenant == tenant, table.c.content.in_(keys)
        )
        referred.update((await connection.execute(statement.distinct())).scalars())
    deletion = delete(contents).where(
        contents.c.tenant == tenant, contents.c.key.in_([k for k in keys if k not in referred])
    )
    return (await connection.execute(deletion.returning(contents.c.bytes))).scalars().all()
