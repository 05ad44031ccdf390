"""Revocations in their order, our own answers, and compactions for later, on every store."""

import asyncio
from pathlib import Path

from proxy.core.generations import applied_at, steps
from proxy.core.replacements import NewReplacement, ReplacementKind, Scope
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Retention, Turn
from tests.store.conftest import OpenStore
from tests.store.samples import eventually

SCOPE = Scope("tenant", "default", "m")
ROOT = b"r" * 16
CHAIN = (ROOT, b"b" * 16, b"c" * 16)


def summary(end: int) -> NewReplacement:
    return NewReplacement(ReplacementKind.SUMMARY, 0, end, CHAIN[end - 1], {"summary": str(end)})


async def commit(store: SqlStore, end: int, planned_on: list[str]) -> str:
    (row,) = await store.commit(
        SCOPE, ROOT, CHAIN, planned_on=planned_on, new=[summary(end)], lease=None, conversation="c"
    )
    return row.id


async def test_every_generation_can_be_told_after_revocations(store: SqlStore) -> None:
    first = await commit(store, 1, [])
    second = await commit(store, 2, [first])
    await store.revoke("tenant", second)
    third = await commit(store, 3, [first])
    await store.revoke("tenant", second)
    rows = await store.replacements(SCOPE, ROOT, CHAIN)
    noted = await store.revocations("tenant", [row.id for row in rows])
    assert set(noted) == {second}
    assert await store.revocations("another", [second]) == {}
    made = steps(rows, noted)
    assert [(s.replacement.id, s.revokes) for s in made] == [
        (first, False),
        (second, False),
        (second, True),
        (third, False),
    ]
    live = [[r.id for r in applied_at(made, n) if not r.revoked] for n in range(5)]
    assert live == [[], [first], [first, second], [first], [first, third]]


async def test_answers_are_known_to_their_tenant_on_every_worker(
    store: SqlStore, another_store: OpenStore
) -> None:
    await store.keep_answer("tenant", "c", b"one")
    other = another_store()
    assert await other.known_answers("tenant", [b"one", b"two"]) == {b"one"}
    assert await other.known_answers("another", [b"one"]) == frozenset()
    assert await store.known_answers("tenant", [b"one"]) == {b"one"}
    assert await store.known_answers("tenant", []) == frozenset()


async def test_a_compaction_for_later_is_taken_once(
    store: SqlStore, another_store: OpenStore
) -> None:
    assert not await store.is_scheduled("tenant", "c")
    await store.schedule("tenant", "c", {"force": True})
    await store.schedule("tenant", "c", {"force": False})
    other = another_store()
    assert await store.is_scheduled("tenant", "c")
    assert await other.is_scheduled("tenant", "c")
    assert not await other.is_scheduled("another", "c")
    assert await other.take_scheduled("tenant", "c") == {"force": False}
    assert await store.take_scheduled("tenant", "c") is None
    assert not await other.is_scheduled("tenant", "c")


async def test_names_that_no_database_takes_are_scheduled_all_the_same(store: SqlStore) -> None:
    name = "c\0" + "x" * 300
    await store.schedule(name, name, {})
    assert await store.is_scheduled(name, name)
    assert not await store.is_scheduled(name, name + "x")


async def test_an_owner_of_the_file_asks_for_what_is_due_once(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    assert not await store.is_scheduled("tenant", "c")
    await store.schedule("tenant", "c", {})
    assert await store.is_scheduled("tenant", "c")
    await store.take_scheduled("tenant", "c")
    assert not await store.is_scheduled("tenant", "c")
    await store.close()  # a query would fail now
    assert not await store.is_scheduled("tenant", "c")


async def test_what_is_asked_for_by_a_caller_that_leaves_is_due(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    assert not await store.is_scheduled("tenant", "c")
    asking = asyncio.ensure_future(store.schedule("tenant", "c", {}))
    await asyncio.sleep(0)
    asking.cancel()
    await eventually(lambda: store.is_scheduled("tenant", "c"))
    await store.close()


async def test_forgetting_a_conversation_takes_all_of_it(
    store: SqlStore, another_store: OpenStore
) -> None:
    turn = Turn("tenant", "c", 1.0, "default", "m", ROOT, ROOT, 1)
    await store.write(Batch(turns=[turn]))
    revoked = await commit(store, 1, [])
    await store.revoke("tenant", revoked)
    await store.keep_answer("tenant", "c", b"one")
    await store.schedule("tenant", "c", {})
    assert await store.forget("tenant", "c") is not None
    other = another_store()
    assert await other.revocations("tenant", [revoked]) == {}
    assert await other.known_answers("tenant", [b"one"]) == frozenset()
    assert await other.take_scheduled("tenant", "c") is None


async def test_what_is_long_unused_is_swept_with_the_replacements(
    store: SqlStore, another_store: OpenStore
) -> None:
    revoked = await commit(store, 1, [])
    await store.revoke("tenant", revoked)
    await store.keep_answer("tenant", "c", b"one")
    await store.schedule("tenant", "c", {})
    await store.sweep(Retention(replacement_seconds=3600.0), now=4e9)
    other = another_store()
    assert await other.revocations("tenant", [revoked]) == {}
    assert await other.known_answers("tenant", [b"one"]) == frozenset()
    assert not await other.is_scheduled("tenant", "c")
