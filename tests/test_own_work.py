"""Heartbeats: after enough own work, and never otherwise."""

import asyncio
from typing import Any

import pytest

from proxy.own_work import COMMENT, OwnWork


class Sent:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.beat = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body":
            self.beat.set()


async def test_long_work_starts_an_event_stream_and_beats_until_stopped() -> None:
    sent = Sent()
    work = OwnWork(sent, heartbeat_seconds=0.02)
    states = []
    with work.busy():
        states.append(work.answering)
        await asyncio.wait_for(sent.beat.wait(), 5)
        states.append(work.answering)
    assert states == [False, True]
    sent.beat.clear()
    await asyncio.wait_for(sent.beat.wait(), 5)  # the wait for the provider is covered as well
    assert await work.stop()
    count = len(sent.messages)
    assert sent.messages[0]["status"] == 200
    assert dict(sent.messages[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert all(m["body"] == COMMENT and m["more_body"] for m in sent.messages[1:])
    await asyncio.sleep(0.05)
    assert len(sent.messages) == count


async def test_stretches_add_up_and_the_time_between_does_not_count() -> None:
    sent = Sent()
    work = OwnWork(sent, heartbeat_seconds=0.1)
    with work.busy():
        await asyncio.sleep(0.06)
    await asyncio.sleep(0.15)
    assert sent.messages == []
    with work.busy(), work.busy():
        await asyncio.wait_for(sent.beat.wait(), 0.09)
    assert work.answering
    await work.stop()


async def test_nested_stretches_count_once() -> None:
    work = OwnWork(Sent(), heartbeat_seconds=0.08)
    with work.busy():
        for _ in range(3):
            with work.busy():
                await asyncio.sleep(0.01)
    assert not work.answering
    assert not await work.stop()


@pytest.mark.parametrize(("send", "seconds"), [(True, 0), (False, 0.01)])
async def test_0_or_nobody_to_send_to_is_never(send: bool, seconds: float) -> None:
    sent = Sent()
    work = OwnWork(sent if send else None, heartbeat_seconds=seconds)
    with work.busy():
        await asyncio.sleep(0.03)
    assert not work.answering
    assert not await work.stop()
    assert sent.messages == []


async def test_after_stop_no_more_begin() -> None:
    sent = Sent()
    work = OwnWork(sent, heartbeat_seconds=0.02)
    assert not await work.stop()
    with work.busy():
        await asyncio.sleep(0.05)
    assert sent.messages == []


async def test_stop_waits_for_the_comment_being_sent() -> None:
    release = asyncio.Event()
    started = asyncio.Event()
    done = False

    async def slow(message: Any) -> None:
        nonlocal done
        if message["type"] == "http.response.body":
            started.set()
            await release.wait()
            done = True

    work = OwnWork(slow, heartbeat_seconds=0.01)
    with work.busy():
        await asyncio.wait_for(started.wait(), 5)
    stopping = asyncio.create_task(work.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    release.set()
    assert await stopping
    assert done


async def test_an_abandoned_one_stops_at_once() -> None:
    sent = Sent()
    work = OwnWork(sent, heartbeat_seconds=0.01)
    with work.busy():
        await asyncio.wait_for(sent.beat.wait(), 5)
    work.abandon()
    await asyncio.sleep(0.03)
    count = len(sent.messages)
    await asyncio.sleep(0.03)
    assert len(sent.messages) == count
