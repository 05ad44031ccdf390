"""What is shown of models when the store does not answer, or when there are very many."""

from typing import Any

import pytest

from proxy.core.errors import StoreUnavailable
from proxy.core.limits import Configured
from proxy.core.replacements import Scope
from proxy.known_models import MAX_SHOWN, KnownModels, ModelRule
from proxy.windows import Windows


class BrokenStore:
    async def all_learned(self, tenant: str | None) -> Any:
        raise StoreUnavailable("gone")

    async def learned(self, scope: Scope) -> Any:
        raise StoreUnavailable("gone")

    async def forget_learned(self, tenant: str, model: str, kind: str | None = None) -> int:
        raise StoreUnavailable("gone")


class EmptyStore(BrokenStore):
    async def all_learned(self, tenant: str | None) -> Any:
        return ()

    async def learned(self, scope: Scope) -> Any:
        return {}


def known(store: Any, *rules: ModelRule) -> tuple[KnownModels, Windows]:
    windows = Windows(lambda model: Configured(window_tokens=8000), {}, store=store)
    return KnownModels(windows, store, rules), windows


async def test_without_a_store_what_memory_holds_is_shown() -> None:
    models, windows = known(BrokenStore(), ModelRule("a*", "default"))
    await windows.prepare(Scope("t", "default", "m"))
    shown = await models.shown("t")
    assert shown.degraded == "store"
    assert [(m["model"], m["window"]) for m in shown.models] == [("a*", 8000), ("m", 8000)]


async def test_without_a_store_nothing_is_said_to_be_forgotten() -> None:
    models, _ = known(BrokenStore())
    with pytest.raises(StoreUnavailable):
        await models.forget("t", "m")


async def test_of_very_many_models_the_first_are_shown() -> None:
    models, windows = known(EmptyStore())
    for n in range(MAX_SHOWN + 1):
        await windows.prepare(Scope("t", "default", f"m{n:05}"))
    shown = await models.shown(None)
    assert shown.truncated
    assert len(shown.models) == MAX_SHOWN
    assert shown.models[0]["model"] == "m00000"


async def test_a_tenant_sees_its_own_models_only() -> None:
    models, windows = known(EmptyStore())
    await windows.prepare(Scope("t", "default", "mine"))
    await windows.prepare(Scope("u", "default", "theirs"))
    assert [m["model"] for m in (await models.shown("t")).models] == ["mine"]
    assert len((await models.shown(None)).models) == 2
