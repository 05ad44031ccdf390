"""Small work is done at once, large work in a thread."""

import threading

from proxy.off_loop import INLINE_BYTES, off_loop


async def test_small_work_stays_on_the_loop_and_large_work_does_not() -> None:
    here = threading.get_ident()
    assert await off_loop(INLINE_BYTES, threading.get_ident) == here
    assert await off_loop(INLINE_BYTES + 1, threading.get_ident) != here


async def test_arguments_and_results_pass_through() -> None:
    for size_bytes in (0, INLINE_BYTES * 2):
        assert await off_loop(size_bytes, int, "11", base=2) == 3
