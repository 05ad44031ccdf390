"""Processes that are measured: started on one core, stopped while others are measured, their CPU
time and memory read from /proc, workers included. Linux only."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 10.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Measured:
    """One program and its children."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cores: set[int],
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        """Starts it; its output goes to `output.txt` in the folder."""
        self._output = (folder / "output.txt").open("wb")
        self._process = subprocess.Popen(
            list(command),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def pids(self) -> list[int]:
        """Itself and everything that it started."""
        found, waiting = [], [self._process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            for task in _listed(f"/proc/{pid}/task"):
                children = _read(f"/proc/{pid}/task/{task}/children")
                waiting.extend(int(child) for child in children.split())
        return found

    def cpu_seconds(self) -> float:
        """Time on a core so far, of every thread, to the nanosecond."""
        total = 0
        for pid in self.pids():
            for task in _listed(f"/proc/{pid}/task"):
                total += int((_read(f"/proc/{pid}/task/{task}/schedstat") or "0").split()[0])
        return total / 1e9

    def memory_bytes(self) -> int:
        """The resident set, of every process."""
        total = 0
        for pid in self.pids():
            for line in _read(f"/proc/{pid}/status").splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) * 1024
        return total

    def settle(self, seconds: float) -> None:
        """Returns when it does nothing any more, or after that long: what a program still loads
        after its first answer is no part of what a request costs."""
        deadline = time.monotonic() + seconds
        before = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(0.2)
            now = self.cpu_seconds()
            if now - before < 0.01:
                return
            before = now

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process and its children, by their ids."""
        self.resume()
        started = self.pids()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def running(measured: Measured) -> Iterator[Measured]:
    try:
        yield measured
    finally:
        measured.stop()


def wait_for_port(port: int, process: Measured, seconds: float) -> None:
    """Returns when somebody listens.

    Raises: RuntimeError, when the program ended or nobody listens in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if not process.alive or time.monotonic() > deadline:
                raise RuntimeError("it did not start") from None
        time.sleep(0.01)


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
