"""What glibc's malloc is told, so that the process holds on to less of what it has freed. With
another C library (musl, macOS, Windows) nothing happens: theirs do not behave so."""

import asyncio
import ctypes
from functools import lru_cache

GIVE_BACK_SECONDS = 10.0
"""Under load 8 MB are free by then; to return them takes 1.4 ms, to get them back about as much."""

_M_ARENA_MAX = -8  # malloc.h


@lru_cache(1)
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    # musl has neither; `gnu_get_libc_version` tells glibc from whoever imitates parts of it.
    names = ("gnu_get_libc_version", "mallopt", "malloc_trim")
    return library if all(hasattr(library, name) for name in names) else None


def share_one_heap() -> bool:
    """Give threads that start from now on no heaps of their own; whether that could be done.

    What one heap has free no other uses: 7 MB under load. Python's threads hardly ever allocate at
    once, so they do not wait for each other.
    """
    glibc = _glibc()
    return glibc is not None and glibc.mallopt(_M_ARENA_MAX, 1) == 1


def give_back() -> bool:
    """Return free memory to the system, for after something large; whether any was."""
    glibc = _glibc()
    return glibc is not None and glibc.malloc_trim(0) == 1


async def give_back_now_and_then(interval_seconds: float = GIVE_BACK_SECONDS) -> None:
    """`give_back` for ever, in a thread."""
    while True:
        await asyncio.sleep(interval_seconds)
        await asyncio.to_thread(give_back)
