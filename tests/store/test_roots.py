"""Nothing that is recorded is ever said not to be, and of a new chat it is said at once."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.store import roots as module
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Recorded
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, chain_of, new_of, turn_of

TEXTS = [f"message {number}" for number in range(6)]
CHAIN = chain_of(TEXTS)
ROOT = CHAIN[0]
NOTHING = Recorded(replacements=False, conversations=False)


async def commit(store: SqlStore, end: int = 4) -> None:
    new = [new_of(CHAIN, end)]
    await store.commit(
        SCOPE, ROOT, CHAIN, planned_on=(), new=new, lease=None, conversation="conversation-1"
    )


async def log(store: SqlStore) -> None:
    await store.write(Batch(turns=[turn_of(TEXTS)]))


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """The only process that writes to its file."""
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Workers on one file."""
    made: list[SqlStore] = []

    def make() -> SqlStore:
        made.append(SqlStore(f"sqlite:///{tmp_path}/tidegate.db"))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def test_each_worker_sees_what_any_has_recorded(shared: OpenStore) -> None:
    one, other = shared(), shared()
    await one.open()
    await other.open()
    assert one.recorded(SCOPE, ROOT) == other.recorded(SCOPE, ROOT) == NOTHING
    await log(one)
    assert other.recorded(SCOPE, ROOT) == Recorded(replacements=False)
    await commit(one)
    assert other.recorded(SCOPE, ROOT) == Recorded()
    assert other.recorded(SCOPE, CHAIN[1]) == NOTHING
    assert other.recorded(replace(SCOPE, tenant="another"), ROOT) == NOTHING
    # What another model of the tenant has is not told apart.
    assert other.recorded(replace(SCOPE, model="another"), ROOT) == Recorded()


async def test_names_that_no_database_takes_as_they_are(owner: SqlStore) -> None:
    tenant = "t\0" + "x" * 300
    await owner.write(Batch(turns=[turn_of(TEXTS, tenant=tenant)]))
    assert owner.recorded(replace(SCOPE, tenant=tenant), ROOT).conversations


async def test_what_the_owner_has_replaced_is_known_at_once(owner: SqlStore) -> None:
    assert owner.recorded(SCOPE, ROOT) == NOTHING
    await commit(owner)
    assert owner.recorded(SCOPE, ROOT) == Recorded()
    assert (await owner.replacements(SCOPE, ROOT, CHAIN))[0].end == 4


async def test_the_owner_looks_once(owner: SqlStore) -> None:
    assert owner.recorded(SCOPE, ROOT) == NOTHING
    await owner.close()  # a look-up would say nothing now
    assert owner.recorded(SCOPE, ROOT) == Recorded(replacements=False)
    assert owner.recorded(SCOPE, CHAIN[1]) == Recorded()


async def test_what_had_to_make_room_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_ROOTS", 1)
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    await store.open()
    assert store.recorded(SCOPE, ROOT) == store.recorded(SCOPE, CHAIN[1]) == NOTHING
    assert store.recorded(SCOPE, ROOT) == NOTHING
    await store.close()


async def test_an_owner_that_meets_another_writer_looks_again(
    owner: SqlStore, shared: OpenStore
) -> None:
    assert owner.recorded(SCOPE, ROOT) == NOTHING
    await log(owner)
    await commit(shared())
    await log(owner)  # any write of its own shows it
    assert owner.recorded(SCOPE, ROOT) == Recorded()


async def test_before_it_is_opened_and_on_another_machine_anything_may_be(
    another_store: OpenStore, store_url: str
) -> None:
    store = another_store()
    assert store.recorded(SCOPE, ROOT) == Recorded()
    await store.open()
    known = Recorded() if store_url.startswith("postgresql") else NOTHING
    assert store.recorded(SCOPE, ROOT) == known
