"""Nothing that is recorded is ever said not to be, and of a new chat it is said at once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.store import roots as module
from proxy.store.database import Database
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


async def loaded(store: SqlStore) -> None:
    """What was stored is marked, or cannot be."""
    assert store._roots._loading is not None
    await store._roots._loading


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
    assert other.recorded(SCOPE._replace(tenant="another"), ROOT) == NOTHING
    # What another model of the tenant has is not told apart.
    assert other.recorded(SCOPE._replace(model="another"), ROOT) == Recorded()


async def test_names_that_no_database_takes_as_they_are(owner: SqlStore) -> None:
    tenant = "t\0" + "x" * 300
    await owner.write(Batch(turns=[turn_of(TEXTS, tenant=tenant)]))
    assert owner.recorded(SCOPE._replace(tenant=tenant), ROOT).conversations


async def test_what_the_owner_has_replaced_is_known_at_once(owner: SqlStore) -> None:
    assert owner.recorded(SCOPE, ROOT) == NOTHING
    await commit(owner)
    assert owner.recorded(SCOPE, ROOT) == Recorded()
    assert (await owner.replacements(SCOPE, ROOT, CHAIN))[0].end == 4


async def test_an_owner_knows_without_a_look(
    owner: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await loaded(owner)

    def looked(*arguments: object) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(Database, "rows_at_once", looked)
    assert owner.recorded(SCOPE, ROOT) == NOTHING
    await log(owner)
    assert owner.recorded(SCOPE, ROOT) == Recorded(replacements=False)
    await commit(owner)
    assert owner.recorded(SCOPE, ROOT) == Recorded()
    assert owner.recorded(SCOPE, CHAIN[1]) == NOTHING


async def test_after_a_restart_it_knows_what_was_stored(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    await commit(store)
    await store.write(Batch(turns=[turn_of([f"{n}"], conversation=f"c{n}") for n in range(700)]))
    await store.close()
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    await store.open()
    await loaded(store)
    for n in range(700):
        assert store.recorded(SCOPE, chain_of([f"{n}"])[0]) == Recorded(replacements=False)
    assert store.recorded(SCOPE, ROOT) == Recorded(conversations=False)
    assert store.recorded(SCOPE, CHAIN[1]) == NOTHING
    await store.close()


async def test_of_too_many_all_are_looked_up(
    owner: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log(owner)
    await commit(owner)
    await owner.close()
    monkeypatch.setattr(module, "LOADED_ROOTS", 2)
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    await store.open()
    await loaded(store)
    assert store.recorded(SCOPE, CHAIN[1]) == NOTHING
    await store.close()
    assert store.recorded(SCOPE, CHAIN[1]) == Recorded()


async def test_what_could_not_be_loaded_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*arguments: object) -> None:
        raise StoreUnavailable("away")

    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db", sole_process=True)
    monkeypatch.setattr(Database, "read", away)
    await store.open()
    await loaded(store)
    await log(store)
    assert store.recorded(SCOPE, ROOT) == Recorded(replacements=False)
    assert store.recorded(SCOPE, CHAIN[1]) == NOTHING
    monkeypatch.undo()
    await store.open()
    await loaded(store)
    assert store.recorded(SCOPE, ROOT) == Recorded(replacements=False)
    await store.close()


async def test_one_that_is_closed_stops_loading(owner: SqlStore) -> None:
    await log(owner)
    await owner.close()
    await owner.open()
    await owner.close()
    assert owner.recorded(SCOPE, CHAIN[1]) == Recorded()


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
