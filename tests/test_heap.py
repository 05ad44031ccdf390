"""glibc's malloc takes what it is told; other C libraries are left alone."""

import asyncio
import ctypes
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from proxy import heap

# In a process of its own: nothing of it can be taken back.
PROGRAM = """
import ctypes, threading
from proxy.heap import give_back, share_one_heap
assert share_one_heap()

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
found = []
thread = threading.Thread(target=lambda: found.extend(libc.malloc(1000) for _ in range(100)))
thread.start()
thread.join()
heap = next(line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
low, high = (int(end, 16) for end in heap.split()[0].split("-"))
assert all(low <= address < high for address in found)
blocks = [libc.malloc(100_000) for _ in range(100)]
last = libc.malloc(1000)
for block in blocks:
    libc.free(block)
print(give_back())
"""

on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")


@pytest.fixture(autouse=True)
def _asked_again() -> Iterator[None]:
    yield
    heap._glibc.cache_clear()


@on_glibc
def test_threads_share_the_heap_and_what_is_free_is_given_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == ("True", "")


@pytest.mark.parametrize("library", [object(), None])
def test_another_c_library_is_left_alone(
    library: object | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str | None) -> object:
        if library is None:
            raise OSError("no such library")
        return library

    heap._glibc.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", opened)
    assert not heap.share_one_heap()
    assert not heap.give_back()


async def test_it_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = threading.Event()
    threads: list[int] = []

    def noted() -> bool:
        threads.append(threading.get_ident())
        if len(threads) == 2:
            twice.set()
        return True

    monkeypatch.setattr(heap, "give_back", noted)
    giving = asyncio.create_task(heap.give_back_now_and_then(0.001))
    assert await asyncio.to_thread(twice.wait, 10)
    giving.cancel()
    await asyncio.gather(giving, return_exceptions=True)
    assert threading.get_ident() not in threads
