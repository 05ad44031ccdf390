"""What happens between SIGTERM and the stop; the rest stands in tests/faults."""

import asyncio
import os
import signal
import threading

import pytest

from proxy.draining import Draining


async def test_the_stop_waits_and_a_second_signal_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    try:
        draining = Draining(60)
        with draining.watching():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            assert draining.asked
            assert not stopped.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), 5)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_the_stop_comes_at_its_time(seconds: float) -> None:
    stopped = asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    try:
        with Draining(seconds).watching():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stopped.wait(), 5)
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_the_servers_handler_is_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Draining(1).watching():
        pass
    assert signal.getsignal(signal.SIGTERM) is before


async def test_in_another_thread_nothing_is_watched() -> None:
    seen: list[bool] = []

    def inside() -> None:
        draining = Draining(1)
        with draining.watching():
            seen.append(draining.asked)

    thread = threading.Thread(target=inside)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert seen == [False]
