"""Leases and runs in flight, on SQLite and PostgreSQL."""

import asyncio
from dataclasses import replace

from proxy.store.sql import SqlStore
from proxy.store.store import Lease, Retention
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, chain_of, eventually

CHAIN = chain_of([f"message {number}" for number in range(8)])
ROOT = CHAIN[0]


async def acquire(
    store: SqlStore, end: int = 4, *, owner: str = "worker-1", seconds: float = 30.0
) -> Lease | None:
    return await store.acquire(
        SCOPE, ROOT, end=end, end_fingerprint=CHAIN[end - 1], owner=owner, lease_seconds=seconds
    )


class TestAcquire:
    async def test_a_live_lease_blocks_every_other_worker(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        lease = await acquire(store)
        assert lease is not None
        assert (lease.end, lease.end_fingerprint, lease.owner) == (4, CHAIN[3], "worker-1")
        assert await acquire(another_store(), owner="worker-2") is None
        assert await acquire(store) is None

    async def test_of_many_at_once_exactly_one_gets_it(self, another_store: OpenStore) -> None:
        answers = await asyncio.gather(*(acquire(another_store()) for _ in range(6)))
        assert len([lease for lease in answers if lease is not None]) == 1

    async def test_another_end_or_scope_or_root_is_free(self, store: SqlStore) -> None:
        assert await acquire(store) is not None
        assert await acquire(store, 5) is not None
        for scope, root in (
            (SCOPE._replace(tenant="tenant-b"), ROOT),
            (SCOPE._replace(model="model-2"), ROOT),
            (SCOPE, CHAIN[1]),
        ):
            lease = await store.acquire(
                scope, root, end=4, end_fingerprint=CHAIN[3], owner="worker-1"
            )
            assert lease is not None

    async def test_an_expired_lease_does_not_block(self, store: SqlStore) -> None:
        stale = await acquire(store, seconds=-1)
        taken = await acquire(store, owner="worker-2")
        assert stale is not None
        assert taken is not None
        assert taken.token != stale.token
        assert [lease.owner for lease in await store.live_leases(SCOPE, ROOT)] == ["worker-2"]

    async def test_it_expires_by_the_clock_of_the_database(self, store: SqlStore) -> None:
        lease = await acquire(store, seconds=0.2)
        assert lease is not None

        async def taken() -> Lease | None:
            return await acquire(store, owner="worker-2")

        await eventually(taken)
        (live,) = await store.live_leases(SCOPE, ROOT)
        assert live.expires_at > lease.expires_at


class TestFailures:
    async def test_a_failure_is_told_to_every_worker_and_blocks_until_it_expires(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        lease = await acquire(store)
        assert lease is not None
        other = another_store()
        assert await other.failure(SCOPE, ROOT, CHAIN[3]) is None
        await store.release(lease, failure="summary-timeout")
        assert await other.failure(SCOPE, ROOT, CHAIN[3]) == "summary-timeout"
        assert await other.failure(SCOPE, ROOT, CHAIN[4]) is None
        assert await acquire(other, owner="worker-2") is None
        assert await other.live_leases(SCOPE, ROOT) == ()

    async def test_who_asks_by_hand_takes_it_over(self, store: SqlStore) -> None:
        lease = await acquire(store)
        assert lease is not None
        await store.release(lease, failure="summary-failed")
        again = await store.acquire(
            SCOPE, ROOT, end=4, end_fingerprint=CHAIN[3], owner="worker-2", over_failure=True
        )
        assert again is not None
        assert await store.failure(SCOPE, ROOT, CHAIN[3]) is None
        taken = await store.acquire(
            SCOPE, ROOT, end=4, end_fingerprint=CHAIN[3], owner="worker-3", over_failure=True
        )
        assert taken is None


class TestKeep:
    async def test_renewing_makes_it_last(self, store: SqlStore) -> None:
        lease = await acquire(store, seconds=5)
        assert lease is not None
        assert await store.renew(lease, 600)
        (live,) = await store.live_leases(SCOPE, ROOT)
        assert live == replace(lease, expires_at=live.expires_at)
        assert live.expires_at > lease.expires_at + 500

    async def test_only_its_token_renews_and_releases(self, store: SqlStore) -> None:
        lease = await acquire(store)
        assert lease is not None
        forged = replace(lease, token="guessed")
        assert not await store.renew(forged)
        await store.release(forged)
        assert await store.live_leases(SCOPE, ROOT) == (lease,)

    async def test_an_expired_one_is_lost_even_when_nobody_took_it(self, store: SqlStore) -> None:
        lease = await acquire(store, seconds=-1)
        assert lease is not None
        assert not await store.renew(lease)
        assert await store.live_leases(SCOPE, ROOT) == ()

    async def test_the_former_owner_cannot_release_what_was_taken_over(
        self, store: SqlStore
    ) -> None:
        stale = await acquire(store, seconds=-1)
        taken = await acquire(store, owner="worker-2")
        assert stale is not None
        assert not await store.renew(stale)
        await store.release(stale)
        assert await store.live_leases(SCOPE, ROOT) == (taken,)

    async def test_released_it_is_free_at_once(self, store: SqlStore) -> None:
        lease = await acquire(store)
        assert lease is not None
        await store.release(lease)
        assert await store.live_leases(SCOPE, ROOT) == ()
        assert await acquire(store, owner="worker-2") is not None

    async def test_the_token_is_not_shown(self, store: SqlStore) -> None:
        lease = await acquire(store)
        assert lease is not None
        assert lease.token not in repr(lease)

    async def test_a_sweep_takes_expired_rows_only(self, store: SqlStore) -> None:
        await acquire(store, 3, seconds=-1)
        live = await acquire(store, 4)
        await store.sweep(Retention())
        assert await store.live_leases(SCOPE, ROOT) == (live,)


class TestInFlight:
    async def test_what_one_worker_publishes_all_others_see(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        await store.publish_in_flight("worker-1", [("tenant-a", "one"), ("tenant-a", "two")])
        other = another_store()
        assert await other.in_flight("tenant-a", "one")
        assert not await other.in_flight("tenant-a", "three")
        assert not await other.in_flight("tenant-b", "one")

    async def test_a_worker_may_leave_its_own_row_aside(self, store: SqlStore) -> None:
        await store.publish_in_flight("worker-1", [("tenant-a", "one")])
        assert not await store.in_flight("tenant-a", "one", except_worker="worker-1")
        await store.publish_in_flight("worker-2", [("tenant-a", "one")])
        assert await store.in_flight("tenant-a", "one", except_worker="worker-1")

    async def test_the_next_publication_replaces_the_last(self, store: SqlStore) -> None:
        await store.publish_in_flight("worker-1", [("tenant-a", "one")])
        await store.publish_in_flight("worker-1", [("tenant-a", "two")])
        assert not await store.in_flight("tenant-a", "one")
        assert await store.in_flight("tenant-a", "two")
        await store.publish_in_flight("worker-1", [])
        assert not await store.in_flight("tenant-a", "two")

    async def test_a_dead_workers_runs_are_forgotten(self, store: SqlStore) -> None:
        await store.publish_in_flight("worker-1", [("tenant-a", "one")], lease_seconds=-1)
        assert not await store.in_flight("tenant-a", "one")
