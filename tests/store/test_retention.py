"""What is taken away and what stays, on SQLite and PostgreSQL."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncConnection

from proxy.core.replacements import Scope
from proxy.store import retention as module
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Counts, Retention
from tests.store.samples import SCOPE, body_of, chain_of, event_of, new_of, turn_of

TEXTS = [f"message {number}" for number in range(6)]
CHAIN = chain_of(TEXTS)
TENANT = SCOPE.tenant
HOUR = 3600.0


async def is_kept(store: SqlStore, texts: list[str], tenant: str = TENANT) -> bool:
    return await store.history(tenant, chain_of(texts)[-1]) is not None


@st.composite
def some_requests(draw: st.DrawFn) -> list[tuple[str, list[str], bool]]:
    """Who sends what, over two words of which one is long; whether it is forgotten right after."""
    texts = st.lists(st.sampled_from(["a", "b" * 2000]), min_size=1, max_size=5)
    one = st.tuples(st.sampled_from(["one", "two", "three"]), texts, st.booleans())
    return draw(st.lists(one, min_size=1, max_size=7))


class TestForget:
    async def test_nothing_of_it_is_left(self, store: SqlStore) -> None:
        await store.write(
            Batch([event_of(0), event_of(1)], [turn_of(TEXTS, head=b"[]", tools=b"[1]")])
        )
        await store.commit(
            SCOPE,
            CHAIN[0],
            CHAIN,
            planned_on=[],
            new=[new_of(CHAIN, 3)],
            lease=None,
            conversation="conversation-1",
        )
        gone = await store.forget(TENANT, "conversation-1")
        assert gone is not None
        assert (gone.conversations, gone.messages, gone.events, gone.replacements) == (1, 6, 2, 1)
        assert gone.contents == 2
        assert await store.counts(None) == Counts()
        assert await store.replacements(SCOPE, CHAIN[0], CHAIN) == ()
        assert await store.conversation(TENANT, "conversation-1") is None

    async def test_an_unknown_one_and_another_tenants_are_none(self, store: SqlStore) -> None:
        await store.write(Batch([event_of()], [turn_of(TEXTS)]))
        before = await store.counts(None)
        assert await store.forget(TENANT, "unknown") is None
        assert await store.forget("tenant-b", "conversation-1") is None
        assert await store.counts(None) == before

    async def test_what_others_use_stays(self, store: SqlStore) -> None:
        fork = [*TEXTS[:3], "a fork"]
        turns = [
            turn_of(TEXTS, head=b"[]"),
            turn_of(fork, conversation="fork", head=b"[]"),
            turn_of(TEXTS, tenant="tenant-b", head=b"[]"),
        ]
        await store.write(Batch([event_of(0), event_of(1, conversation="fork")], turns))
        gone = await store.forget(TENANT, "conversation-1")
        assert gone is not None
        assert (gone.messages, gone.contents, gone.events) == (6, 0, 1)
        assert not await is_kept(store, TEXTS)
        assert await is_kept(store, fork)
        assert await is_kept(store, TEXTS, tenant="tenant-b")
        found = await store.conversation(TENANT, "fork")
        assert found is not None
        assert found.head is not None
        assert await store.content(TENANT, found.head) == b"[]"
        assert len(await store.events(TENANT, "fork")) == 1

    async def test_a_history_that_two_sent_goes_with_the_second(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(TEXTS), turn_of(TEXTS[:4], conversation="two")]))
        await store.forget(TENANT, "conversation-1")
        assert await is_kept(store, TEXTS[:4])
        assert not await is_kept(store, TEXTS[:5])
        await store.forget(TENANT, "two")
        assert await store.counts(None) == Counts()

    async def test_earlier_branches_and_heads_of_it_go_too(self, store: SqlStore) -> None:
        edited = [TEXTS[0], "edited", *TEXTS[2:]]
        turns = [
            turn_of(TEXTS, time=1.0, head=b"[1]"),
            turn_of(edited, time=2.0, head=b"[2]"),
        ]
        for turn in turns:
            await store.write(Batch(turns=[turn]))
        await store.forget(TENANT, "conversation-1")
        assert await store.counts(None) == Counts()

    async def test_what_two_stand_on_goes_with_the_last_of_them(self, store: SqlStore) -> None:
        """Whoever wrote it: it is handed on to who still needs it."""
        for first, second in (("one", "two"), ("two", "one")):
            turns = [
                turn_of(TEXTS[:2], conversation="one"),
                turn_of(TEXTS[:4], conversation="two", start=2),
                turn_of([*TEXTS[:2], "a fork"], conversation="one", start=2),
            ]
            await store.write(Batch(turns=turns))
            gone = await store.forget(TENANT, first)
            assert gone is not None
            assert gone.messages == (1 if first == "one" else 2)
            left = TEXTS[:4] if second == "two" else [*TEXTS[:2], "a fork"]
            assert await is_kept(store, left)
            await store.forget(TENANT, second)
            assert await store.counts(None) == Counts()

    async def test_what_another_sent_alike_stays(self, store: SqlStore) -> None:
        turns = [turn_of(TEXTS, conversation=name) for name in ("one", "two", "three")]
        await store.write(Batch(turns=turns))
        for name in ("one", "three"):
            gone = await store.forget(TENANT, name)
            assert gone is not None
            assert (gone.conversations, gone.messages) == (1, 0)
        assert await is_kept(store, TEXTS)
        await store.forget(TENANT, "two")
        assert await store.counts(None) == Counts()

    async def test_long_messages_go_with_the_last_that_has_them(self, store: SqlStore) -> None:
        long = ["long " * 1000, "longer " * 1000]
        turns = [
            turn_of(["first", *long], conversation="zero"),  # has them in its segment
            turn_of(["a", *long], conversation="one"),
            turn_of(["b", long[0]], conversation="two"),
        ]
        await store.write(Batch(turns=turns))
        gone = await store.forget(TENANT, "zero")
        assert gone is not None
        assert (gone.messages, gone.contents) == (3, 0)
        assert await is_kept(store, ["a", *long])
        gone = await store.forget(TENANT, "one")
        assert gone is not None
        assert (gone.messages, gone.contents) == (3, 1)
        assert await is_kept(store, ["b", long[0]])
        await store.forget(TENANT, "two")
        assert await store.counts(None) == Counts()

    async def test_a_long_one_takes_several_statements(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IN_LIST", 2)
        await store.write(Batch(turns=[turn_of(TEXTS), turn_of(TEXTS[:1], conversation="two")]))
        gone = await store.forget(TENANT, "conversation-1")
        assert gone is not None
        assert gone.messages == 6
        assert await is_kept(store, TEXTS[:1])

    @given(drawn=some_requests())
    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    async def test_the_others_keep_theirs_and_with_the_last_all_is_gone(
        self, store: SqlStore, drawn: list[tuple[str, list[str], bool]]
    ) -> None:
        """In whatever order they are forgotten, and however much they share."""
        tenant = f"tenant-{id(drawn)}"
        last: dict[str, list[str]] = {}
        for number, (name, texts, at_once) in enumerate(drawn):
            turn = turn_of(texts, tenant=tenant, conversation=name, time=1000.0 + number)
            await store.write(Batch([event_of(tenant=tenant, conversation=name)], [turn]))
            last[name] = texts
            if at_once:
                await store.forget(tenant, name)
                del last[name]
            for kept in last.values():
                assert await is_kept(store, kept, tenant)
        for name in list(last):
            await store.forget(tenant, name)
            del last[name]
            for kept in last.values():
                assert await is_kept(store, kept, tenant)
        assert await store.counts(tenant) == Counts()

    async def test_what_it_said_is_no_longer_in_the_file(self, tmp_path: Path) -> None:
        store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
        words = "a very private sentence"
        await store.write(Batch(turns=[turn_of([words, *TEXTS])]))
        assert _is_in_files(tmp_path, words)
        await store.forget(TENANT, "conversation-1")
        assert not _is_in_files(tmp_path, words)
        await store.close()
        assert not _is_in_files(tmp_path, words)


class TestAge:
    async def test_what_was_last_seen_too_long_ago_goes(self, store: SqlStore) -> None:
        old = turn_of(["old"], conversation="old", time=0.0, head=b"[0]")
        new = turn_of(TEXTS, conversation="new", time=9 * HOUR, head=b"[9]")
        events = [event_of(0, time=0.0), event_of(1, time=9 * HOUR)]
        await store.write(Batch(events, [old, new]))
        gone = await store.sweep(Retention(log_seconds=5 * HOUR), now=10 * HOUR)
        assert (gone.conversations, gone.messages, gone.contents, gone.events) == (1, 1, 1, 1)
        assert await store.conversation(TENANT, "old") is None
        assert await is_kept(store, TEXTS)
        assert not await is_kept(store, ["old"])
        assert [event.data["number"] for event in await store.events(None)] == [1]

    async def test_a_conversation_that_goes_on_keeps_its_beginning(self, store: SqlStore) -> None:
        """Its first messages are old, but were sent again an hour ago."""
        for count, hours in ((2, 0), (4, 5), (6, 9)):
            turn = turn_of(TEXTS[:count], time=hours * HOUR, head=b"[]", tools=b"[]")
            await store.write(Batch(turns=[turn]))
        await store.sweep(Retention(log_seconds=2 * HOUR), now=10 * HOUR)
        assert await is_kept(store, TEXTS)
        found = await store.conversation(TENANT, "conversation-1")
        assert found is not None
        assert found.head is not None
        assert await store.content(TENANT, found.head) == b"[]"

    async def test_a_shared_text_stays_while_anyone_uses_it(self, store: SqlStore) -> None:
        await store.write(Batch(turns=[turn_of(["same"], conversation="old", time=0.0)]))
        await store.write(Batch(turns=[turn_of(["new", "same"], time=9 * HOUR)]))
        gone = await store.sweep(Retention(log_seconds=5 * HOUR), now=10 * HOUR)
        assert (gone.messages, gone.contents) == (1, 0)
        assert await is_kept(store, ["new", "same"])

    async def test_followers_go_before_what_they_follow(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is left at any moment is a history from its beginning."""
        monkeypatch.setattr(module, "ROWS_AT_A_TIME", 1)
        for count in range(1, 6):
            turn = turn_of(TEXTS[:count], time=count * 10.0, start=count - 1)
            await store.write(Batch(turns=[turn]))
        for count in range(5, 0, -1):
            assert await is_kept(store, TEXTS[:count])

            async def one_step(connection: AsyncConnection) -> object:
                return await module._delete_old_segments(connection, HOUR)

            assert await store._database.write(one_step) is not None
            assert not await is_kept(store, TEXTS[:count])
            assert count == 1 or await is_kept(store, TEXTS[: count - 1])

    async def test_many_rows_go_in_several_transactions(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = 2 * module.ROWS_AT_A_TIME + 5
        happened = [event_of(number, time=0.0) for number in range(count)]
        turns = [turn_of([str(number)], time=0.0) for number in range(count)]
        await store.write(Batch(happened, turns))
        gone = await store.sweep(Retention(log_seconds=HOUR), now=2 * HOUR)
        assert (gone.conversations, gone.messages, gone.events) == (1, count, count)
        assert await store.counts(None) == Counts()

    async def test_without_a_limit_nothing_goes(self, store: SqlStore) -> None:
        await store.write(Batch([event_of(time=0.0)], [turn_of(TEXTS, time=0.0)]))
        assert await store.sweep(Retention()) == Counts()
        assert await is_kept(store, TEXTS)

    async def test_the_clock_is_the_databases_unless_given(self, store: SqlStore) -> None:
        await store.write(Batch([event_of(time=0.0)], [turn_of(TEXTS, time=0.0)]))
        await store.sweep(Retention(log_seconds=HOUR))
        assert await store.counts(None) == Counts()


class TestSize:
    async def test_the_oldest_go_until_the_rest_fits(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "ROWS_AT_A_TIME", 1)
        texts = [f"{number}".ljust(1000, "x") for number in range(10)]
        for number, text in enumerate(texts):
            turn = turn_of([text], conversation=f"c{number}", time=number * HOUR)
            await store.write(Batch([event_of(number, time=number * HOUR)], [turn]))
        gone = await store.sweep(Retention(max_log_bytes=4500), now=100 * HOUR)
        left = await store.counts(None)
        assert 2000 < left.bytes <= 4500
        assert gone.bytes + left.bytes == sum(
            len(body_of(text)) + len(chain_of([text])[0]) + len('{"number":0}') for text in texts
        )
        kept = [await is_kept(store, [text]) for text in texts]
        assert kept == sorted(kept)
        assert kept[-1]

    async def test_what_fits_stays(self, store: SqlStore) -> None:
        await store.write(Batch([event_of(time=0.0)], [turn_of(TEXTS, time=0.0)]))
        assert await store.sweep(Retention(max_log_bytes=10**6), now=HOUR) == Counts()

    async def test_the_newest_minute_stays_whatever_its_size(self, store: SqlStore) -> None:
        await store.write(Batch([event_of(time=HOUR)], [turn_of(TEXTS, time=HOUR)]))
        assert await store.sweep(Retention(max_log_bytes=0), now=HOUR + 30) == Counts()
        await store.sweep(Retention(max_log_bytes=0), now=HOUR + 90)
        left = await store.counts(None)
        assert (left.bytes, left.messages, left.events) == (0, 0, 0)


async def test_tenants_are_swept_alike_and_apart(store: SqlStore) -> None:
    scope = Scope("tenant-b", SCOPE.upstream, SCOPE.model)
    old = turn_of(TEXTS, tenant=scope.tenant, time=0.0)
    await store.write(Batch(turns=[old, turn_of(TEXTS, time=10 * HOUR)]))
    await store.sweep(Retention(log_seconds=HOUR), now=10 * HOUR)
    assert await is_kept(store, TEXTS)
    assert await store.counts("tenant-b") == Counts()


def test_plus_adds_each_count() -> None:
    assert module.plus(Counts(1, 2), Counts(3, 4, bytes=5)) == Counts(4, 6, bytes=5)


def _is_in_files(directory: Path, words: str) -> bool:
    return any(words.encode() in file.read_bytes() for file in directory.iterdir())
