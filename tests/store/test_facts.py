"""Secrets and lessons, on SQLite and PostgreSQL."""

import asyncio

import pytest

from proxy.store import facts as module
from proxy.store.sql import SqlStore
from proxy.store.store import Retention
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, eventually


class TestSecret:
    async def test_all_workers_that_start_at_once_have_the_same(
        self, another_store: OpenStore
    ) -> None:
        made = await asyncio.gather(*(another_store().secret("digests") for _ in range(6)))
        assert len(made[0]) == 32
        assert set(made) == {made[0]}

    async def test_names_have_secrets_of_their_own_that_stay(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        one, other = await store.secret("one"), await store.secret("other")
        assert one != other
        assert await another_store().secret("one") == one


class TestLearned:
    async def test_what_was_learned_last_holds(self, store: SqlStore) -> None:
        await store.learn(SCOPE, "limit", 8192, ttl_seconds=60)
        await store.learn(SCOPE, "limit", 4096, ttl_seconds=60)
        await store.learn(SCOPE, "ratio", {"value": 1.25}, ttl_seconds=60)
        known = await store.learned(SCOPE)
        assert {kind: fact.value for kind, fact in known.items()} == {
            "limit": 4096,
            "ratio": {"value": 1.25},
        }

    async def test_it_belongs_to_one_scope(self, store: SqlStore) -> None:
        await store.learn(SCOPE, "limit", 8192, ttl_seconds=60)
        assert await store.learned(SCOPE._replace(tenant="tenant-b")) == {}
        assert await store.learned(SCOPE._replace(upstream="other")) == {}
        assert await store.learned(SCOPE._replace(model="model-2")) == {}

    async def test_expired_it_is_gone(self, store: SqlStore) -> None:
        await store.learn(SCOPE, "limit", 8192, ttl_seconds=-1)
        assert await store.learned(SCOPE) == {}
        assert await store.all_learned(None) == ()
        await store.sweep(Retention())
        assert await store.forget_learned(SCOPE.tenant, SCOPE.model) == 0

    async def test_another_worker_hears_of_it_within_seconds(
        self,
        store: SqlStore,
        another_store: OpenStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module, "NEWS_SECONDS", 0.05)
        other = another_store()
        assert await other.learned(SCOPE) == {}
        await store.learn(SCOPE, "limit", 8192, ttl_seconds=60)

        async def heard() -> bool:
            return "limit" in await other.learned(SCOPE)

        await eventually(heard)

    async def test_forgetting_drops_a_model_on_every_upstream(self, store: SqlStore) -> None:
        other = SCOPE._replace(upstream="other")
        elsewhere = SCOPE._replace(tenant="tenant-b")
        for scope in (SCOPE, other, elsewhere):
            await store.learn(scope, "limit", 8192, ttl_seconds=60)
            await store.learn(scope, "no_images", True, ttl_seconds=60)
        assert await store.forget_learned(SCOPE.tenant, SCOPE.model, "limit") == 2
        assert set(await store.learned(SCOPE)) == {"no_images"}
        assert await store.forget_learned(SCOPE.tenant, SCOPE.model) == 2
        assert await store.learned(other) == {}
        assert set(await store.learned(elsewhere)) == {"limit", "no_images"}

    async def test_a_listing_for_a_tenant_and_for_the_operator(self, store: SqlStore) -> None:
        elsewhere = SCOPE._replace(tenant="tenant-b")
        await store.learn(SCOPE, "limit", 1, ttl_seconds=60)
        await store.learn(elsewhere, "limit", 2, ttl_seconds=60)
        assert [fact.value for fact in await store.all_learned("tenant-b")] == [2]
        assert sorted(fact.value for fact in await store.all_learned(None)) == [1, 2]
