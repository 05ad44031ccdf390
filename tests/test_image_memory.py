"""What is remembered of models that take no images, over a real store."""

from pathlib import Path

from proxy.core.overflow import Refusal, RefusalKind
from proxy.core.replacements import Scope
from proxy.image_memory import remember_refusal, takes_no_images
from proxy.store.sql import SqlStore

SCOPE = Scope("tenant", "default", "gpt-3.5-turbo")
TAKES_NONE = Refusal(RefusalKind.IMAGE_BUDGET, takes_no_images=True)
TOO_MANY = Refusal(RefusalKind.IMAGE_BUDGET, image_limit=5)


async def test_only_a_refusal_of_all_images_is_remembered_for_this_tenant_upstream_and_model(
    tmp_path: Path,
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    try:
        await remember_refusal(store, SCOPE, TOO_MANY)
        assert not await takes_no_images(store, SCOPE)
        await remember_refusal(store, SCOPE, TAKES_NONE)
        assert await takes_no_images(store, SCOPE)
        for other in (
            Scope("other", "default", "gpt-3.5-turbo"),
            Scope("tenant", "other", "gpt-3.5-turbo"),
            Scope("tenant", "default", "gpt-4o"),
        ):
            assert not await takes_no_images(store, other)
    finally:
        await store.close()


async def test_without_a_store_nothing_is_known_and_nothing_fails(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    await store.close()
    await remember_refusal(store, SCOPE, TAKES_NONE)
    assert not await takes_no_images(store, SCOPE)
