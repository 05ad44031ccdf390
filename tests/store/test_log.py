"""What the log takes in, on SQLite and PostgreSQL: once, and word for word."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.core.errors import StoreUnavailable
from proxy.core.newest import Newest
from proxy.store import log as module
from proxy.store.segments import INLINE_BYTES, LONG_RUN
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Event, EventKind, Retention, Turn
from tests.store.conftest import OpenStore
from tests.store.samples import SCOPE, body_of, chain_of, event_of, turn_of

TEXTS = [f"message {number}" for number in range(10)]
CHAIN = chain_of(TEXTS)
TENANT = SCOPE.tenant


async def history(store: SqlStore, texts: Sequence[str], tenant: str = TENANT) -> list[Any] | None:
    bodies = await store.history(tenant, chain_of(texts)[-1])
    return None if bodies is None else [json.loads(body)["content"] for body in bodies]


class TestHistory:
    async def test_it_comes_back_as_it_was_sent(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        """White space, 30-digit integers, lone surrogates, unknown keys, duplicate keys."""
        bodies = [
            b'{ "role":"user",\n "content" : "a \\ud83d b" }',
            b'{"role":"assistant","n":123456789012345678901234567890,"f":1.0,"x_new":{"a":[null]}}',
            b'{"role":"user","content":"one","content":"two"}',
            '{"role":"user","content":"日本語 \u2028"}'.encode(),
        ]
        chain = chain_of([str(number) for number in range(4)])
        turn = turn_of(["0", "1", "2", "3"])._replace(bodies=bodies)
        await store.write(Batch(turns=[turn]))
        kept = await another_store().history(TENANT, chain[-1])
        assert kept == tuple(bodies)
        assert [json.loads(body) for body in kept or ()] == [json.loads(body) for body in bodies]

    async def test_the_next_turn_writes_only_what_is_new(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:4])]))
        assert store.unlogged(TENANT, CHAIN) == 4
        before = await store.counts(TENANT)
        await store.write(Batch(turns=[turn_of(TEXTS, start=4)]))
        after = await store.counts(TENANT)
        assert await history(store, TEXTS) == TEXTS
        assert (before.messages, after.messages) == (4, 10)
        assert store.unlogged(TENANT, CHAIN) == 10

    async def test_another_worker_that_sends_it_all_writes_it_once(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:4])]))
        other = another_store()
        assert other.unlogged(TENANT, CHAIN) == 0
        await other.write(Batch(turns=[turn_of(TEXTS)]))
        counts = await store.counts(TENANT)
        assert (counts.messages, counts.contents, counts.conversations) == (10, 0, 1)

    @pytest.mark.parametrize(("begun", "kept"), [(3, 11), (4, 14)])
    async def test_a_fork_shares_what_a_request_ended_with(
        self, store: SqlStore, begun: int, kept: int
    ) -> None:
        """In the middle of what a request brought there is nothing to go on from."""
        fork = [*TEXTS[:3], "something else"]
        turns = [turn_of(TEXTS[:begun]), turn_of(TEXTS), turn_of(fork, conversation="fork")]
        await store.write(Batch(turns=turns))
        assert await history(store, TEXTS) == TEXTS
        assert await history(store, fork) == fork
        assert (await store.counts(TENANT)).messages == kept

    async def test_equal_long_messages_are_kept_once_per_tenant(self, store: SqlStore) -> None:
        same = ["same" * INLINE_BYTES] * 3
        await store.write(
            Batch(turns=[turn_of(same, head=b"[]", tools=b"[]"), turn_of(same, tenant="b")])
        )
        counts = [await store.counts(tenant) for tenant in (TENANT, "b", None)]
        # The first time in the segment, then as one content, beside the head.
        assert [count.contents for count in counts] == [2, 1, 3]
        assert [count.messages for count in counts] == [3, 3, 6]
        assert await history(store, same) == same

    async def test_tenants_of_one_batch_do_not_share_and_may_be_called_alike(
        self, store: SqlStore
    ) -> None:
        """The first two have one name in the database, where NUL cannot stand."""
        tenants, long = ["a\0", "a\ufffd", "b"], ["long " * INLINE_BYTES] * 2
        turns = [turn_of(long, tenant=tenant, head=b"[]") for tenant in tenants]
        await store.write(Batch(turns=turns))
        await store.write(Batch(turns=[turn_of([*long, "more"], tenant=each) for each in tenants]))
        for tenant in tenants:
            assert await history(store, [*long, "more"], tenant=tenant) == [*long, "more"]
            assert (await store.counts(tenant)).messages == 3
            assert (await store.counts(tenant)).contents == 2
        assert (await store.counts(None)).messages == 6

    async def test_a_long_message_is_a_content_once_it_comes_again(self, store: SqlStore) -> None:
        long, kept = "long " * INLINE_BYTES, []
        for number in range(4):
            await store.write(Batch(turns=[turn_of([str(number), long])]))
            counts = await store.counts(TENANT)
            kept.append((counts.contents, counts.bytes > (counts.contents + 1) * len(long)))
            assert await history(store, [str(number), long]) == [str(number), long]
        assert kept == [(0, True), (1, True), (1, True), (1, True)]
        assert counts.bytes < 3 * len(long)

    async def test_what_was_written_too_long_ago_is_not_known_again(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store._writer, "_written", Newest(1))
        for text in ("one ", "two ", "one "):
            await store.write(Batch(turns=[turn_of([text * INLINE_BYTES, text])]))
        assert (await store.counts(TENANT)).contents == 0

    async def test_a_history_that_slides_keeps_its_texts_twice(self, store: SqlStore) -> None:
        """A client that leaves out its first message has another history every time."""
        texts = [f"{number} ".ljust(100, "x") for number in range(40)]
        for first in range(3):
            await store.write(Batch(turns=[turn_of(texts[first : first + LONG_RUN + 5])]))
        counts = await store.counts(TENANT)
        assert (counts.messages, counts.contents) == (3 * (LONG_RUN + 5), LONG_RUN + 5)
        assert await history(store, texts[2 : LONG_RUN + 7]) == texts[2 : LONG_RUN + 7]

    async def test_one_batch_can_hold_a_whole_conversation(self, store: SqlStore) -> None:
        """Its turns, the last of them sixty-four times, and some that bring only what is new."""
        turns = [
            turn_of(TEXTS[:2]),
            turn_of(TEXTS[:4], start=2),
            *[turn_of(TEXTS[:6])] * 64,
            turn_of(TEXTS[:6], start=6),
            turn_of(TEXTS, start=6),
        ]
        await store.write(Batch(turns=turns))
        assert await history(store, TEXTS) == TEXTS
        assert (await store.counts(TENANT)).messages == 10
        assert store.unlogged(TENANT, CHAIN) == 10

    async def test_another_tenant_has_no_part_in_it(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS)]))
        assert await history(store, TEXTS, tenant="tenant-b") is None
        assert await store.chain("tenant-b", CHAIN[-1]) is None
        assert store.unlogged("tenant-b", CHAIN) == 0

    async def test_without_text_there_is_a_chain_and_no_history(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS, kept=False)]))
        assert await store.history(TENANT, CHAIN[-1]) is None
        assert await store.chain(TENANT, CHAIN[-1]) == tuple(CHAIN)
        assert (await store.counts(TENANT)).contents == 0

    async def test_text_kept_later_fills_what_was_left_out(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS[:4], kept=False)]))
        await another_store().write(Batch(turns=[turn_of(TEXTS)]))
        assert await history(store, TEXTS) == TEXTS

    async def test_head_and_tools_are_kept_as_sent(self, store: SqlStore) -> None:
        head, tools = b'[{"role":"system", "content":"be kind"}]', b'[ {"type":"function"} ]'
        await store.write(Batch(turns=[turn_of(TEXTS, head=head, tools=tools)]))
        found = await store.conversation(TENANT, "conversation-1")
        assert found is not None
        assert found.head is not None
        assert found.tools is not None
        assert await store.content(TENANT, found.head) == head
        assert await store.content(TENANT, found.tools) == tools
        assert await store.content("tenant-b", found.head) is None

    async def test_the_key_of_a_content_cannot_be_computed_outside(
        self, store: SqlStore, tmp_path: Path
    ) -> None:
        await store.write(Batch(turns=[turn_of(["guess me"], head=b"[1]")]))
        found = await store.conversation(TENANT, "conversation-1")
        other = SqlStore(f"sqlite:///{tmp_path}/other.db")
        await other.write(Batch(turns=[turn_of(["guess me"], head=b"[1]")]))
        elsewhere = await other.conversation(TENANT, "conversation-1")
        await other.close()
        assert found is not None
        assert elsewhere is not None
        assert found.head != elsewhere.head

    async def test_what_another_worker_deleted_is_written_again_soon(
        self, store: SqlStore, another_store: OpenStore
    ) -> None:
        """This worker believes that the beginning is there; the database knows better."""
        await store.write(Batch(turns=[turn_of(TEXTS[:6])]))
        await another_store().forget(TENANT, "conversation-1")
        start = store.unlogged(TENANT, CHAIN[:8])
        assert start == 6
        await store.write(Batch(turns=[turn_of(TEXTS[:8], start=start)]))
        assert await history(store, TEXTS[:8]) is None
        start = store.unlogged(TENANT, CHAIN)
        assert start == 0
        await store.write(Batch(turns=[turn_of(TEXTS, start=start)]))
        assert await history(store, TEXTS) == TEXTS

    async def test_a_long_history_takes_several_statements(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IN_LIST", 3)
        monkeypatch.setattr(module, "OFF_LOOP_BYTES", 10)
        await store.write(Batch(turns=[turn_of(TEXTS)]))
        await store.write(Batch(turns=[turn_of([*TEXTS, "more"])]))
        assert await history(store, [*TEXTS, "more"]) == [*TEXTS, "more"]


class TestConversation:
    async def test_it_is_what_its_last_request_was(self, store: SqlStore) -> None:
        first = turn_of(TEXTS[:2], time=10.0, labels={"session": "s"}, gauge={"tokens": 5})
        await store.write(Batch(turns=[first]))
        last = turn_of(TEXTS[:4], time=20.0)._replace(model="model-2", gauge={"tokens": 9})
        await store.write(Batch(turns=[last]))
        found = await store.conversation(TENANT, "conversation-1")
        assert found is not None
        assert (found.created_at, found.seen_at, found.message_count) == (10.0, 20.0, 4)
        assert (found.root, found.last_fingerprint) == (CHAIN[0], CHAIN[3])
        assert (found.scope.model, found.labels, found.gauge) == ("model-2", {}, {"tokens": 9})

    async def test_what_arrives_late_does_not_turn_it_back(self, store: SqlStore) -> None:
        for turns in ([turn_of(TEXTS[:4], time=20.0)], [turn_of(TEXTS[:2], time=10.0)]):
            await store.write(Batch(turns=turns))
        late_in_one = [turn_of(TEXTS[:6], time=30.0), turn_of(TEXTS[:3], time=25.0)]
        await store.write(Batch(turns=late_in_one))
        found = await store.conversation(TENANT, "conversation-1")
        assert found is not None
        assert found.message_count == 6


class TestEvents:
    async def test_they_are_told_in_the_order_they_came(self, store: SqlStore) -> None:
        kinds = list(EventKind)
        happened = [event_of(n, kind=kind) for n, kind in enumerate(kinds)]
        await store.write(Batch(events=happened[:5]))
        await store.write(Batch(events=happened[5:]))
        found = await store.events(TENANT, "conversation-1")
        assert [replace(event, order=0) for event in found] == happened
        assert [event.order for event in found] == sorted({event.order for event in found})

    async def test_data_of_any_kind_is_taken(self, store: SqlStore) -> None:
        data = {"text": "\0 \ud83d", "path": Path("x"), "big": 10**30}
        event = Event(TENANT, "c\0\ud83d", EventKind.WARNING, 1.0, data)
        await store.write(Batch(events=[event]))
        (found,) = await store.events(TENANT, "c\0\ud83d")
        assert found.data == {**data, "path": "x"}

    async def test_a_number_that_is_none_is_null(self, store: SqlStore) -> None:
        """JSON has no word for it, and whoever reads the log reads JSON."""
        event = Event(TENANT, "c", EventKind.WARNING, 1.0, {"nan": float("nan"), "one": 1.5})
        await store.write(Batch(events=[event]))
        (found,) = await store.events(TENANT, "c")
        assert found.data == {"nan": None, "one": 1.5}

    async def test_a_batch_that_fails_leaves_nothing(self, store: SqlStore) -> None:
        bad = turn_of(["other"])._replace(message_count=10**30)
        with pytest.raises(StoreUnavailable):
            await store.write(Batch(events=[event_of()], turns=[turn_of(TEXTS), bad]))
        assert (await store.counts(None)).messages == 0
        assert await store.events(TENANT) == ()
        assert store.unlogged(TENANT, CHAIN) == 0


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[list[int], list[str]]]:
    """Event numbers, and histories over two words so that they share their beginnings."""
    words = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5)
    one = st.tuples(st.lists(st.integers(0, 5), max_size=3), words)
    return draw(st.lists(one, min_size=1, max_size=4))


class TestAppendIsIdempotent:
    @given(drawn=batches())
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    async def test_append_twice_is_append_once(
        self, store: SqlStore, drawn: list[tuple[list[int], list[str]]]
    ) -> None:
        tenant = f"tenant-{id(drawn)}-{len(drawn)}"
        await store.forget(tenant, "conversation-1")
        made = [
            Batch(
                [event_of(number, tenant=tenant) for number in numbers],
                [turn_of(words, tenant=tenant, time=1000.0 + place)],
            )
            for place, (numbers, words) in enumerate(drawn)
        ]
        for batch in made:
            await store.write(batch)
        once = await store.counts(tenant), await store.events(tenant, "conversation-1")
        for batch in (*made, *reversed(made)):
            await store.write(batch)
        assert (await store.counts(tenant), await store.events(tenant, "conversation-1")) == once
        for _, words in drawn:
            assert await history(store, words, tenant) == words


def test_the_body_of_a_sample_is_its_text() -> None:
    turn: Turn = turn_of(["hello"])
    assert list(turn.bodies or ()) == [body_of("hello")]


async def test_an_empty_batch_changes_nothing(store: SqlStore) -> None:
    await store.write(Batch())
    assert await store.sweep(Retention()) == await store.counts(None)
