"""What is taken away and what stays, on SQLite and PostgreSQL."""

from pathlib import Path

import pytest

from proxy.core.replacements import Scope
from proxy.store import retention as module
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, Counts, Retention
from tests.store.samples import SCOPE, chain_of, event_of, new_of, turn_of

TEXTS = [f"message {number}" for number in range(6)]
CHAIN = chain_of(TEXTS)
TENANT = SCOPE.tenant
HOUR = 3600.0


async def is_kept(store: SqlStore, texts: list[str], tenant: str = TENANT) -> bool:
    return await store.history(tenant, chain_of(texts)[-1]) is not None


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
        assert gone.contents == 8
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
        assert (gone.messages, gone.contents, gone.events) == (3, 3, 1)
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

    async def test_a_long_one_takes_several_statements(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "IN_LIST", 2)
        await store.write(Batch(turns=[turn_of(TEXTS), turn_of(TEXTS[:1], conversation="two")]))
        gone = await store.forget(TENANT, "conversation-1")
        assert gone is not None
        assert gone.messages == 5
        assert await is_kept(store, TEXTS[:1])

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
        assert (gone.conversations, gone.messages, gone.contents, gone.events) == (1, 1, 2, 1)
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

    async def test_many_rows_go_in_several_transactions(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = 2 * module.ROWS_AT_A_TIME + 5
        texts = [str(number) for number in range(count)]
        happened = [event_of(number, time=0.0) for number in range(count)]
        await store.write(Batch(happened, [turn_of(texts, time=0.0)]))
        gone = await store.sweep(Retention(log_seconds=HOUR), now=2 * HOUR)
        assert (gone.messages, gone.events) == (count, count)
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
        assert gone.bytes + left.bytes == 10 * 1000 + 10 * len(
            b'{"role": "user", "content": ""}'
        ) + (10 * len('{"number": 0}'))
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
