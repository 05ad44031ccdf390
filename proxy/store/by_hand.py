"""What people did: revocations in their order, compactions for later, and what Tidegate itself said
in a chat. Small tables beside the replacements, none of them on the way of an ordinary chat."""

import json
import time
from collections.abc import Collection, Mapping
from typing import Any

from cachetools import LRUCache
from sqlalchemy import bindparam, delete, exists, func, select, update

from proxy.core.generations import Revocation
from proxy.store.async_engine import AsyncConnection
from proxy.store.database import IN_LIST, Database, in_parts
from proxy.store.schema import (
    DatabaseNow,
    answers,
    replacements,
    revocations,
    scheduled,
    stored_name,
)

NEWS_SECONDS = 2.0  # how late another worker may learn of a compaction for later
ANSWERS_REMEMBERED = 100_000

_NEWEST_ORDER = select(func.coalesce(func.max(replacements.c.seq), 0)).scalar_subquery()
_REVOKED = select(revocations).where(
    revocations.c.tenant == bindparam("tenant"),
    revocations.c.replacement.in_(bindparam("ids", expanding=True)),
)
_KNOWN = select(answers.c.digest).where(
    answers.c.tenant == bindparam("tenant"),
    answers.c.digest.in_(bindparam("digests", expanding=True)),
)
_ANY_DUE = select(exists().select_from(scheduled))
_ALL_DUE = select(scheduled.c.tenant, scheduled.c.conversation)


async def note_revocation(
    database: Database, connection: AsyncConnection, tenant: str, replacement_id: str
) -> None:
    """In the transaction that revokes; revoking once more changes nothing."""
    statement = (
        database.insert(revocations)
        .values(
            tenant=tenant,
            replacement=replacement_id,
            after_order=_NEWEST_ORDER,
            made_at=DatabaseNow(),
        )
        .on_conflict_do_nothing(index_elements=["replacement"])
    )
    await connection.execute(statement)


async def drop_revocations(connection: AsyncConnection, ids: Collection[str]) -> None:
    """In the transaction that deletes these replacements, or after it."""
    for part in in_parts(sorted(ids), IN_LIST):
        await connection.execute(delete(revocations).where(revocations.c.replacement.in_(part)))


class ByHandRows:
    """The part of a store that holds what people did."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database
        self._scheduled_changes = 0  # grows with each of ours, so that a slow read is not kept
        self._due: frozenset[tuple[str, str]] | None = None  # None: to be asked for
        self._due_until = 0.0
        self._answers: LRUCache[tuple[str, bytes], bool] = LRUCache(ANSWERS_REMEMBERED)

    async def revocations(self, tenant: str, ids: Collection[str]) -> Mapping[str, Revocation]:
        """By the id of what was revoked."""
        listed = sorted(ids)

        async def work(connection: AsyncConnection) -> Mapping[str, Revocation]:
            found: dict[str, Revocation] = {}
            for part in in_parts(listed, IN_LIST):
                for row in await connection.execute(_REVOKED, {"tenant": tenant, "ids": part}):
                    found[row.replacement] = Revocation(row.replacement, row.seq, row.after_order)
            return found

        return await self._database.read(work) if listed else {}

    async def keep_answer(self, tenant: str, conversation: str, digest: bytes) -> None:
        """Known at once in this process, whatever becomes of the database."""
        self._answers[tenant, digest] = True
        statement = (
            self._database.insert(answers)
            .values(tenant=tenant, digest=digest, conversation=conversation, used_at=DatabaseNow())
            .on_conflict_do_update(
                index_elements=answers.primary_key.columns, set_={"used_at": DatabaseNow()}
            )
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._database.write(work)

    async def known_answers(self, tenant: str, digests: Collection[bytes]) -> frozenset[bytes]:
        """From memory where it was known before; what is found lives on for its use."""
        known = {digest for digest in digests if (tenant, digest) in self._answers}
        unknown = sorted(set(digests) - known)
        if not unknown:
            return frozenset(known)

        async def work(connection: AsyncConnection) -> frozenset[bytes]:
            found: set[bytes] = set()
            for part in in_parts(unknown, IN_LIST):
                answer = await connection.execute(_KNOWN, {"tenant": tenant, "digests": part})
                found.update(answer.scalars())
            return frozenset(found)

        found = await self._database.read(work)
        if found:
            await self._database.write(lambda connection: _use(connection, tenant, found))
        self._answers.update({(tenant, digest): True for digest in found})
        return frozenset(known) | found

    async def schedule(self, tenant: str, conversation: str, options: Mapping[str, Any]) -> None:
        """One for each conversation: the last one asked for."""
        asked = {"options": json.dumps(dict(options)), "made_at": DatabaseNow()}
        statement = (
            self._database.insert(scheduled)
            .values(tenant=tenant, conversation=conversation, **asked)
            .on_conflict_do_update(index_elements=scheduled.primary_key.columns, set_=asked)
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._database.write(work, ended=self._ask_again)

    async def is_scheduled(self, tenant: str, conversation: str) -> bool:
        """From memory: what is due, of everyone, is read every few seconds at most, and where no
        other process can ask for any, only after we did."""
        due = self._due
        if due is None or (not self._database.sole and time.monotonic() >= self._due_until):
            # Meanwhile the others go by what was known.
            self._due_until = time.monotonic() + NEWS_SECONDS
            due = await self._read_due()
        return bool(due) and (stored_name(tenant), stored_name(conversation)) in due

    async def _read_due(self) -> frozenset[tuple[str, str]]:
        changes = self._scheduled_changes

        async def work(connection: AsyncConnection) -> frozenset[tuple[str, str]]:
            return frozenset(map(tuple, await connection.execute(_ALL_DUE)))

        none_due = self._database.rows_at_once(_ANY_DUE, {}) == [(0,)]
        due = frozenset() if none_due else await self._database.read(work)
        if changes == self._scheduled_changes:
            self._due = due
        return due

    def _ask_again(self) -> None:
        self._scheduled_changes += 1
        self._due = None

    async def take_scheduled(self, tenant: str, conversation: str) -> Mapping[str, Any] | None:
        """Deleting it is what takes it: of several workers one succeeds."""
        statement = (
            delete(scheduled)
            .where(scheduled.c.tenant == tenant, scheduled.c.conversation == conversation)
            .returning(scheduled.c.options)
        )

        async def work(connection: AsyncConnection) -> Mapping[str, Any] | None:
            options = (await connection.execute(statement)).scalar_one_or_none()
            return None if options is None else json.loads(options)

        return await self._database.write(work, ended=self._ask_again)


async def _use(connection: AsyncConnection, tenant: str, digests: Collection[bytes]) -> None:
    await connection.execute(
        update(answers)
        .where(answers.c.tenant == tenant, answers.c.digest.in_(sorted(digests)))
        .values(used_at=DatabaseNow())
    )
