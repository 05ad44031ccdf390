"""A request as it is received: its body bounded, and the client's leaving noticed rightly."""

import asyncio
import contextlib
from collections import deque
from typing import Any

import pytest

from proxy.core.errors import InvalidRequest
from proxy.incoming import ClientGone, Incoming, while_connected

GONE = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def receiving(*messages: dict[str, Any]) -> Any:
    left = deque(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return left.popleft()

    return receive


def incoming(*messages: Any, limit: int = 100, declared: int | None = None) -> Incoming:
    return Incoming(receiving(*messages), max_body_bytes=limit, declared_bytes=declared)


class TestBody:
    async def test_whole(self) -> None:
        assert await incoming(part(b"ab"), part(b""), part(b"c", more=False)).whole() == b"abc"
        assert await incoming(part(b"", more=False)).whole() == b""

    async def test_a_beginning_and_the_rest(self) -> None:
        request = incoming(part(b"ab"), part(b"cd"), part(b"ef", more=False))
        assert await request.beginning(up_to_bytes=3) == (b"abcd", False)
        assert [c async for c in request.rest(b"abcd")] == [b"abcd", b"ef"]
        assert await request.next_chunk() is None

    async def test_a_short_body_is_all_of_it(self) -> None:
        request = incoming(part(b"ab"), part(b"c", more=False))
        assert await request.beginning(up_to_bytes=3) == (b"abc", True)

    async def test_over_the_limit_is_413(self) -> None:
        request = incoming(part(b"x" * 60), part(b"x" * 60), limit=100)
        with pytest.raises(InvalidRequest) as refused:
            await request.whole()
        assert refused.value.status == 413
        assert request.refusal is refused.value

    async def test_exactly_the_limit_is_taken(self) -> None:
        assert len(await incoming(part(b"x" * 100, more=False), declared=100).whole()) == 100

    async def test_a_declared_length_over_the_limit_is_413_before_anything_is_read(self) -> None:
        request = incoming(declared=101)
        with pytest.raises(InvalidRequest):
            await request.whole()

    async def test_a_client_that_leaves_while_sending(self) -> None:
        request = incoming(part(b"ab"), GONE)
        with pytest.raises(ClientGone):
            await request.whole()
        with pytest.raises(ClientGone):
            await request.next_chunk()

    async def test_the_rest_of_a_refused_body_is_read_away(self) -> None:
        receive = receiving(part(b"x" * 200), part(b"x"), part(b"x", more=False), part(b"next"))
        request = Incoming(receive, max_body_bytes=100, declared_bytes=None)
        with pytest.raises(InvalidRequest):
            await request.whole()
        await request.discard_rest()
        await request.discard_rest()
        assert (await receive())["body"] == b"next"


class TestLeaving:
    @pytest.fixture(autouse=True)
    def watched_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("proxy.incoming.WATCH_AFTER_SECONDS", 0)

    @staticmethod
    async def settled() -> None:
        """Until nothing is left to be done but what waits for something."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    async def test_work_is_cancelled_when_the_client_leaves(self) -> None:
        request = incoming(part(b"", more=False), GONE)
        cancelled = False

        async def work() -> None:
            nonlocal cancelled
            await request.whole()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

        assert not await while_connected(request, work())
        assert cancelled

    async def test_whoever_runs_it_goes_on_uncancelled(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(3):
            request = incoming(part(b"", more=False), GONE)

            async def work(request: Incoming = request) -> None:
                await request.whole()
                await asyncio.Event().wait()

            assert not await while_connected(request, work())
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    async def test_work_that_ends_is_not_disturbed(self) -> None:
        request = incoming(part(b"", more=False))
        tasks = asyncio.all_tasks()

        async def work() -> None:
            await request.whole()
            await self.settled()
            assert len(asyncio.all_tasks()) == len(tasks) + 1

        assert await while_connected(request, work())
        await self.settled()
        assert asyncio.all_tasks() == tasks

    async def test_short_work_is_not_watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("proxy.incoming.WATCH_AFTER_SECONDS", 3600)
        request = incoming(part(b"", more=False))
        tasks = asyncio.all_tasks()

        async def work() -> None:
            await request.whole()
            await self.settled()
            assert asyncio.all_tasks() == tasks

        assert await while_connected(request, work())

    async def test_a_body_that_was_read_before_is_watched_too(self) -> None:
        request = incoming(part(b"", more=False), GONE)
        await request.whole()
        assert not await while_connected(request, asyncio.Event().wait())  # type: ignore[arg-type]

    async def test_the_rest_of_a_refused_body_is_read_by_one_alone(self) -> None:
        request = incoming(part(b"x" * 200), part(b"x"), part(b"x", more=False), GONE)

        async def work() -> None:
            with pytest.raises(InvalidRequest):
                await request.whole()
            await self.settled()
            await request.discard_rest()

        assert await while_connected(request, work())

    async def test_the_disconnect_after_the_answer_is_no_leaving(self) -> None:
        """Uvicorn reports every complete answer as a disconnect."""
        request = incoming(part(b"", more=False), GONE)
        done = False

        async def work() -> None:
            nonlocal done
            await request.whole()
            request.answered = True
            await self.settled()
            done = True

        assert await while_connected(request, work())
        assert done

    async def test_an_error_of_the_work_comes_out(self) -> None:
        request = incoming(part(b"", more=False))

        async def work() -> None:
            raise InvalidRequest("no")

        with pytest.raises(InvalidRequest):
            await while_connected(request, work())

    async def test_so_does_a_cancelled_part_of_it_that_nobody_cancelled_here(self) -> None:
        part_of_it: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        part_of_it.cancel()

        async def work() -> None:
            await part_of_it

        with pytest.raises(asyncio.CancelledError):
            await while_connected(incoming(), work())

    @pytest.mark.parametrize("gone", [True, False])
    async def test_an_error_made_by_the_cancelling_is_only_noted(self, gone: bool) -> None:
        request = incoming(part(b"", more=False), *([GONE] if gone else []))
        reached = asyncio.Event()

        async def work() -> None:
            await request.whole()
            try:
                reached.set()
                await asyncio.Event().wait()
            finally:
                raise RuntimeError

        task = asyncio.create_task(while_connected(request, work()))
        await reached.wait()
        if gone:
            assert not await task
            return
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_cancelling_from_outside_comes_out(self) -> None:
        request = incoming(part(b"", more=False))
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(while_connected(request, work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    async def test_also_when_the_client_left_as_well(self) -> None:
        request = incoming(part(b"", more=False), GONE)
        release = asyncio.Event()
        leaving = asyncio.Event()

        async def work() -> None:
            await request.whole()
            try:
                await asyncio.Event().wait()
            finally:
                leaving.set()
                await release.wait()

        task = asyncio.create_task(while_connected(request, work()))
        await leaving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.left

    async def test_work_that_goes_on_in_spite_of_it_is_waited_for(self) -> None:
        request = incoming(part(b"", more=False), GONE)
        done = False

        async def work() -> None:
            nonlocal done
            await request.whole()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await self.settled()
            done = True

        assert not await while_connected(request, work())
        assert done
