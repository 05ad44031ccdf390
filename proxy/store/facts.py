"""Small facts that all workers share: secrets made once, and what providers showed about models."""

import json
import secrets as randomness
from collections.abc import Mapping, Sequence
from typing import Any

from cachetools import TTLCache
from sqlalchemy import and_, bindparam, delete, select

from proxy.core.replacements import Scope
from proxy.store.async_engine import AsyncConnection
from proxy.store.database import Database
from proxy.store.schema import DatabaseNow, learned, secrets
from proxy.store.store import Learned

SECRET_BYTES = 32
NEWS_SECONDS = 5.0  # how late another worker's lesson may be known here
CACHED_SCOPES = 10_000

_NOT_EXPIRED = learned.c.expires_at > DatabaseNow()
_LEARNED = select(learned.c.kind, learned.c.value, learned.c.expires_at).where(
    learned.c.tenant == bindparam("tenant"),
    learned.c.upstream == bindparam("upstream"),
    learned.c.model == bindparam("model"),
    _NOT_EXPIRED,
)


class FactRows:
    """The part of a store that holds secrets and lessons."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database
        self._secrets: dict[str, bytes] = {}
        self._learned: TTLCache[Scope, Mapping[str, Learned]] = TTLCache(
            CACHED_SCOPES, NEWS_SECONDS
        )

    async def secret(self, name: str) -> bytes:
        """Insert if absent, then read: whoever was first is right."""
        if name in self._secrets:
            return self._secrets[name]
        insertion = self._database.insert(secrets).on_conflict_do_nothing()
        statement = select(secrets.c.value).where(secrets.c.name == name)

        async def work(connection: AsyncConnection) -> bytes:
            made = randomness.token_bytes(SECRET_BYTES)
            await connection.execute(insertion, {"name": name, "value": made})
            return bytes((await connection.execute(statement)).scalar_one())

        self._secrets[name] = await self._database.write(work)
        return self._secrets[name]

    async def learn(self, scope: Scope, kind: str, value: Any, *, ttl_seconds: float) -> None:
        """In place of an earlier value of that kind."""
        told = {"value": json.dumps(value), "expires_at": DatabaseNow() + ttl_seconds}
        insertion = self._database.insert(learned).values(
            tenant=scope.tenant, upstream=scope.upstream, model=scope.model, kind=kind, **told
        )
        statement = insertion.on_conflict_do_update(
            index_elements=learned.primary_key.columns, set_=told
        )

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._database.write(work)
        self._learned.pop(scope, None)

    async def learned(self, scope: Scope) -> Mapping[str, Learned]:
        """Asked of the database every few seconds at most."""
        known = self._learned.get(scope)
        if known is not None:
            return known
        parameters = {"tenant": scope.tenant, "upstream": scope.upstream, "model": scope.model}

        async def work(connection: AsyncConnection) -> Sequence[tuple[Any, ...]]:
            return (await connection.execute(_LEARNED, parameters)).all()

        rows = self._database.rows_at_once(_LEARNED, parameters)
        if rows is None:
            rows = await self._database.read(work)
        self._learned[scope] = known = {
            kind: Learned(scope, kind, json.loads(value), expires_at)
            for kind, value, expires_at in rows
        }
        return known

    async def all_learned(self, tenant: str | None) -> tuple[Learned, ...]:
        """Of one tenant, or of all for the operator."""
        statement = select(learned).where(_NOT_EXPIRED)
        if tenant is not None:
            statement = statement.where(learned.c.tenant == tenant)
        statement = statement.order_by(learned.c.upstream, learned.c.model, learned.c.kind)

        async def work(connection: AsyncConnection) -> tuple[Learned, ...]:
            return tuple(
                Learned(
                    Scope(row.tenant, row.upstream, row.model),
                    row.kind,
                    json.loads(row.value),
                    row.expires_at,
                )
                for row in await connection.execute(statement)
            )

        return await self._database.read(work)

    async def forget_learned(self, tenant: str, model: str, kind: str | None = None) -> int:
        """On every upstream of the tenant."""
        chosen = and_(learned.c.tenant == tenant, learned.c.model == model)
        if kind is not None:
            chosen = and_(chosen, learned.c.kind == kind)

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(delete(learned).where(chosen))).rowcount

        dropped = await self._database.write(work)
        self._learned.clear()
        return dropped
