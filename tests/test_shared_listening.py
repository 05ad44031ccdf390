"""Two workers on one socket: who takes a connection, and who leaves it to the other."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import uvicorn

from proxy.header_limit import BoundedHeadProtocol
from proxy.shared_listening import (
    FILE_VARIABLE,
    CrowdInFile,
    SharedListener,
    SharingLoop,
    crowds_file,
)
from tests.commands import running
from tests.serving import wait_until


class OtherCrowd:
    """What the listener asks, with the other worker's count given."""

    def __init__(self, other: int) -> None:
        self.other = other
        self.own = -1
        self.asked = 0
        self.over = False
        self._changed = asyncio.Event()

    def is_now(self, connections: int) -> None:
        self.own = connections
        self._changed.set()

    async def comes_to(self, connections: int) -> None:
        async with asyncio.timeout(10):
            while self.own != connections:
                self._changed.clear()
                await self._changed.wait()

    def larger_than_another(self) -> bool:
        self.asked += 1
        return self.other < self.own

    def end(self) -> None:
        self.over = True


async def _said_nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request is made")


def _protocol() -> BoundedHeadProtocol:
    config = uvicorn.Config(_said_nothing, log_config=None)
    config.load()
    return BoundedHeadProtocol(config, uvicorn.server.ServerState(), {})


class Worker:
    """A listener on a socket of its own."""

    def __init__(self, other: int) -> None:
        self.crowd = OtherCrowd(other)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.listener = SharedListener(_protocol, self.socket, self.crowd)
        self.clients: list[asyncio.StreamWriter] = []

    async def called(self) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(*self.socket.getsockname())
        self.clients.append(writer)
        return writer


@pytest.fixture
async def alone() -> AsyncIterator[Worker]:
    """The other worker has many."""
    worker = Worker(other=100)
    yield worker
    for client in worker.clients:
        client.close()
    worker.listener.close()
    worker.socket.close()


async def test_connections_are_counted_from_their_beginning_to_their_end(alone: Worker) -> None:
    first = await alone.called()
    await alone.called()
    await alone.crowd.comes_to(2)
    first.close()
    await alone.crowd.comes_to(1)


async def test_what_a_smaller_crowd_does_not_take_is_taken(alone: Worker) -> None:
    await alone.called()
    await alone.crowd.comes_to(1)
    alone.crowd.other = 0
    alone.crowd.asked = 0
    for _ in range(3):
        await alone.called()
    await alone.crowd.comes_to(4)
    assert alone.crowd.asked >= 1


async def test_one_that_another_worker_took_is_no_failure(alone: Worker) -> None:
    taken: list[socket.socket] = []

    def larger_than_another() -> bool:
        """The other worker was faster."""
        if not taken:
            taken.append(alone.socket.accept()[0])
        return False

    alone.crowd.larger_than_another = larger_than_another  # type: ignore[method-assign]
    await alone.called()
    await alone.called()
    await alone.crowd.comes_to(1)
    assert len(taken) == 1
    taken[0].close()


async def test_after_an_accept_that_failed_it_looks_again(
    alone: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.shared_listening.RETRY_SECONDS", 0.01)

    class Exhausted:
        """The socket, of which the first accept finds no descriptor left."""

        failed = False

        def __init__(self, real: socket.socket) -> None:
            self._real = real

        def accept(self) -> object:
            if not self.failed:
                self.failed = True
                raise OSError(24, "Too many open files")
            return self._real.accept()

        def fileno(self) -> int:
            return self._real.fileno()

    monkeypatch.setattr(alone.listener, "_shared", Exhausted(alone.socket))
    await alone.called()
    await alone.crowd.comes_to(1)
    assert "connection_not_taken cause=[Errno 24]" in caplog.text


async def test_a_closed_listener_takes_none_and_is_not_waited_for(alone: Worker) -> None:
    alone.listener.close()
    await alone.listener.wait_closed()
    assert alone.crowd.over
    await alone.called()
    taken, _ = await asyncio.get_running_loop().sock_accept(alone.socket)
    taken.close()
    assert alone.crowd.own == 0


_OTHER_WORKER = """
import sys
from pathlib import Path
from proxy.shared_listening import CrowdInFile
crowd = CrowdInFile(Path(sys.argv[1]))
for line in sys.stdin:
    if line.strip() == "end":
        crowd.end()
    else:
        crowd.is_now(int(line))
    print(crowd.larger_than_another(), flush=True)
"""


def test_workers_see_each_others_crowds_and_a_successor_takes_the_place_of_the_dead() -> None:
    def told(other: "subprocess.Popen[str]", line: object) -> str:
        assert other.stdin is not None
        assert other.stdout is not None
        print(line, file=other.stdin, flush=True)
        return other.stdout.readline().strip()

    def other_worker() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            (sys.executable, "-c", _OTHER_WORKER, os.environ[FILE_VARIABLE]),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    with crowds_file(1):  # two places
        own = CrowdInFile(Path(os.environ[FILE_VARIABLE]))
        own.is_now(3)
        assert not own.larger_than_another()
        with other_worker() as other:
            assert told(other, 2) == "False"
            assert own.larger_than_another()
            assert told(other, 4) == "True"
            assert not own.larger_than_another()
            with other_worker() as third:  # no place is left: it has no crowd, and sees the others
                assert told(third, 1000) == "True"
                assert told(third, 0) == "False"
                third.kill()
            assert told(other, 1) == "False"
            other.kill()
        assert own.larger_than_another()
        with other_worker() as successor:
            assert told(successor, 5) == "True"
            assert not own.larger_than_another()
            own.end()
            assert told(successor, 5) == "False"
            successor.kill()
    assert FILE_VARIABLE not in os.environ


def test_without_room_for_the_file_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with crowds_file(2):
        assert FILE_VARIABLE not in os.environ
    assert "connections_not_shared" in caplog.text


def test_a_socket_that_nobody_shares_is_left_to_uvloop() -> None:
    async def serves() -> str:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", 0, backlog=1
        )
        server.close()
        return type(server).__module__

    with asyncio.Runner(loop_factory=SharingLoop) as runner:
        assert runner.run(serves()).startswith("uvloop")


def test_connections_that_are_kept_reach_both_workers(tmp_path: Path) -> None:
    with running(tmp_path, "tidegate serve --port 0 --workers 2") as command, ExitStack() as kept:
        address = ("127.0.0.1", int(command.url.rpartition(":")[2]))
        workers = psutil.Process(command.process.pid).children(recursive=True)

        def both() -> bool:
            kept.enter_context(socket.create_connection(address))
            busy = [one for one in workers if _connections(one, address)]
            return len(busy) == 2

        wait_until(both, seconds=30)
        kept.close()
        assert command.stop() == 0, command.said()


def _connections(worker: psutil.Process, address: tuple[str, int]) -> int:
    connections = worker.net_connections("tcp4")
    return sum(one.laddr == address and one.status == "ESTABLISHED" for one in connections)
