"""Work that several requests wait for and none of them owns. A waiter that leaves only detaches;
the work is cancelled when nobody waits, once per key: the next time it runs to its own end."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cachetools import LRUCache, TTLCache

T = TypeVar("T")

FAILURE_SHARED_SECONDS = 30.0
MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class _Run(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Runs(Generic[T]):
    """At most one task per key in this process, joined by everyone who asks for that key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` only ages shared failures."""
        self._runs: dict[Hashable, _Run[T]] = {}
        self._cancelled_once: LRUCache[Hashable, bool] = LRUCache(MAX_REMEMBERED)
        self._failures: TTLCache[Hashable, T] = TTLCache(
            MAX_REMEMBERED, FAILURE_SHARED_SECONDS, clock
        )

    def running(self) -> tuple[Hashable, ...]:
        """The keys under way."""
        return tuple(self._runs)

    def failure(self, key: Hashable) -> T | None:
        """What the last run of this key failed with, for 30 seconds."""
        return self._failures.get(key)

    def failed(self, key: Hashable, result: T) -> None:
        """Remember a failure, so that nobody who waited starts the same work at once."""
        self._failures[key] = result

    async def join(self, key: Hashable, start: Callable[[], Coroutine[None, None, T]]) -> T:
        """The result of the run under `key`, started if there is none. Raises what it raises.

        A run that is being cancelled is not joined: its end is awaited, then a new one starts.
        """
        run = self._runs.get(key)
        while run is not None and run.task.cancelling() and not run.task.done():
            await asyncio.wait({run.task})
            run = self._runs.get(key)
        if run is None or run.task.cancelling():
            run = _Run(asyncio.create_task(start(), name=f"run-{key!r:.60}"))
            self._runs[key] = run
            run.task.add_done_callback(lambda task: self._ended(key, task))
        return await self._wait(key, run)

    async def wait(self, key: Hashable) -> None:
        """Wait for the run under `key`, if there is one, whatever its outcome."""
        run = self._runs.get(key)
        if run is not None:
            run.waiters += 1
            try:
                await asyncio.wait({run.task})
            finally:
                run.waiters -= 1
                self._abandon(key, run)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, key: Hashable, run: _Run[T]) -> T:
        run.waiters += 1
        try:
            return await asyncio.shield(run.task)
        finally:
            run.waiters -= 1
            self._abandon(key, run)

    def _abandon(self, key: Hashable, run: _Run[T]) -> None:
        """Cancel the work when nobody waits, unless that was done to this key before."""
        if run.waiters or run.task.done() or key in self._cancelled_once:
            return
        self._cancelled_once[key] = True
        run.task.cancel()

    def _ended(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._runs.get(key) is not None and self._runs[key].task is task:
            del self._runs[key]
        if not task.cancelled():
            # Retrieved here, so that a run whose waiters all left is not reported as lost.
            task.exception()
