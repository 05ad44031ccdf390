"""Replacements in the database, and what this process remembers of them.

A row never changes but for `revoked` and the time of its last use, so payloads are cached for ever
by id. A whole answer is cached only while this process alone writes to the database.
"""

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from cachetools import LRUCache, TTLCache
from sqlalchemy import and_, bindparam, case, insert, null, select, update

from proxy.core.errors import HistoryChanged, LeaseLost
from proxy.core.replacements import NewReplacement, Replacement, ReplacementKind, Scope
from proxy.store.async_engine import AsyncConnection
from proxy.store.by_hand import note_revocation
from proxy.store.database import IN_LIST, AnyRow, Database, in_parts
from proxy.store.leases import lease_is_ours
from proxy.store.payloads import Payloads
from proxy.store.roots import Roots
from proxy.store.schema import DatabaseNow, replacements
from proxy.store.store import Lease, Recorded

REMEMBERED_ROWS = 200_000  # some 300 bytes each
CROWDED_ROWS = 500  # more than this under one root (chats that begin alike): look up by the chain
TOUCH_SECONDS = 3600.0  # often enough for a retention that counts in days
TOUCHED_IDS = 200_000

Chain = Set[bytes] | Mapping[bytes, Any]

_LIGHT = (
    replacements.c.id,
    replacements.c.seq,
    replacements.c.kind,
    replacements.c.start,
    replacements.c.stop,
    replacements.c.end_fingerprint,
    replacements.c.revoked,
)
_OF_ROOT = and_(
    replacements.c.tenant == bindparam("tenant"),
    replacements.c.root == bindparam("root"),
    replacements.c.upstream == bindparam("upstream"),
    replacements.c.model == bindparam("model"),
)
_IS_NEWS = replacements.c.seq > bindparam("known")
# One statement for the hot path: a payload comes along iff its row is news to this process.
_NEWS = (
    select(*_LIGHT, case((_IS_NEWS, replacements.c.payload), else_=null()).label("payload"))
    .where(_OF_ROOT)
    .order_by(replacements.c.seq)
    .limit(CROWDED_ROWS + 1)
)
_IN_CHAIN = (
    select(*_LIGHT, null().label("payload"))
    .where(_OF_ROOT, replacements.c.end_fingerprint.in_(bindparam("chain", expanding=True)))
    .order_by(replacements.c.seq)
)
_BY_ID = select(
    *_LIGHT, *(replacements.c[name] for name in ("tenant", "upstream", "model", "root", "payload"))
).where(replacements.c.tenant == bindparam("tenant"), replacements.c.id == bindparam("id"))
# Ends of every other scope of the tenant, the best first: what reaches furthest, then the newest.
_OTHER_SCOPES = (
    select(replacements.c.upstream, replacements.c.model, replacements.c.end_fingerprint)
    .where(
        replacements.c.tenant == bindparam("tenant"),
        replacements.c.root == bindparam("root"),
        (replacements.c.upstream != bindparam("upstream"))
        | (replacements.c.model != bindparam("model")),
        replacements.c.revoked.is_(False),
        replacements.c.kind.in_((ReplacementKind.SUMMARY, ReplacementKind.DIGEST)),
    )
    .order_by(replacements.c.stop.desc(), replacements.c.seq.desc())
)


@dataclass(frozen=True, slots=True)
class _Known:
    """The rows of one root without their payloads; `fresh` when no query could say more."""

    rows: tuple[Replacement, ...]
    fresh: bool


class ReplacementRows:
    """The part of a store that holds replacements."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database
        self._roots = Roots(database)
        self._payloads = Payloads(database)
        self._known: LRUCache[tuple[Scope, bytes], _Known] = LRUCache(
            REMEMBERED_ROWS, getsizeof=lambda known: len(known.rows) + 1
        )
        self._crowded: LRUCache[tuple[Scope, bytes], bool] = LRUCache(10_000)
        self._touched: TTLCache[str, bool] = TTLCache(TOUCHED_IDS, TOUCH_SECONDS)
        self._to_touch: set[str] = set()
        self._changes = 0  # grows with every change of ours, so that a slow read is not cached

    def recorded(self, scope: Scope, root: bytes) -> Recorded:
        """By one look-up, or by none where memory knows."""
        remembered = self._roots.remembered(root)
        if remembered is not None:
            return remembered
        known = self._known.get((scope, root))
        if known is not None and known.rows:
            return Recorded()
        return self._roots.looked_up(scope.tenant, root)

    async def replacements(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """At most one query: none when the cached answer holds, two after a payload was evicted."""
        known = self._known.get((scope, root))
        if known is not None and known.fresh and self._database.sole:
            rows = _matching(known.rows, chain)
        elif (read := self._read_at_once(scope, root, known)) is not None:
            rows = _matching(read, chain)
        else:
            rows = await self._database.read(
                lambda connection: self._read(connection, scope, root, chain)
            )
        self._used(rows)
        return await self._payloads.filled(rows)

    def remembered(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """What was last seen, without those whose payload had to make room."""
        known = self._known.get((scope, root))
        return () if known is None else self._payloads.kept(_matching(known.rows, chain))

    async def adoptable(
        self, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """All of one scope, since those of several need not nest."""

        async def work(connection: AsyncConnection) -> tuple[Replacement, ...]:
            looked_up = _as_set(chain)
            answer = await connection.execute(_OTHER_SCOPES, _root_parameters(scope, root))
            for row in answer:
                if row.end_fingerprint in looked_up:
                    other = Scope(scope.tenant, row.upstream, row.model)
                    return await self._read(connection, other, root, looked_up)
            return ()

        rows = await self._database.read(work)
        return await self._payloads.filled([row for row in rows if _applies(row)])

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
        """Compare and set, in one transaction that holds the lock of (scope, root)."""
        looked_up = _as_set(chain)
        self._roots.replacing(root)

        async def work(connection: AsyncConnection) -> tuple[Replacement, ...]:
            await self._database.lock(connection, scope.tenant, scope.upstream, scope.model, root)
            if lease is not None and not await lease_is_ours(connection, lease):
                raise LeaseLost("The lease of this compaction expired or was taken over.")
            rows = await self._read(connection, scope, root, looked_up)
            backoffs = {row.id for row in rows if row.kind is ReplacementKind.BACKOFF}
            if {row.id for row in rows if _applies(row)} != set(planned_on) - backoffs:
                raise HistoryChanged("Another compaction of this history was stored meanwhile.")
            return tuple([await _insert(connection, scope, root, one, conversation) for one in new])

        stored = await self._database.write(work, ended=lambda: self._changed(scope, root, ()))
        for replacement in stored:
            self._payloads.keep(replacement.id, replacement.payload)
        self._changed(scope, root, stored)
        return stored

    async def revoke(self, tenant: str, replacement_id: str) -> Replacement | None:
        """Under the same lock as `commit`, so that no commit is planned on a revoked one."""
        places: list[tuple[Scope, bytes]] = []

        async def work(connection: AsyncConnection) -> tuple[Scope, bytes, Replacement] | None:
            parameters = {"tenant": tenant, "id": replacement_id}
            row = (await connection.execute(_BY_ID, parameters)).first()
            if row is None:
                return None
            await self._database.lock(connection, row.tenant, row.upstream, row.model, row.root)
            await connection.execute(
                update(replacements).where(replacements.c.seq == row.seq).values(revoked=True)
            )
            await note_revocation(self._database, connection, tenant, replacement_id)
            revoked = replace(_from_row(row), payload=json.loads(row.payload), revoked=True)
            places.append((Scope(tenant, row.upstream, row.model), row.root))
            return *places[-1], revoked

        def doubt() -> None:
            for scope, root in places:
                self._changed(scope, root, ())

        found = await self._database.write(work, ended=doubt)
        if found is None:
            return None
        scope, root, revoked = found
        self._changed(scope, root, (revoked,))
        return revoked

    async def touch(self, ids: Collection[str]) -> None:
        """Mark replacements as used now."""
        if ids:
            await self._database.write(lambda connection: _touch(connection, ids))

    def forget_answers(self) -> None:
        """Rows were deleted: nothing that is remembered holds any more."""
        self._changes += 1
        self._known.clear()

    async def touch_used(self, connection: AsyncConnection) -> Collection[str]:
        """Write down the uses that were not written yet; `touched` says that it is done."""
        ids = tuple(self._to_touch)
        await _touch(connection, ids)
        return ids

    def touched(self, ids: Iterable[str]) -> None:
        """The transaction that wrote these uses is committed."""
        self._to_touch.difference_update(ids)

    def _used(self, rows: Iterable[Replacement]) -> None:
        for row in rows:
            if row.id not in self._touched:
                self._touched[row.id] = True
                self._to_touch.add(row.id)

    async def _read(
        self, connection: AsyncConnection, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        """The rows that match, without payloads, which are in the cache afterwards."""
        key = (scope, root)
        if key in self._crowded:
            return await self._read_crowded(connection, scope, root, chain)
        changes = self._changes
        parameters = _news_parameters(scope, root, self._known.get(key))
        found = (await connection.execute(_NEWS, parameters)).all()
        if len(found) > CROWDED_ROWS:
            self._crowded[key] = True
            return await self._read_crowded(connection, scope, root, chain)
        rows = tuple(map(self._keep, found))
        if changes == self._changes:
            self._known[key] = _Known(rows, fresh=self._database.sole)
        return _matching(rows, chain)

    def _read_at_once(
        self, scope: Scope, root: bytes, known: _Known | None
    ) -> tuple[Replacement, ...] | None:
        """All rows of a root of which some are known, so that few are news."""
        key = (scope, root)
        if known is None or not known.rows or key in self._crowded:
            return None
        found = self._database.rows_at_once(_NEWS, _news_parameters(scope, root, known))
        if found is None or len(found) > CROWDED_ROWS:
            return None
        rows = tuple(map(self._keep, found))
        self._known[key] = _Known(rows, fresh=self._database.sole)
        return rows

    async def _read_crowded(
        self, connection: AsyncConnection, scope: Scope, root: bytes, chain: Collection[bytes]
    ) -> tuple[Replacement, ...]:
        fingerprints = list(chain)
        rows: list[Replacement] = []
        for part in in_parts(fingerprints, IN_LIST):
            answer = await connection.execute(
                _IN_CHAIN, {**_root_parameters(scope, root), "chain": part}
            )
            rows.extend(self._keep(row) for row in answer)
        rows.sort(key=lambda row: row.order)
        self._known[scope, root] = _Known(tuple(rows), fresh=False)
        return tuple(rows)

    def _keep(self, row: AnyRow | tuple[Any, ...]) -> Replacement:
        id, payload = row[0], row[-1]
        if payload is not None:
            self._payloads.keep(id, json.loads(payload), len(payload))
        return _from_row(row)

    def _changed(self, scope: Scope, root: bytes, rows: Sequence[Replacement]) -> None:
        """Remember our own change at once; the next read asks the database again."""
        self._changes += 1
        known = self._known.get((scope, root))
        merged = {row.id: row for row in (known.rows if known is not None else ())}
        merged.update((row.id, replace(row, payload={})) for row in rows)
        ordered = tuple(sorted(merged.values(), key=lambda row: row.order))
        self._known[scope, root] = _Known(ordered, fresh=False)


def _applies(row: Replacement) -> bool:
    return not row.revoked and row.kind is not ReplacementKind.BACKOFF


def _as_set(chain: Collection[bytes]) -> Chain:
    return chain if isinstance(chain, (Set, Mapping)) else frozenset(chain)


def _matching(rows: Sequence[Replacement], chain: Collection[bytes]) -> tuple[Replacement, ...]:
    if isinstance(chain, tuple):
        # A fingerprint depends on all before it: it has one place in a chain, if any.
        return tuple(
            row
            for row in rows
            if 0 < row.end <= len(chain) and chain[row.end - 1] == row.end_fingerprint
        )
    looked_up = _as_set(chain)
    return tuple(row for row in rows if row.end_fingerprint in looked_up)


def _news_parameters(scope: Scope, root: bytes, known: _Known | None) -> dict[str, Any]:
    newest = known.rows[-1].order if known is not None and known.rows else 0
    return {**_root_parameters(scope, root), "known": newest}


def _root_parameters(scope: Scope, root: bytes) -> dict[str, Any]:
    return {
        "tenant": scope.tenant,
        "upstream": scope.upstream,
        "model": scope.model,
        "root": root,
    }


def _from_row(row: AnyRow | tuple[Any, ...]) -> Replacement:
    """A row that begins with `_LIGHT`, without its payload."""
    id, order, kind, start, end, end_fingerprint, revoked = row[: len(_LIGHT)]
    return Replacement(
        id, order, ReplacementKind(kind), start, end, end_fingerprint, {}, bool(revoked)
    )


async def _insert(
    connection: AsyncConnection, scope: Scope, root: bytes, new: NewReplacement, conversation: str
) -> Replacement:
    id, payload = uuid.uuid4().hex, json.dumps(new.payload)
    statement = (
        insert(replacements)
        .values(
            **_root_parameters(scope, root),
            id=id,
            kind=new.kind.value,
            start=new.start,
            stop=new.end,
            end_fingerprint=new.end_fingerprint,
            payload=payload,
            conversation=conversation,
            revoked=False,
            made_at=DatabaseNow(),
            used_at=DatabaseNow(),
        )
        .returning(replacements.c.seq)
    )
    order = (await connection.execute(statement)).scalar_one()
    # Decoded again, so that the maker sees exactly what every later reader will see.
    return Replacement(
        id, order, new.kind, new.start, new.end, new.end_fingerprint, json.loads(payload)
    )


async def _touch(connection: AsyncConnection, ids: Collection[str]) -> None:
    for part in in_parts(sorted(ids), IN_LIST):
        statement = update(replacements).where(replacements.c.id.in_(part))
        await connection.execute(statement.values(used_at=DatabaseNow()))
