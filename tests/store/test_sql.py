"""The parts together are a `Store`."""

import inspect

from proxy.store.sql import SqlStore
from proxy.store.store import Store


def test_it_is_a_store() -> None:
    store: Store = SqlStore("sqlite://")
    promised = {name for name, _ in inspect.getmembers(Store, callable) if not name.startswith("_")}
    assert promised <= set(dir(store))


async def test_the_memory_of_two_stores_is_apart() -> None:
    one, other = SqlStore("sqlite://"), SqlStore("sqlite://")
    assert await one.secret("name") != await other.secret("name")
    await one.close()
    await other.close()
