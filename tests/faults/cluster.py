"""Processes before one provider: each replica a `tidegate serve` of its own port, which can be
killed and started again. Whatever was started is ended by its id."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.commands import ROOT, START_SECONDS, STOP_SECONDS
from tests.faults.histories import WINDOW


def _environment() -> dict[str, str]:
    """This one without what would be settings, such as the switches of these tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Process:
    """One server process on one port."""

    command: list[str]
    port: int
    folder: Path
    log: Path
    variables: dict[str, str]
    health: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Begin; it may take a while until it answers."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={**_environment(), "PYTHONPATH": str(ROOT), **self.variables},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait_healthy(self, *, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not self.healthy():
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def healthy(self) -> bool:
        try:
            return httpx.get(self.url + self.health, timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def kill(self) -> None:
        """As `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)

    def stop(self, *, seconds: float = STOP_SECONDS) -> int:
        """As a supervisor does; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def memory(self) -> "Memory":
        """What the process holds at the moment."""
        seen = psutil.Process(self.pid)
        return Memory(seen.memory_info().rss / 2**20, seen.num_fds(), len(seen.net_connections()))

    def rested(self) -> "Memory":
        """Memory once it stands still: the vocabulary is read only some time after the start."""
        before = self.memory()
        for _ in range(30):
            time.sleep(1.0)
            now = self.memory()
            if abs(now.mib - before.mib) < 1:
                return now
            before = now
        raise AssertionError(f"memory never stood still: {before.mib:.0f} MiB")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident MiB, open descriptors, sockets."""

    mib: float
    descriptors: int
    sockets: int


@dataclass
class Cluster:
    """A provider and the replicas before it."""

    provider: Process
    replicas: list[Process] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """What the provider saw."""
        answered = httpx.get(f"{self.provider.url}/report", timeout=60, trust_env=False)
        said: dict[str, Any] = answered.json()
        return said

    def faults(self, **told: Any) -> None:
        """Change how the provider behaves; see `ProviderProcess`."""
        url = f"{self.provider.url}/faults"
        assert httpx.post(url, json=told, timeout=60, trust_env=False).status_code == 200


@contextlib.contextmanager
def cluster(
    folder: Path, store_url: str, *, replicas: int = 1, upstream: str | None = None, **settings: Any
) -> Iterator[Cluster]:
    """All of it, healthy, until the block ends. `settings`: `section__name` as in the environment.

    With an `upstream` the provider is not asked by the replicas.
    """
    port = free_port()
    provider = Process(
        command=[sys.executable, "-m", "tests.faults.provider_process", str(port)],
        port=port,
        folder=folder,
        log=folder / "provider.log",
        variables={},
        health="/report",
    )
    rules = [{"match": "*", "context_window": WINDOW, "headroom_tokens": "auto"}]
    variables = {
        "TIDEGATE_UPSTREAM": upstream or f"{provider.url}/v1",
        "TIDEGATE_STORE__URL": store_url,
        "TIDEGATE_MODELS": json.dumps(rules),
        **{f"TIDEGATE_{name.upper()}": str(value) for name, value in settings.items()},
    }
    made = Cluster(provider)
    try:
        provider.start()
        for n in range(replicas):
            made.replicas.append(_replica(folder, n, variables))
            made.replicas[-1].start()
        for process in (provider, *made.replicas):
            process.wait_healthy()
        yield made
    finally:
        for process in (*made.replicas, provider):
            process.kill()


def _replica(folder: Path, n: int, variables: dict[str, str]) -> Process:
    port = free_port()
    serve = "from proxy.cli import main; main()"
    return Process(
        command=[sys.executable, "-c", serve, "serve", "--port", str(port)],
        port=port,
        folder=folder,
        log=folder / f"replica-{n}.log",
        variables=variables,
        health="/healthz",
    )
