"""Work on large bytes is done in a thread: the event loop, and every stream on it, goes on.

It helps as far as the work lets go of the interpreter: hashing and joining bytes do, and Python
code does between two steps. So no single step over megabytes belongs into what is called here.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

INLINE_BYTES = 512 * 1024
"""Up to here the work is done at once: a few milliseconds at most, and the way to a thread and
back is not free."""

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(
    size_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> T:
    """What `work` returns, done in a thread when it reads more than a few bytes: `size_bytes`."""
    if size_bytes <= INLINE_BYTES:
        return work(*arguments, **options)
    return await asyncio.to_thread(work, *arguments, **options)
