"""A journal never blocks or fails a request, and what was recorded can be read after a flush."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy import journal as module
from proxy.core.errors import StoreUnavailable
from proxy.journal import Journal
from proxy.store.sql import SqlStore
from proxy.store.store import Batch, StoreRefused
from tests.store.samples import SCOPE, chain_of, event_of, eventually, turn_of

TENANT = SCOPE.tenant


class FakeStore:
    """Keeps batches; can be away, refuse what holds a given event, or wait for a sign."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.is_away = False
        self.refused: str | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def secret(self, name: str) -> bytes:
        return name.encode().ljust(32, b".")

    async def write(self, batch: Batch) -> None:
        await self.may_write.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        if any(event.id == self.refused for event in batch.events):
            raise StoreRefused("never")
        self.batches.append(batch)

    @property
    def numbers(self) -> list[int]:
        return [event.data["number"] for batch in self.batches for event in batch.events]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
    yield opened
    await opened.close()


class TestFlush:
    async def test_a_read_after_it_sees_every_write_made_before(self, store: SqlStore) -> None:
        journal = Journal(store)
        for number in range(10):
            journal.event(event_of(number))
        journal.turn(turn_of(["a", "b"]))
        await journal.flush()
        found = await store.events(TENANT, "conversation-1")
        assert [event.data["number"] for event in found] == list(range(10))
        assert await store.conversation(TENANT, "conversation-1") is not None

    async def test_it_waits_for_a_write_that_is_under_way(self) -> None:
        fake = FakeStore()
        journal = Journal(fake)
        fake.may_write.clear()
        journal.event(event_of(0))
        first = asyncio.ensure_future(journal.flush())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(journal.flush())
        await asyncio.sleep(0)
        assert not second.done()
        fake.may_write.set()
        await asyncio.gather(first, second)
        assert fake.numbers == [0]

    async def test_nothing_recorded_is_nothing_written(self) -> None:
        fake = FakeStore()
        await Journal(fake).flush()
        assert fake.batches == []

    async def test_many_entries_go_in_several_batches_in_order(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "BATCH_ENTRIES", 3)
        fake = FakeStore()
        journal = Journal(fake)
        for number in range(10):
            journal.event(event_of(number))
        await journal.flush()
        assert [len(batch.events) for batch in fake.batches] == [3, 3, 3, 1]
        assert fake.numbers == list(range(10))


class TestRun:
    async def test_it_writes_by_itself(self) -> None:
        fake = FakeStore()
        journal = Journal(fake, flush_seconds=0.01)
        running = asyncio.ensure_future(journal.run())

        async def written() -> bool:
            return fake.numbers == [0, 1]

        journal.event(event_of(0))
        journal.event(event_of(1))
        await eventually(written)
        running.cancel()

    async def test_many_entries_do_not_wait_for_the_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "FULL_ENTRIES", 5)
        fake = FakeStore()
        journal = Journal(fake, flush_seconds=3600)
        running = asyncio.ensure_future(journal.run())

        async def written() -> bool:
            return fake.numbers == list(range(5))

        for number in range(5):
            journal.event(event_of(number))
        await eventually(written)
        running.cancel()

    async def test_a_busy_time_makes_larger_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three entries are there at first; a fourth comes in the longer time that they get."""
        monkeypatch.setattr(module, "BUSY_ENTRIES", 3)
        monkeypatch.setattr(module, "BUSY_FACTOR", 3600.0)
        monkeypatch.setattr(module, "FULL_ENTRIES", 4)
        fake = FakeStore()
        journal = Journal(fake, flush_seconds=0.01)
        waits: list[float] = []
        usual = journal._fills_up

        async def fills_up(seconds: float) -> None:
            waits.append(seconds)
            await usual(seconds)

        monkeypatch.setattr(journal, "_fills_up", fills_up)
        running = asyncio.ensure_future(journal.run())

        async def waits_longer() -> bool:
            return len(waits) == 2

        async def written() -> bool:
            return fake.numbers == list(range(4))

        for number in range(3):
            journal.event(event_of(number))
        await eventually(waits_longer)
        assert fake.batches == []
        journal.event(event_of(3))
        await eventually(written)
        assert waits == [0.01, pytest.approx(0.01 * 3599)]
        running.cancel()

    async def test_it_goes_on_after_the_store_was_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
        fake = FakeStore()
        fake.is_away = True
        journal = Journal(fake, flush_seconds=0.01)
        running = asyncio.ensure_future(journal.run())
        journal.event(event_of(0))

        async def behind() -> bool:
            return journal.behind

        async def written() -> bool:
            return fake.numbers == [0, 1] and not journal.behind

        await eventually(behind)
        journal.event(event_of(1))
        fake.is_away = False
        await eventually(written)
        assert journal.dropped == 0
        running.cancel()


class TestAway:
    async def test_recording_goes_on_and_flush_says_so(self) -> None:
        fake = FakeStore()
        fake.is_away = True
        journal = Journal(fake)
        journal.event(event_of(0))
        with pytest.raises(StoreUnavailable):
            await journal.flush()
        journal.event(event_of(1))
        fake.is_away = False
        await journal.flush()
        assert fake.numbers == [0, 1]

    async def test_the_backlog_is_bounded_and_drops_are_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_BACKLOG_ENTRIES", 4)
        fake = FakeStore()
        fake.is_away = True
        journal = Journal(fake)
        for number in range(10):
            journal.event(event_of(number))
            with pytest.raises(StoreUnavailable):
                await journal.flush()
        assert journal.dropped == 6
        fake.is_away = False
        await journal.flush()
        assert fake.numbers == [6, 7, 8, 9]

    async def test_the_backlog_is_bounded_in_bytes(self) -> None:
        fake = FakeStore()
        journal = Journal(fake, max_backlog_bytes=25_000)
        for number in range(10):
            journal.turn(turn_of(["x" * 10_000], conversation=f"c{number}"))
        assert journal.dropped == 8
        await journal.flush()
        kept = [turn.conversation for batch in fake.batches for turn in batch.turns]
        assert kept == ["c8", "c9"]

    async def test_a_flush_that_is_cancelled_loses_nothing(self) -> None:
        fake = FakeStore()
        journal = Journal(fake)
        fake.may_write.clear()
        journal.event(event_of(0))
        flushing = asyncio.ensure_future(journal.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        fake.may_write.set()
        await journal.flush()
        assert fake.numbers == [0]

    async def test_an_entry_that_is_never_taken_does_not_keep_the_others_back(self) -> None:
        fake = FakeStore()
        events = [event_of(number) for number in range(3)]
        fake.refused = events[1].id
        journal = Journal(fake)
        for event in events:
            journal.event(event)
        await journal.flush()
        assert fake.numbers == [0, 2]
        assert journal.dropped == 1

    async def test_a_real_store_refuses_one_and_takes_the_rest(self, store: SqlStore) -> None:
        journal = Journal(store)
        journal.turn(turn_of(["a"], conversation="good"))
        journal.turn(turn_of(["b"], conversation="bad")._replace(message_count=10**30))
        await journal.flush()
        assert [one.id for one in await store.conversations(TENANT)] == ["good"]
        assert journal.dropped == 1


class TestClose:
    async def test_what_is_left_is_written(self) -> None:
        fake = FakeStore()
        journal = Journal(fake)
        journal.event(event_of(0))
        await journal.close()
        assert fake.numbers == [0]

    async def test_it_gives_up_in_time_and_counts_what_is_lost(self) -> None:
        fake = FakeStore()
        fake.may_write.clear()
        journal = Journal(fake)
        journal.event(event_of(0))
        await journal.close(seconds=0.01)
        assert journal.dropped == 1
        away = FakeStore()
        away.is_away = True
        journal = Journal(away)
        journal.event(event_of(0))
        await journal.close()
        assert journal.dropped == 1


class TestWhatIsKept:
    async def test_without_messages_no_text_reaches_the_file(
        self, store: SqlStore, tmp_path: Path
    ) -> None:
        journal = Journal(store, messages=False)
        words = "a very private sentence"
        journal.turn(turn_of([words], head=words.encode(), tools=words.encode()))
        await journal.flush()
        assert await store.chain(TENANT, chain_of([words])[-1]) == tuple(chain_of([words]))
        await store.close()
        assert not any(words.encode() in file.read_bytes() for file in _files(tmp_path))

    async def test_images_are_kept_as_hash_and_size_unless_asked_for(self, store: SqlStore) -> None:
        pixels = base64.b64encode(b"pixels" * 100).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}
        body = json.dumps({"role": "user", "content": [part]}).encode()
        for images, text in ((False, "one"), (True, "two")):
            turn = turn_of([text], conversation=text, head=b"[" + body + b"]")
            turn = turn._replace(bodies=[body])
            journal = Journal(store, images=images)
            journal.turn(turn)
            await journal.flush()
            (kept,) = await store.history(TENANT, turn.last_fingerprint) or ()
            found = await store.conversation(TENANT, text)
            assert found is not None
            assert found.head is not None
            head = await store.content(TENANT, found.head) or b""
            assert [kept == body, body in head] == [images, images]
            assert (b"bytes=600;hash=" in kept) is not images

    async def test_views_of_the_request_are_copied(self) -> None:
        """A slice of a buffer would keep the whole request in memory."""
        fake = FakeStore()
        journal = Journal(fake)
        turn = turn_of(["a"])
        (body,) = turn.bodies or ()
        journal.turn(turn._replace(bodies=[memoryview(body)]))  # type: ignore[list-item]
        await journal.flush()
        (stored,) = fake.batches[0].turns
        assert [type(each) for each in stored.bodies or ()] == [bytes]
        assert stored.bodies == [body]


def _files(directory: Path) -> list[Path]:
    return list(directory.iterdir())
