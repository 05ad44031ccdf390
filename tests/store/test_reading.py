"""Questions to the log, on SQLite and PostgreSQL."""

from dataclasses import replace

import pytest

from proxy.core.errors import InvalidRequest
from proxy.store import reading as module
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Counts
from tests.store.samples import SCOPE, body_of, chain_of, event_of, turn_of

TEXTS = [f"message {number}" for number in range(12)]
CHAIN = chain_of(TEXTS)
TENANT = SCOPE.tenant


class TestFindConversation:
    async def found(self, store: SqlStore, texts: list[str], tenant: str = TENANT) -> str | None:
        chain = chain_of(texts)
        found = await store.find_conversation(tenant, chain[0], chain)
        return None if found is None else found.id

    async def test_the_one_that_this_request_continues(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:4], conversation="one")]))
        assert await self.found(store, TEXTS) == "one"
        assert await self.found(store, TEXTS[:4]) == "one"
        assert await self.found(store, TEXTS[:3]) is None
        assert await self.found(store, ["other", *TEXTS]) is None
        assert await self.found(store, TEXTS, tenant="tenant-b") is None

    async def test_the_longest_wins_then_the_newest(self, store: SqlStore) -> None:
        turns = [
            turn_of(TEXTS[:6], conversation="long", time=10.0),
            turn_of(TEXTS[:4], conversation="short", time=30.0),
            turn_of(TEXTS[:6], conversation="long and new", time=20.0),
            turn_of(["fork", *TEXTS], conversation="elsewhere", time=40.0),
        ]
        await store.write(Batch(turns=turns))
        assert await self.found(store, TEXTS) == "long and new"
        assert await self.found(store, TEXTS[:5]) == "short"

    async def test_only_its_last_request_names_it(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:4], time=10.0)]))
        await store.write(Batch(turns=[turn_of(TEXTS[:6], time=20.0)]))
        assert await self.found(store, [*TEXTS[:4], "a fork"]) is None

    async def test_a_last_request_long_ago_is_still_found(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "RECENT", 3)
        await store.write(Batch(turns=[turn_of(TEXTS[:4])]))
        assert await self.found(store, TEXTS) == "conversation-1"
        assert await self.found(store, ["other", *TEXTS]) is None


class TestConversations:
    async def test_pages_go_from_new_to_old_and_miss_none(self, store: SqlStore) -> None:
        turns = [
            turn_of([f"{n}"], conversation=f"c{n}", tenant=tenant, time=float(n // 2))
            for n in range(7)
            for tenant in (TENANT, "tenant-b")
        ]
        await store.write(Batch(turns=turns))
        for tenant, total in ((TENANT, 7), (None, 14)):
            seen = await store.conversations(tenant, limit=3)
            while page := await store.conversations(tenant, limit=3, before=seen[-1].cursor):
                seen += page
            assert len({(one.tenant, one.id) for one in seen}) == len(seen) == total
            times = [one.seen_at for one in seen]
            assert times == sorted(times, reverse=True)
        assert {one.tenant for one in await store.conversations(TENANT)} == {TENANT}

    @pytest.mark.parametrize("cursor", ["", "x", "é", "W10", "W1siYSJdXQ", "MQ", "bnVsbA"])
    async def test_a_cursor_that_is_not_ours_is_the_clients_fault(
        self, store: SqlStore, cursor: str
    ) -> None:
        with pytest.raises(InvalidRequest) as raised:
            await store.conversations(TENANT, before=cursor)
        assert raised.value.status == 422

    async def test_one_by_its_id_for_a_tenant_and_for_the_operator(self, store: SqlStore) -> None:
        turns = [turn_of(["a"], time=1.0), turn_of(["b"], tenant="tenant-b", time=2.0)]
        await store.write(Batch(turns=turns))
        mine = await store.conversation(TENANT, "conversation-1")
        newest = await store.conversation(None, "conversation-1")
        assert mine is not None
        assert newest is not None
        assert (mine.tenant, newest.tenant) == (TENANT, "tenant-b")
        assert await store.conversation(TENANT, "unknown") is None
        assert await store.conversation("tenant-c", "conversation-1") is None


class TestEvents:
    async def test_pages_go_on_after_an_order(self, store: SqlStore) -> None:
        await store.write(Batch(events=[event_of(n) for n in range(7)]))
        seen = await store.events(TENANT, "conversation-1", limit=3)
        while page := await store.events(TENANT, "conversation-1", limit=3, after=seen[-1].order):
            seen += page
        assert [event.data["number"] for event in seen] == list(range(7))

    async def test_the_newest_ones_are_told_in_order_too(self, store: SqlStore) -> None:
        await store.write(Batch(events=[event_of(n) for n in range(7)]))
        newest = await store.events(TENANT, "conversation-1", limit=3, newest=True)
        assert [event.data["number"] for event in newest] == [4, 5, 6]

    async def test_of_a_conversation_of_a_tenant_and_of_all(self, store: SqlStore) -> None:
        happened = [
            event_of(0),
            event_of(1, conversation="other"),
            event_of(2, tenant="tenant-b"),
        ]
        await store.write(Batch(events=happened))

        async def numbers(tenant: str | None, conversation: str | None = None) -> list[int]:
            found = await store.events(tenant, conversation)
            return [event.data["number"] for event in found]

        assert await numbers(TENANT, "conversation-1") == [0]
        assert await numbers(TENANT) == [0, 1]
        assert await numbers("tenant-b", "conversation-1") == [2]
        assert await numbers(None) == [0, 1, 2]
        assert await numbers("tenant-b", "other") == []

    async def test_listening_starts_at_the_last_one(self, store: SqlStore) -> None:
        assert await store.last_event() == 0
        await store.write(Batch(events=[event_of(0)]))
        start = await store.last_event()
        await store.write(Batch(events=[event_of(1)]))
        assert [event.data["number"] for event in await store.events(None, after=start)] == [1]


class TestHistory:
    async def test_an_unknown_end_has_none(self, store: SqlStore) -> None:
        assert await store.history(TENANT, CHAIN[0]) is None
        assert await store.chain(TENANT, CHAIN[0]) is None
        assert await store.content(TENANT, CHAIN[0]) is None

    async def test_each_request_has_its_own(self, store: SqlStore) -> None:
        ends = (1, 5, 12)
        await store.write(Batch(turns=[turn_of(TEXTS[:end]) for end in ends]))
        for end in ends:
            assert await store.chain(TENANT, CHAIN[end - 1]) == tuple(CHAIN[:end])
            assert len(await store.history(TENANT, CHAIN[end - 1]) or ()) == end

    async def test_long_messages_stand_in_their_places(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IN_LIST", 2)
        texts = [text * (200 if number % 3 else 1) for number, text in enumerate(TEXTS)]
        await store.write(Batch(turns=[turn_of(["before", *texts]), turn_of(texts)]))
        assert (await store.counts(TENANT)).contents == 8
        assert await store.history(TENANT, chain_of(texts)[-1]) == tuple(map(body_of, texts))

    async def test_one_that_lacks_its_beginning_is_none(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS, start=4)]))
        assert await store.chain(TENANT, CHAIN[-1]) is None
        assert await store.history(TENANT, CHAIN[-1]) is None

    async def test_one_text_that_was_not_kept_makes_it_none(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:6], kept=False)]))
        await store.write(Batch(turns=[turn_of(TEXTS, start=6)]))
        assert await store.history(TENANT, CHAIN[-1]) is None
        assert await store.chain(TENANT, CHAIN[-1]) == tuple(CHAIN)

    async def test_a_thousand_messages(self, store: SqlStore) -> None:
        texts = [f"message {number}" for number in range(1000)]
        await store.write(Batch(turns=[turn_of(texts)]))
        assert len(await store.history(TENANT, chain_of(texts)[-1]) or ()) == 1000


class TestOpenings:
    LONG = "a long beginning " * 100  # stands in its segment
    LONGER = "a longer beginning " * 100  # is a content

    async def test_they_are_the_first_messages_that_were_kept(self, store: SqlStore) -> None:
        other = "another tenant"
        turns = [
            turn_of(["hello", "a"], kept=False),
            turn_of(["hello", "b"]),
            turn_of(["hello", "c"], tenant=other),
            turn_of(["good day"]),
            turn_of([self.LONG, self.LONG * 2, "short"]),
            turn_of(["before", self.LONGER]),
            turn_of([self.LONGER, "short"]),
            turn_of(["not kept"], kept=False),
        ]
        await store.write(Batch(turns=turns))

        def place(tenant: str, text: str) -> tuple[str, bytes]:
            return tenant, chain_of([text])[0]

        asked = {
            place(TENANT, "hello"): body_of("hello"),
            place(TENANT, self.LONG): body_of(self.LONG),
            place(TENANT, self.LONGER): body_of(self.LONGER),
            place(other, "hello"): body_of("hello"),
        }
        without = {place(other, "good day"), place(TENANT, "not kept"), place(TENANT, "never")}
        assert await store.openings({*asked, *without}) == asked
        assert await store.openings(set()) == {}


async def test_counts_are_a_tenants_own_or_all(store: SqlStore) -> None:
    assert await store.counts(None) == Counts()
    turns = [turn_of(["a", "b"]), turn_of(["a"], tenant="tenant-b")]
    event = event_of()
    await store.write(Batch([event], turns))
    mine, other = await store.counts(TENANT), await store.counts("tenant-b")
    assert (mine.conversations, mine.messages, mine.contents, mine.events) == (1, 2, 0, 1)
    sizes = sum(map(len, (*turns[0].fingerprints, *(turns[0].bodies or ()))))
    assert mine.bytes == sizes + len('{"number":0}')
    both = await store.counts(None)
    assert both == replace(mine, conversations=2, messages=3, bytes=mine.bytes + other.bytes)
