"""Windows: what holds for a model, from memory; learned from refusals, dropped by successes."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.catalogue import Catalogue
from proxy.core.errors import StoreUnavailable
from proxy.core.limits import Configured, LimitKind, Source, StatedLimit
from proxy.core.replacements import Scope
from proxy.windows import (
    LEARNED_REFRESH_SECONDS,
    LEARNED_SECONDS,
    UpstreamPlace,
    Windows,
)

SCOPE = Scope(tenant="t", upstream="default", model="m")
UPSTREAMS = {"default": UpstreamPlace("http://127.0.0.1:9/v1")}
CONFIGURED = {"m": Configured(window_tokens=32_768)}
REFUSED = StatedLimit(16_000, counted_tokens=20_000, output_tokens=0)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Fact:
    """A learned fact, as the store hands it back."""

    value: Any
    expires_at: float


@dataclass
class MemoryStore:
    """The part of the store that is needed here."""

    clock: Clock
    facts: dict[tuple[Scope, str], Fact] = field(default_factory=dict)
    reads: int = 0
    down: bool = False
    answers: asyncio.Event | None = None  # set: it answers only then, with what it held when asked

    def _answer(self) -> None:
        if self.down:
            raise StoreUnavailable("down")

    async def learn(self, scope: Scope, kind: str, value: Any, *, ttl_seconds: float) -> None:
        self._answer()
        self.facts[(scope, kind)] = Fact(value, self.clock.now + ttl_seconds)

    async def learned(self, scope: Scope) -> Mapping[str, Fact]:
        self.reads += 1
        self._answer()
        live = {k: f for k, f in self.facts.items() if f.expires_at > self.clock.now}
        if self.answers is not None:
            await self.answers.wait()
        return {kind: fact for (owner, kind), fact in live.items() if owner == scope}

    async def forget_learned(self, tenant: str, model: str, kind: str | None = None) -> int:
        self._answer()
        gone = [
            key
            for key in self.facts
            if (key[0].tenant, key[0].model) == (tenant, model) and kind in (None, key[1])
        ]
        for key in gone:
            del self.facts[key]
        return len(gone)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    """A store that holds nothing."""
    return MemoryStore(clock)


def windows(
    clock: Clock,
    store: MemoryStore | None = None,
    configured: Mapping[str, Configured] = CONFIGURED,
    upstreams: Mapping[str, UpstreamPlace] = UPSTREAMS,
) -> Windows:
    return Windows(
        lambda model: configured.get(model, Configured()), upstreams, store=store, now=clock
    )


class TestLearning:
    """A limit stated in a refusal holds for a day, for this tenant, upstream and model."""

    async def test_it_lowers_what_was_configured(self, clock: Clock, store: MemoryStore) -> None:
        """Case R036."""
        known = windows(clock, store)
        lesson = await known.learn(SCOPE, REFUSED)
        assert lesson is not None
        assert (lesson.kind, lesson.tokens, lesson.contradicts) == (
            LimitKind.WINDOW,
            16_000,
            32_768,
        )
        limits = known.effective(SCOPE)
        assert (limits.window_tokens, limits.window_source) == (16_000, Source.LEARNED)

    async def test_it_expires(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        await known.learn(SCOPE, REFUSED)
        clock.now += LEARNED_SECONDS - 1
        assert (await known.prepare(SCOPE)).window_tokens == 16_000
        clock.now += 1
        assert known.effective(SCOPE).window_tokens == 32_768
        assert (await known.prepare(SCOPE)).window_tokens == 32_768

    async def test_stated_again_it_holds_for_another_day(
        self, clock: Clock, store: MemoryStore
    ) -> None:
        known = windows(clock, store)
        first = await known.learn(SCOPE, REFUSED)
        clock.now += LEARNED_SECONDS - 1
        again = await known.learn(SCOPE, REFUSED)
        assert first is not None
        assert again is not None
        assert (first.new, again.new) == (True, False)
        clock.now += 2
        assert (await known.prepare(SCOPE)).window_tokens == 16_000

    async def test_another_process_learns_it_from_the_store(
        self, clock: Clock, store: MemoryStore
    ) -> None:
        await windows(clock, store).learn(SCOPE, REFUSED)
        other = windows(clock, store)
        assert other.effective(SCOPE).window_tokens == 32_768
        assert (await other.prepare(SCOPE)).window_tokens == 16_000

    @pytest.mark.parametrize("field", ["tenant", "upstream", "model"])
    async def test_it_is_nobody_else_s(self, clock: Clock, store: MemoryStore, field: str) -> None:
        known = windows(clock, store, configured={"m": CONFIGURED["m"], "x": CONFIGURED["m"]})
        await known.learn(SCOPE, REFUSED)
        other = SCOPE._replace(**{field: "x"})
        assert (await known.prepare(other)).window_tokens == 32_768

    async def test_an_implausible_limit_is_not_learned(
        self, clock: Clock, store: MemoryStore
    ) -> None:
        known = windows(clock, store)
        assert await known.learn(SCOPE, StatedLimit(16_000, 500, 0)) is None
        assert await known.learn(SCOPE, StatedLimit(500, 20_000, 0)) is None
        assert store.facts == {}

    async def test_a_prompt_limit_is_kept_apart(self, clock: Clock, store: MemoryStore) -> None:
        """Case R037."""
        known = windows(clock, store, configured={"m": Configured(window_tokens=400_000)})
        await known.learn(SCOPE, StatedLimit(272_000, 300_000, 0, input_only=True))
        limits = known.effective(SCOPE)
        assert (limits.window_tokens, limits.input_limit_tokens) == (400_000, 272_000)

    async def test_one_warning_when_it_contradicts_a_setting(
        self, clock: Clock, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        known = windows(clock, store)
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                await known.learn(SCOPE, REFUSED)
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "limit=16000 configured=32768" in warnings[0]

    async def test_no_warning_when_nobody_wrote_a_window(
        self, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        known = windows(clock, configured={})
        lesson = await known.learn(SCOPE, REFUSED)
        assert lesson is not None
        assert lesson.contradicts is None
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


class TestForgetting:
    """What a success refutes, or a person drops, is gone everywhere."""

    async def test_a_success_above_it_drops_it(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        await known.learn(SCOPE, REFUSED)
        assert not await known.succeeded(SCOPE, 15_000, 1_000)
        assert known.effective(SCOPE).window_tokens == 16_000
        assert await known.succeeded(SCOPE, 15_000, 1_001)
        assert known.effective(SCOPE).window_tokens == 32_768
        assert store.facts == {}

    async def test_a_success_without_anything_learned_changes_nothing(self, clock: Clock) -> None:
        assert not await windows(clock).succeeded(SCOPE, 10**9)

    async def test_a_person_may_drop_it(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        await known.learn(SCOPE, REFUSED)
        assert await known.forget("t", "m") == 1
        assert await known.forget("t", "m") == 0
        assert (await known.prepare(SCOPE)).window_tokens == 32_768

    async def test_without_a_store_too(self, clock: Clock) -> None:
        known = windows(clock)
        await known.learn(SCOPE, REFUSED)
        assert await known.forget("t", "m") == 1


class TestStore:
    """The store is asked rarely, and may be down."""

    async def test_it_is_not_asked_on_every_chat(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        for _ in range(10):
            await known.prepare(SCOPE)
        assert store.reads == 1
        clock.now += LEARNED_REFRESH_SECONDS
        await known.prepare(SCOPE)
        assert store.reads == 2

    async def test_one_asks_again_and_nobody_waits_for_it(
        self, clock: Clock, store: MemoryStore
    ) -> None:
        known = windows(clock, store)
        await known.prepare(SCOPE)
        clock.now += LEARNED_REFRESH_SECONDS
        store.answers = asyncio.Event()
        first = asyncio.create_task(known.prepare(SCOPE))
        await asyncio.sleep(0)
        for _ in range(3):
            assert (await known.prepare(SCOPE)).window_tokens == 32_768
        assert store.reads == 2
        store.answers.set()
        await first

    @pytest.mark.parametrize("asked_before", [True, False])
    async def test_what_is_learned_meanwhile_is_newer_than_its_answer(
        self, clock: Clock, store: MemoryStore, asked_before: bool
    ) -> None:
        known = windows(clock, store)
        if asked_before:
            await known.prepare(SCOPE)
            clock.now += LEARNED_REFRESH_SECONDS
        store.answers = asyncio.Event()
        reading = asyncio.create_task(known.prepare(SCOPE))
        await asyncio.sleep(0)
        await known.learn(SCOPE, REFUSED)
        store.answers.set()
        assert (await reading).window_tokens == 16_000

    async def test_and_what_is_forgotten(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        await known.learn(SCOPE, REFUSED)
        clock.now += LEARNED_REFRESH_SECONDS
        store.answers = asyncio.Event()
        reading = asyncio.create_task(known.prepare(SCOPE))
        await asyncio.sleep(0)
        await known.forget("t", "m")
        store.answers.set()
        assert (await reading).window_tokens == 32_768

    async def test_and_what_is_read_while_it_is_being_forgotten(
        self, clock: Clock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = windows(clock, store)
        await known.learn(SCOPE, REFUSED)
        forget = store.forget_learned

        async def slowly(tenant: str, model: str, kind: str | None = None) -> int:
            await known.prepare(SCOPE)
            return await forget(tenant, model, kind)

        monkeypatch.setattr(store, "forget_learned", slowly)
        assert await known.forget("t", "m") == 1
        assert known.effective(SCOPE).window_tokens == 32_768

    async def test_while_it_is_down_memory_holds(self, clock: Clock, store: MemoryStore) -> None:
        known = windows(clock, store)
        store.down = True
        await known.learn(SCOPE, REFUSED)
        clock.now += LEARNED_REFRESH_SECONDS
        assert (await known.prepare(SCOPE)).window_tokens == 16_000
        assert (await known.prepare(SCOPE._replace(model="other"))).window_tokens is None

    async def test_other_kinds_of_facts_are_passed_over(
        self, clock: Clock, store: MemoryStore
    ) -> None:
        await store.learn(SCOPE, "takes_no_images", True, ttl_seconds=9)
        await store.learn(SCOPE, "window", "many", ttl_seconds=9)
        assert (await windows(clock, store).prepare(SCOPE)).window_tokens == 32_768


class TestHeld:
    """A chat is told what the one before it was told, until something that decides has changed."""

    @staticmethod
    async def nothing(method: str, url: str, body: object) -> object:
        return None

    async def told(self, known: Windows, scope: Scope = SCOPE) -> int | None:
        """As a chat asks: it may have the listing read."""
        limits = known.held(scope) or await known.prepare(scope, self.nothing)
        return limits.window_tokens

    @pytest.fixture
    async def known(self, clock: Clock, store: MemoryStore) -> Windows:
        """One that has answered before."""
        known = windows(clock, store)
        await known.load_catalogue()
        assert await self.told(known) == 32_768
        return known

    async def test_nothing_is_worked_out_again(self, known: Windows) -> None:
        first = known.held(SCOPE)
        assert first is not None
        assert known.held(SCOPE) is first
        assert known.held(SCOPE._replace(tenant="other")) is None

    async def test_a_lesson_holds_for_the_very_next_chat(self, known: Windows) -> None:
        await known.learn(SCOPE, REFUSED)
        assert await self.told(known) == 16_000

    async def test_so_does_what_refutes_it(self, known: Windows) -> None:
        await known.learn(SCOPE, REFUSED)
        assert await self.told(known) == 16_000
        assert await known.succeeded(SCOPE, 17_000)
        assert await self.told(known) == 32_768

    async def test_and_a_person_who_drops_it(self, known: Windows) -> None:
        await known.learn(SCOPE, REFUSED)
        assert await self.told(known) == 16_000
        await known.forget("t", "m")
        assert await self.told(known) == 32_768

    @pytest.mark.parametrize("stored", [True, False])
    async def test_a_lesson_expires_to_the_second(
        self, clock: Clock, store: MemoryStore, stored: bool
    ) -> None:
        known = windows(clock, store if stored else None)
        await known.load_catalogue()
        await known.learn(SCOPE, REFUSED)
        clock.now += LEARNED_SECONDS - 1
        assert await self.told(known) == 16_000
        clock.now += 1
        assert await self.told(known) == 32_768

    async def test_another_worker_s_lesson_is_as_late_as_the_store_is_read(
        self, known: Windows, clock: Clock, store: MemoryStore
    ) -> None:
        clock.now += LEARNED_REFRESH_SECONDS - 1
        await windows(clock, store).learn(SCOPE, REFUSED)
        assert await self.told(known) == 32_768
        clock.now += 1
        assert await self.told(known) == 16_000

    async def test_a_listing_counts_as_soon_as_it_is_there(self, clock: Clock) -> None:
        async def fetch(method: str, url: str, body: object) -> object:
            return {"data": [{"id": "m", "max_model_len": 5_000}]}

        known = windows(clock, configured={})
        await known.load_catalogue()
        limits = await known.prepare(SCOPE, fetch)
        assert known.held(SCOPE) is limits
        assert limits.window_tokens is None
        await known.settled()
        assert known.held(SCOPE) is None
        assert (await known.prepare(SCOPE, fetch)).window_tokens == 5_000
        await known.aclose()

    async def test_who_only_looks_keeps_no_chat_from_asking_the_upstream(
        self, clock: Clock
    ) -> None:
        asked: list[str] = []

        async def fetch(method: str, url: str, body: object) -> object:
            asked.append(url)
            return None

        known = windows(clock, configured={})
        await known.load_catalogue()
        await known.prepare(SCOPE)
        assert known.held(SCOPE) is None
        await known.prepare(SCOPE, fetch)
        await known.settled()
        assert asked

    async def test_as_many_scopes_are_held_as_are_remembered(
        self, known: Windows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("proxy.windows.MAX_SCOPES", 2)
        scopes = [SCOPE._replace(tenant=tenant) for tenant in "abcde"]
        assert [await self.told(known, scope) for scope in scopes] == [32_768] * 5


class TestListings:
    """Listings come after the settings and before the catalogue, and never hold up a chat."""

    async def test_an_unknown_window_is_listed_a_turn_later(self, clock: Clock) -> None:
        asked: list[str] = []

        async def fetch(method: str, url: str, body: object) -> object:
            asked.append(f"{method} {url}")
            return {"data": [{"id": "m", "max_model_len": 5_000}]}

        known = windows(clock, configured={})
        assert (await known.prepare(SCOPE, fetch)).window_tokens is None
        await known.settled()
        for _ in range(3):
            limits = await known.prepare(SCOPE, fetch)
            assert (limits.window_tokens, limits.window_source) == (5_000, Source.LISTED)
        assert asked == ["GET http://127.0.0.1:9/v1/models"]
        await known.aclose()

    async def test_a_configured_window_needs_no_listing_and_no_catalogue(
        self, clock: Clock
    ) -> None:
        async def fetch(method: str, url: str, body: object) -> object:
            raise AssertionError("nobody should ask")

        catalogue = Catalogue()
        known = Windows(lambda m: CONFIGURED[m], UPSTREAMS, catalogue=catalogue, now=clock)
        await known.prepare(SCOPE, fetch)
        await known.settled()
        assert not catalogue.loaded

    @pytest.mark.parametrize("keyed", [True, False])
    async def test_only_the_operator_s_key_shows_the_same_to_everyone(
        self, clock: Clock, keyed: bool
    ) -> None:
        async def fetch(method: str, url: str, body: object) -> object:
            return [{"id": "m", "max_model_len": 5_000}]

        upstreams = {"default": UpstreamPlace("http://127.0.0.1:9/v1", keyed=keyed)}
        known = windows(clock, configured={}, upstreams=upstreams)
        await known.prepare(SCOPE, fetch)
        await known.settled()
        other = known.effective(SCOPE._replace(tenant="other"))
        assert other.window_tokens == (5_000 if keyed else None)

    async def test_the_catalogue_answers_where_nothing_is_listed(self, clock: Clock) -> None:
        known = windows(clock, configured={})
        limits = await known.prepare(SCOPE._replace(model="gpt-4o"))
        assert (limits.window_tokens, limits.window_source) == (128_000, Source.CATALOGUED)

    async def test_an_upstream_that_is_not_configured_is_no_fault(self, clock: Clock) -> None:
        limits = await windows(clock).prepare(SCOPE._replace(upstream="gone"))
        assert limits.window_tokens == 32_768
