"""Work is shared while somebody waits for it, and a waiter who leaves takes nothing down."""

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from proxy.runs import FAILURE_SHARED_SECONDS, Runs

DEADLINE_SECONDS = 5.0
PROMPT_SECONDS = 1.0  # design section 9: cancelled within a second when nobody waits


class Work:
    """Work that ends when told to; counts what became of it."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.ended = 0
        self.let_go = asyncio.Event()
        self.unwinding = asyncio.Event()
        self.unwinding.set()

    async def __call__(self) -> str:
        self.started += 1
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            await self.unwinding.wait()
            self.cancelled += 1
            raise
        self.ended += 1
        return f"run {self.started}"


async def until(holds: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def waiting(runs: Runs[str], work: Work, key: str = "k") -> asyncio.Task[str]:
    """A waiter that has reached its wait."""
    task = asyncio.create_task(runs.join(key, work))
    await until(lambda: key in runs.running() or task.done())
    await asyncio.sleep(0)
    return task


async def leave(task: asyncio.Task[str]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_everyone_who_asks_for_a_key_shares_one_task() -> None:
    runs, work = Runs[str](), Work()
    waiters = [await waiting(runs, work) for _ in range(5)]
    assert runs.running() == ("k",)
    work.let_go.set()
    assert await asyncio.gather(*waiters) == ["run 1"] * 5
    assert (work.started, runs.running()) == (1, ())


async def test_other_keys_run_beside_it_and_an_ended_key_runs_anew() -> None:
    runs, work = Runs[str](), Work()
    one, two = await waiting(runs, work, "a"), await waiting(runs, work, "b")
    assert set(runs.running()) == {"a", "b"}
    work.let_go.set()
    await asyncio.gather(one, two)
    assert await runs.join("a", work) == "run 3"


async def test_what_the_work_raises_reaches_everyone_who_waits() -> None:
    runs = Runs[str]()
    go = asyncio.Event()

    async def fails() -> str:
        await go.wait()
        raise ValueError("no summary")

    waiters = [asyncio.create_task(runs.join("k", fails)) for _ in range(3)]
    await until(lambda: bool(runs.running()))
    go.set()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert [str(result) for result in results] == ["no summary"] * 3
    assert runs.running() == ()


async def test_a_waiter_that_leaves_only_detaches() -> None:
    runs, work = Runs[str](), Work()
    first, second = await waiting(runs, work), await waiting(runs, work)
    await leave(first)
    assert runs.running() == ("k",)
    work.let_go.set()
    assert await second == "run 1"
    assert work.cancelled == 0


async def test_the_work_is_cancelled_when_nobody_waits() -> None:
    runs, work = Runs[str](), Work()
    first, second = await waiting(runs, work), await waiting(runs, work)
    await leave(first)
    await leave(second)
    await until(lambda: work.cancelled == 1, PROMPT_SECONDS)
    await until(lambda: runs.running() == ())


async def test_the_second_time_it_runs_to_its_own_end() -> None:
    runs, work = Runs[str](), Work()
    await leave(await waiting(runs, work))
    await until(lambda: runs.running() == ())
    await leave(await waiting(runs, work))
    assert runs.running() == ("k",)
    work.let_go.set()
    await until(lambda: runs.running() == ())
    assert (work.started, work.cancelled, work.ended) == (2, 1, 1)


async def test_a_run_without_waiters_can_be_joined_again() -> None:
    runs, work = Runs[str](), Work()
    for _ in range(2):
        await leave(await waiting(runs, work))
    again = await waiting(runs, work)
    work.let_go.set()
    assert await again == "run 2"


async def test_a_run_that_is_being_cancelled_is_not_joined() -> None:
    """The newcomer would be told that it was cancelled itself; it gets a run of its own, after."""
    runs, work = Runs[str](), Work()
    work.unwinding.clear()
    await leave(await waiting(runs, work))
    newcomer = asyncio.create_task(runs.join("k", work))
    await asyncio.sleep(0)
    assert work.started == 1
    work.unwinding.set()
    await until(lambda: work.started == 2)
    assert work.cancelled == 1
    work.let_go.set()
    assert await newcomer == "run 2"


async def test_a_newcomer_in_the_moment_of_the_end_gets_a_run_of_its_own() -> None:
    runs, work = Runs[str](), Work()
    await leave(await waiting(runs, work))
    newcomer = await waiting(runs, work)
    work.let_go.set()
    assert await newcomer == "run 2"


async def test_an_onlooker_waits_for_the_end_whatever_it_is() -> None:
    runs, work = Runs[str](), Work()
    waiter = await waiting(runs, work)
    onlooker = asyncio.create_task(runs.wait("k"))
    await asyncio.sleep(0)
    assert not onlooker.done()
    work.let_go.set()
    await onlooker
    assert await waiter == "run 1"
    await runs.wait("nothing under this key")


async def test_an_onlooker_hears_nothing_of_a_failure() -> None:
    runs = Runs[str]()
    go = asyncio.Event()

    async def fails() -> str:
        await go.wait()
        raise ValueError("no summary")

    waiter = asyncio.create_task(runs.join("k", fails))
    await until(lambda: bool(runs.running()))
    onlooker = asyncio.create_task(runs.wait("k"))
    await asyncio.sleep(0)
    go.set()
    await onlooker
    with pytest.raises(ValueError, match="no summary"):
        await waiter


async def test_an_onlooker_counts_as_waiting() -> None:
    runs, work = Runs[str](), Work()
    waiter = await waiting(runs, work)
    onlooker = asyncio.create_task(runs.wait("k"))
    await asyncio.sleep(0)
    await leave(waiter)
    assert runs.running() == ("k",)
    onlooker.cancel()
    await until(lambda: work.cancelled == 1, PROMPT_SECONDS)


async def test_a_failure_nobody_waited_for_is_no_unhandled_exception() -> None:
    runs = Runs[str]()
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    go = asyncio.Event()

    async def fails() -> str:
        await go.wait()
        raise ValueError("no summary")

    def start() -> Coroutine[None, None, str]:
        return fails()

    for _ in range(2):
        task = asyncio.create_task(runs.join("k", start))
        await until(lambda: bool(runs.running()))
        await leave(task)
    go.set()
    await until(lambda: runs.running() == ())
    assert problems == []


async def test_a_failure_is_shared_for_thirty_seconds() -> None:
    now = 100.0
    runs = Runs[str](clock=lambda: now)
    assert runs.failure("k") is None
    runs.failed("k", "summary-failed")
    now += FAILURE_SHARED_SECONDS - 0.1
    assert runs.failure("k") == "summary-failed"
    assert runs.failure("other") is None
    now += 0.2
    assert runs.failure("k") is None


async def test_closing_cancels_everything_and_waits_for_it() -> None:
    runs, work = Runs[str](), Work()
    waiters = [await waiting(runs, work, key) for key in ("a", "b")]
    await runs.close()
    assert work.cancelled == 2
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await runs.close()
    assert runs.running() == ()
