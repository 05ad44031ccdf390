"""Leases and runs in flight: rows that die by the database's clock, whoever forgets them."""

import json
import uuid
from collections.abc import Collection

from sqlalchemy import ColumnElement, Delete, Update, and_, delete, or_, select, update

from proxy.core.replacements import Scope
from proxy.store.async_engine import AsyncConnection
from proxy.store.database import Database
from proxy.store.schema import DatabaseNow, in_flight, leases
from proxy.store.store import FAILURE_SHARED_SECONDS, IN_FLIGHT_SECONDS, LEASE_SECONDS, Lease

# A lease that ended in failure stays for a while: in place of an owner it names the reason. No
# worker's name begins like this.
_FAILED = "failed:"


def _of_root(scope: Scope, root: bytes) -> ColumnElement[bool]:
    return and_(
        leases.c.tenant == scope.tenant,
        leases.c.upstream == scope.upstream,
        leases.c.model == scope.model,
        leases.c.root == root,
    )


def _held(lease: Lease) -> ColumnElement[bool]:
    return and_(
        _of_root(lease.scope, lease.root),
        leases.c.end_fingerprint == lease.end_fingerprint,
        leases.c.token == lease.token,
    )


def _is_failure() -> ColumnElement[bool]:
    return leases.c.owner.startswith(_FAILED, autoescape=True)


async def lease_is_ours(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the lease is live and was not taken over, as this transaction sees it."""
    statement = select(leases.c.token).where(_held(lease), leases.c.expires_at > DatabaseNow())
    return (await connection.execute(statement)).first() is not None


class LeaseRows:
    """The part of a store by which workers keep out of each other's way."""

    def __init__(self, database: Database) -> None:
        """Nothing is held yet."""
        self._database = database

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
        """Under the lock of (scope, root): a commit sees us or the one before, never both."""
        token = uuid.uuid4().hex
        is_free = leases.c.expires_at <= DatabaseNow()
        held = {
            "stop": end,
            "owner": owner,
            "token": token,
            "expires_at": DatabaseNow() + lease_seconds,
        }
        statement = (
            self._database.insert(leases)
            .values(
                tenant=scope.tenant,
                upstream=scope.upstream,
                model=scope.model,
                root=root,
                end_fingerprint=end_fingerprint,
                **held,
            )
            .on_conflict_do_update(
                index_elements=leases.primary_key.columns,
                set_=held,
                where=or_(is_free, _is_failure()) if over_failure else is_free,
            )
            .returning(leases.c.expires_at)
        )

        async def work(connection: AsyncConnection) -> float | None:
            await self._database.lock(connection, scope.tenant, scope.upstream, scope.model, root)
            row = (await connection.execute(statement)).first()
            return None if row is None else float(row.expires_at)

        expires_at = await self._database.write(work)
        if expires_at is None:
            return None
        return Lease(scope, root, end, end_fingerprint, owner, token, expires_at)

    async def renew(self, lease: Lease, lease_seconds: float = LEASE_SECONDS) -> bool:
        """An expired lease is lost, even when nobody has taken it yet."""
        statement = (
            update(leases)
            .where(_held(lease), leases.c.expires_at > DatabaseNow())
            .values(expires_at=DatabaseNow() + lease_seconds)
        )

        async def work(connection: AsyncConnection) -> bool:
            return (await connection.execute(statement)).rowcount == 1

        return await self._database.write(work)

    async def release(self, lease: Lease, *, failure: str | None = None) -> None:
        """Delete the row, or leave the failure in it, iff it still carries our token."""
        statement: Delete | Update = delete(leases).where(_held(lease))
        if failure is not None:
            told = {
                "owner": _FAILED + failure,
                "expires_at": DatabaseNow() + FAILURE_SHARED_SECONDS,
            }
            statement = update(leases).where(_held(lease)).values(**told)

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._database.write(work)

    async def failure(self, scope: Scope, root: bytes, end_fingerprint: bytes) -> str | None:
        """What was left in the row of that end, until it expires."""
        statement = select(leases.c.owner).where(
            _of_root(scope, root),
            leases.c.end_fingerprint == end_fingerprint,
            leases.c.expires_at > DatabaseNow(),
            _is_failure(),
        )

        async def work(connection: AsyncConnection) -> str | None:
            owner = (await connection.execute(statement)).scalar()
            return None if owner is None else str(owner).removeprefix(_FAILED)

        return await self._database.read(work)

    async def live_leases(self, scope: Scope, root: bytes) -> tuple[Lease, ...]:
        """Those that have not expired, by their end."""
        statement = (
            select(leases)
            .where(_of_root(scope, root), leases.c.expires_at > DatabaseNow(), ~_is_failure())
            .order_by(leases.c.stop, leases.c.end_fingerprint)
        )

        async def work(connection: AsyncConnection) -> tuple[Lease, ...]:
            return tuple(
                Lease(
                    scope, root, row.stop, row.end_fingerprint, row.owner, row.token, row.expires_at
                )
                for row in await connection.execute(statement)
            )

        return await self._database.read(work)

    async def publish_in_flight(
        self,
        worker: str,
        runs: Collection[tuple[str, str]],
        *,
        lease_seconds: float = IN_FLIGHT_SECONDS,
    ) -> None:
        """One row per worker, replaced as a whole; without runs it is deleted."""
        if runs:
            told = {
                "runs": json.dumps(sorted(set(runs))),
                "expires_at": DatabaseNow() + lease_seconds,
            }
            insertion = self._database.insert(in_flight).values(worker=worker, **told)
            statement = insertion.on_conflict_do_update(index_elements=["worker"], set_=told)

            async def work(connection: AsyncConnection) -> None:
                await connection.execute(statement)
        else:

            async def work(connection: AsyncConnection) -> None:
                await connection.execute(delete(in_flight).where(in_flight.c.worker == worker))

        await self._database.write(work)

    async def in_flight(
        self, tenant: str, conversation: str, *, except_worker: str | None = None
    ) -> bool:
        """A few rows, one per worker, looked through here."""
        statement = select(in_flight.c.worker, in_flight.c.runs).where(
            in_flight.c.expires_at > DatabaseNow()
        )

        async def work(connection: AsyncConnection) -> bool:
            rows = (await connection.execute(statement)).all()
            return any(
                [tenant, conversation] in json.loads(row.runs)
                for row in rows
                if row.worker != except_worker
            )

        return await self._database.read(work)
