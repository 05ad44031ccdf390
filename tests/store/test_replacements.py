"""Who may add a replacement, and who sees it: the same on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.core.errors import HistoryChanged, LeaseLost
from proxy.core.replacements import NewReplacement, Replacement, ReplacementKind, Scope
from proxy.store import payloads, schema
from proxy.store import replacements as module
from proxy.store.database import Database
from proxy.store.sql import SqlStore
from proxy.store.store import Lease, Retention
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, chain_of, eventually, new_of

TEXTS = [f"message {number}" for number in range(12)]
CHAIN = chain_of(TEXTS)
ROOT = CHAIN[0]


async def commit(
    store: SqlStore,
    *new: NewReplacement,
    planned_on: Sequence[Replacement] = (),
    scope: Scope = SCOPE,
    chain: Sequence[bytes] = CHAIN,
    lease: Lease | None = None,
) -> tuple[Replacement, ...]:
    return await store.commit(
        scope,
        chain[0],
        chain,
        planned_on=[row.id for row in planned_on],
        new=new,
        lease=lease,
        conversation="conversation-1",
    )


async def lease_on(store: SqlStore, end: int, *, seconds: float = 30.0) -> Lease:
    lease = await store.acquire(
        SCOPE, ROOT, end=end, end_fingerprint=CHAIN[end - 1], owner="worker", lease_seconds=seconds
    )
    assert lease is not None
    return lease


class TestCommit:
    async def test_what_is_committed_is_read_by_every_worker(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        stored = await commit(store, new_of(CHAIN, 4), new_of(CHAIN, 6))
        assert [row.end for row in stored] == [4, 6]
        assert stored[0].order < stored[1].order
        assert await store.replacements(SCOPE, ROOT, CHAIN) == stored
        assert await another_store().replacements(SCOPE, ROOT, CHAIN) == stored

    async def test_a_payload_comes_back_as_every_reader_sees_it(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        """Lone surrogates, NUL, big integers; tuples are lists from the start."""
        payload = {"summary": "cut \ud83d here \0", "kept": (1, 2), "n": 10**30}
        new = NewReplacement(ReplacementKind.SUMMARY, 0, 4, CHAIN[3], payload)
        (stored,) = await commit(store, new)
        assert stored.payload == {"summary": "cut \ud83d here \0", "kept": [1, 2], "n": 10**30}
        assert (await another_store().replacements(SCOPE, ROOT, CHAIN)) == (stored,)

    async def test_of_two_commits_on_one_plan_exactly_one_wins(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        others = [another_store() for _ in range(4)]
        answers = await asyncio.gather(
            *(commit(other, new_of(CHAIN, 4, text=f"{n}")) for n, other in enumerate(others)),
            return_exceptions=True,
        )
        won = [answer for answer in answers if isinstance(answer, tuple)]
        assert len(won) == 1
        assert all(isinstance(answer, (tuple, HistoryChanged)) for answer in answers)
        assert await store.replacements(SCOPE, ROOT, CHAIN) == won[0]

    async def test_the_loser_changes_nothing_and_can_plan_again(self, store: SqlStore) -> None:
        first = await commit(store, new_of(CHAIN, 4))
        with pytest.raises(HistoryChanged):
            await commit(store, new_of(CHAIN, 6), new_of(CHAIN, 8))
        assert await store.replacements(SCOPE, ROOT, CHAIN) == first
        second = await commit(store, new_of(CHAIN, 6), planned_on=first)
        assert await store.replacements(SCOPE, ROOT, CHAIN) == first + second

    async def test_a_backoff_is_stored_but_never_planned_on(self, store: SqlStore) -> None:
        backoff = await commit(store, new_of(CHAIN, 4, kind=ReplacementKind.BACKOFF))
        assert await store.replacements(SCOPE, ROOT, CHAIN) == backoff
        await commit(store, new_of(CHAIN, 5))
        with pytest.raises(HistoryChanged):
            await commit(store, new_of(CHAIN, 6), planned_on=backoff)

    async def test_a_plan_on_a_revoked_one_is_a_changed_history(self, store: SqlStore) -> None:
        first = await commit(store, new_of(CHAIN, 4))
        await store.revoke(SCOPE.tenant, first[0].id)
        with pytest.raises(HistoryChanged):
            await commit(store, new_of(CHAIN, 6), planned_on=first)
        await commit(store, new_of(CHAIN, 6))

    async def test_what_does_not_match_the_chain_is_no_part_of_the_plan(
        self, store: SqlStore
    ) -> None:
        """A fork of the same root compacts on its own."""
        fork = chain_of([*TEXTS[:3], "something else", *TEXTS[4:]])
        await commit(store, new_of(CHAIN, 6))
        await commit(store, new_of(fork, 6), chain=fork)


class TestLeaseInCommit:
    async def test_a_live_lease_commits(self, store: SqlStore) -> None:
        lease = await lease_on(store, 4)
        await commit(store, new_of(CHAIN, 4), lease=lease)

    async def test_an_expired_lease_cannot_commit(self, store: SqlStore) -> None:
        lease = await lease_on(store, 4, seconds=-1)
        with pytest.raises(LeaseLost):
            await commit(store, new_of(CHAIN, 4), lease=lease)
        assert await store.replacements(SCOPE, ROOT, CHAIN) == ()

    async def test_a_lease_that_was_taken_over_cannot_commit(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        lost = await lease_on(store, 4, seconds=-1)
        taken = await lease_on(another_store(), 4)
        with pytest.raises(LeaseLost):
            await commit(store, new_of(CHAIN, 4), lease=lost)
        with pytest.raises(LeaseLost):
            await commit(store, new_of(CHAIN, 4), lease=replace(taken, token="guessed"))
        await commit(store, new_of(CHAIN, 4), lease=taken)


class TestIsolation:
    async def test_another_scope_or_root_sees_nothing(self, store: SqlStore) -> None:
        await commit(store, new_of(CHAIN, 4))
        for scope in (
            SCOPE._replace(tenant="tenant-b"),
            SCOPE._replace(upstream="other"),
            SCOPE._replace(model="model-2"),
        ):
            assert await store.replacements(scope, ROOT, CHAIN) == ()
        assert await store.replacements(SCOPE, CHAIN[1], CHAIN) == ()

    async def test_a_fork_sees_what_ends_before_it_and_no_more(self, store: SqlStore) -> None:
        early = await commit(store, new_of(CHAIN, 3))
        await commit(store, new_of(CHAIN, 6), planned_on=early)
        fork = chain_of([*TEXTS[:4], "something else"])
        assert await store.replacements(SCOPE, ROOT, fork) == early

    async def test_an_edit_of_a_replaced_message_just_stops_matching(self, store: SqlStore) -> None:
        await commit(store, new_of(CHAIN, 4))
        edited = chain_of([TEXTS[0], "edited", *TEXTS[2:]])
        assert await store.replacements(SCOPE, ROOT, edited) == ()

    async def test_names_that_no_database_takes_as_they_are(self, store: SqlStore) -> None:
        """A model may be named anything; two long names that begin alike stay two."""
        odd = SCOPE._replace(model="a\0b \ud83d")
        long = [SCOPE._replace(model="m" * 100_000 + end) for end in "12"]
        for scope in (odd, long[0]):
            stored = await commit(store, new_of(CHAIN, 4), scope=scope)
            assert await store.replacements(scope, ROOT, CHAIN) == stored
        assert await store.replacements(long[1], ROOT, CHAIN) == ()


class TestAdoptable:
    async def test_what_another_model_of_the_tenant_has(self, store: SqlStore) -> None:
        other = SCOPE._replace(model="model-2")
        stored = await commit(store, new_of(CHAIN, 4), scope=other)
        assert await store.adoptable(SCOPE, ROOT, CHAIN) == stored
        assert await store.adoptable(other, ROOT, CHAIN) == ()
        assert await store.adoptable(SCOPE._replace(tenant="tenant-b"), ROOT, CHAIN) == ()

    async def test_all_of_the_scope_that_reaches_furthest_and_of_no_other(
        self, store: SqlStore
    ) -> None:
        near, far = SCOPE._replace(model="near"), SCOPE._replace(upstream="far")
        await commit(store, new_of(CHAIN, 4), scope=near)
        first = await commit(store, new_of(CHAIN, 3), scope=far)
        second = await commit(store, new_of(CHAIN, 8), scope=far, planned_on=first)
        assert await store.adoptable(SCOPE, ROOT, CHAIN) == first + second
        assert [r.end for r in await store.adoptable(SCOPE, ROOT, CHAIN[:5])] == [4]

    async def test_neither_revoked_ones_nor_backoffs(self, store: SqlStore) -> None:
        other = SCOPE._replace(model="model-2")
        await commit(store, new_of(CHAIN, 5, kind=ReplacementKind.BACKOFF), scope=other)
        (stored,) = await commit(store, new_of(CHAIN, 4), scope=other)
        assert await store.adoptable(SCOPE, ROOT, CHAIN) == (stored,)
        await store.revoke(SCOPE.tenant, stored.id)
        assert await store.adoptable(SCOPE, ROOT, CHAIN) == ()


class TestRevoke:
    async def test_it_stays_and_is_marked(self, store: SqlStore, another_store: OpenStore) -> None:
        (stored,) = await commit(store, new_of(CHAIN, 4))
        revoked = replace(stored, revoked=True)
        assert await store.revoke(SCOPE.tenant, stored.id) == revoked
        assert await store.revoke(SCOPE.tenant, stored.id) == revoked
        assert await store.replacements(SCOPE, ROOT, CHAIN) == (revoked,)
        assert await another_store().replacements(SCOPE, ROOT, CHAIN) == (revoked,)

    async def test_an_unknown_id_and_another_tenants_are_none(self, store: SqlStore) -> None:
        (stored,) = await commit(store, new_of(CHAIN, 4))
        assert await store.revoke(SCOPE.tenant, "unknown") is None
        assert await store.revoke("tenant-b", stored.id) is None
        assert await store.replacements(SCOPE, ROOT, CHAIN) == (stored,)


class TestMemory:
    async def test_remembered_needs_no_database(self, store: SqlStore) -> None:
        first = await commit(store, new_of(CHAIN, 4))
        second = await commit(store, new_of(CHAIN, 6), planned_on=first)
        await store.close()
        assert store.remembered(SCOPE, ROOT, CHAIN) == first + second
        assert store.remembered(SCOPE, ROOT, CHAIN[:5]) == first
        assert store.remembered(SCOPE, CHAIN[1], CHAIN) == ()

    async def test_the_owner_of_a_file_answers_without_a_query(self, tmp_path: Path) -> None:
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
        stored = await commit(store, new_of(CHAIN, 4))
        assert await store.replacements(SCOPE, ROOT, CHAIN) == stored
        await store.close()  # a query would fail now
        assert await store.replacements(SCOPE, ROOT, CHAIN) == stored
        assert await store.replacements(SCOPE, ROOT, CHAIN[:2]) == ()

    async def test_an_owner_sees_its_own_changes_at_once(self, tmp_path: Path) -> None:
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
        assert await store.replacements(SCOPE, ROOT, CHAIN) == ()
        (stored,) = await commit(store, new_of(CHAIN, 4))
        assert await store.replacements(SCOPE, ROOT, CHAIN) == (stored,)
        await store.revoke(SCOPE.tenant, stored.id)
        assert [r.revoked for r in await store.replacements(SCOPE, ROOT, CHAIN)] == [True]
        await store.forget(SCOPE.tenant, "conversation-1")
        assert await store.replacements(SCOPE, ROOT, CHAIN) == ()
        await store.close()

    async def test_an_owner_sees_what_a_caller_that_left_has_changed(self, tmp_path: Path) -> None:
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
        assert await store.replacements(SCOPE, ROOT, CHAIN) == ()

        async def leaving(change: Coroutine[Any, Any, object]) -> None:
            running = asyncio.ensure_future(change)
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        await leaving(commit(store, new_of(CHAIN, 4)))
        await eventually(lambda: store.replacements(SCOPE, ROOT, CHAIN))
        (stored,) = await store.replacements(SCOPE, ROOT, CHAIN)
        await leaving(store.revoke(SCOPE.tenant, stored.id))

        async def revoked() -> bool:
            return (await store.replacements(SCOPE, ROOT, CHAIN))[0].revoked

        await eventually(revoked)
        await store.close()

    async def test_an_owner_that_meets_another_writer_stops_caching(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/tidegate.db"
        owner, other = SqlStore(url, sole_process=True), SqlStore(url)
        assert await owner.replacements(SCOPE, ROOT, CHAIN) == ()
        stored = await commit(other, new_of(CHAIN, 4))
        await owner.touch(["nothing"])  # any write of its own shows it
        assert await owner.replacements(SCOPE, ROOT, CHAIN) == stored
        more = await commit(other, new_of(CHAIN, 6), planned_on=stored)
        assert await owner.replacements(SCOPE, ROOT, CHAIN) == stored + more
        await owner.close()
        await other.close()

    async def test_a_worker_that_knows_some_sees_the_news_of_another_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"sqlite:///{tmp_path}/tidegate.db"
        one, other = SqlStore(url), SqlStore(url)
        first = await commit(one, new_of(CHAIN, 4, text="first"))
        assert await other.replacements(SCOPE, ROOT, tuple(CHAIN)) == first
        second = await commit(one, new_of(CHAIN, 6, text="second"), planned_on=first)

        async def waited(*arguments: object) -> None:
            raise AssertionError("waited")

        with monkeypatch.context() as patched:
            patched.setattr(Database, "read", waited)
            assert await other.replacements(SCOPE, ROOT, tuple(CHAIN)) == first + second
            assert await other.replacements(SCOPE, ROOT, tuple(CHAIN[:5])) == first
        await one.revoke(SCOPE.tenant, second[0].id)
        assert [r.revoked for r in await other.replacements(SCOPE, ROOT, CHAIN)] == [False, True]
        monkeypatch.setattr(module, "CROWDED_ROWS", 1)
        assert len(await other.replacements(SCOPE, ROOT, CHAIN)) == 2
        await one.close()
        await other.close()

    async def test_payloads_that_had_to_make_room_are_read_again(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(payloads, "CACHE_BYTES", 0)
        monkeypatch.setattr(payloads, "IN_LIST", 2)
        stored = await commit(store, *(new_of(CHAIN, 4, text="x" * n) for n in range(5)))
        assert store.remembered(SCOPE, ROOT, CHAIN) == ()
        assert await store.replacements(SCOPE, ROOT, CHAIN) == stored


class TestCrowd:
    async def test_many_histories_under_one_root_are_looked_up_by_their_chain(
        self, store: SqlStore, another_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IN_LIST", 2)
        await commit(store, *(new_of(CHAIN, 4) for _ in range(module.CROWDED_ROWS)))
        late = chain_of([TEXTS[0], *(f"late {number}" for number in range(5))])
        stored = await commit(store, new_of(late, 5), chain=late)
        assert await store.replacements(SCOPE, ROOT, late) == stored
        reader = another_store()
        for _ in range(2):
            assert await reader.replacements(SCOPE, ROOT, frozenset(late)) == stored
        assert reader.remembered(SCOPE, ROOT, late) == stored
        with pytest.raises(HistoryChanged):
            await commit(store, new_of(late, 5), chain=late)


class TestUse:
    async def test_a_replacement_ages_from_its_last_use(self, store: SqlStore) -> None:
        used, unused = SCOPE._replace(model="used"), SCOPE._replace(model="unused")
        for scope in (used, unused):
            await commit(store, new_of(CHAIN, 4), scope=scope)
        kept = Retention(replacement_seconds=3600.0)
        (row,) = await store.replacements(used, ROOT, CHAIN)
        now = await store.sweep(Retention(), now=0.0)  # writes down that it was used
        assert now.replacements == 0
        await _age(store, unused, seconds=7200.0)
        assert (await store.sweep(kept)).replacements == 1
        assert await store.replacements(used, ROOT, CHAIN) == (row,)
        assert await store.replacements(unused, ROOT, CHAIN) == ()

    async def test_a_touch_is_a_use(self, store: SqlStore) -> None:
        (row,) = await commit(store, new_of(CHAIN, 4))
        await _age(store, SCOPE, seconds=7200.0)
        await store.touch([row.id])
        assert (await store.sweep(Retention(replacement_seconds=3600.0))).replacements == 0

    async def test_a_read_is_a_use(self, store: SqlStore) -> None:
        await commit(store, new_of(CHAIN, 4))
        await _age(store, SCOPE, seconds=7200.0)
        await store.replacements(SCOPE, ROOT, CHAIN)
        assert (await store.sweep(Retention(replacement_seconds=3600.0))).replacements == 0


async def _age(store: SqlStore, scope: Scope, *, seconds: float) -> None:
    """Let the replacements of a scope look as if they were last used so long ago."""
    table = schema.replacements
    statement = (
        update(table).where(table.c.model == scope.model).values(used_at=table.c.used_at - seconds)
    )

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(statement)

    await store._database.write(work)
