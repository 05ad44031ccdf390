"""The `tidegate` command as a process of its own, run from this source tree."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.serving import wait_until

ROOT = Path(__file__).parent.parent
START_SECONDS = 60
STOP_SECONDS = 20
_BASE_URL = re.compile(r"base URL for clients http://([^/\s]+)/v1")


def command_folder(folder: Path) -> Path:
    """A folder for PATH that holds `tidegate`."""
    script = folder / "bin" / "tidegate"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f"#!{sys.executable}\n"
        "from proxy.cli import main\n"
        # Spawned workers import this file again.
        "if __name__ == '__main__':\n"
        "    main()\n"
    )
    script.chmod(0o755)
    return script.parent


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """This one, with `tidegate` on its PATH."""
    path = f"{command_folder(folder)}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables}


@dataclass(frozen=True, slots=True)
class Running:
    """A started `tidegate serve`: its URL without a path, and what it wrote so far."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sent)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def running(folder: Path, command: str, **variables: str) -> Iterator[Running]:
    """Runs a shell line that serves, until the block ends; begins when it is healthy."""
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", _with_exec(command)],
            cwd=folder,
            env=environment(folder, **variables),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (found := _BASE_URL.search(log.read_text(encoding="utf-8"))):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        url = f"http://{found[1]}"
        wait_until(lambda: _healthy(url), seconds=START_SECONDS)
        yield Running(process, url, log)
    finally:
        process.kill()
        process.wait(STOP_SECONDS)


def _with_exec(command: str) -> str:
    """The line in which `tidegate` takes the shell's place, so that signals reach it."""
    return re.sub(r"\btidegate serve\b", "exec tidegate serve", command)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
