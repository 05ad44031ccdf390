"""`tidegate serve`: the real command on a real socket."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from proxy.cli_serve import uvicorn_options
from proxy.settings_sections import ServerSettings
from tests.serving import serve, wait_until

COMMAND = [sys.executable, "-c", "from proxy.cli import main; main()", "serve"]
START_SECONDS = 30


async def upstream(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers everything with the path that it was asked for."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-from", b"it")]})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(directory: Path, *options: str, **environment: str) -> Iterator[Any]:
    """The command, stopped with an interrupt at the end; yields a way to ask it."""
    port = free_port()
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port), *options],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
            stdout=output,
            stderr=output,
        )

    def get(path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5, trust_env=False)
        except httpx.TransportError:
            return None

    try:
        wait_until(lambda: get("/healthz") or process.poll() is not None, seconds=START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield get
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=START_SECONDS)
    said = log.read_text()
    assert "Traceback" not in said
    assert f"http://127.0.0.1:{port}" in said, "the address is not named"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_relays_to_the_upstream_of_the_environment(tmp_path: Path, workers: str) -> None:
    with (
        serve(upstream) as provider,
        running(tmp_path, "--workers", workers, TIDEGATE_UPSTREAM=f"{provider.url}/v1") as get,
    ):
        reply = get("/v1/models")
    assert (reply.status_code, reply.text) == (200, "/v1/models")
    assert reply.headers["x-from"] == "it"
    assert "server" not in reply.headers


def test_every_worker_reads_the_named_file(tmp_path: Path) -> None:
    with serve(upstream) as provider:
        (tmp_path / "some.toml").write_text(
            f'[upstreams.default]\nbase_url = "{provider.url}/base"\n'
            "[server]\nport = 1\nworkers = 2\n"
        )
        with running(tmp_path, "--config", "some.toml") as get:
            assert get("/v1/x").text == "/base/x"


def refused(directory: Path, *options: str, **environment: str) -> str:
    ran = subprocess.run(
        [*COMMAND, *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    return ran.stderr


def test_an_open_door_is_refused_at_start(tmp_path: Path) -> None:
    """Design section 16; the key must not show either."""
    said = refused(
        tmp_path,
        *("--host", "0.0.0.0"),
        TIDEGATE_UPSTREAM="https://api.example.org/v1",
        TIDEGATE_API_KEY="sk-secret",
    )
    assert "server.client_keys" in said
    assert "secret" not in said


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path, "--config", "absent.toml")
    assert "server.port" in refused(tmp_path, "--port", "70000").lower().replace("__", ".")


def test_uvicorn_adds_nothing_and_trusts_nobody() -> None:
    options = uvicorn_options(ServerSettings(host="::1", port=5, workers=3))
    assert (options["host"], options["port"], options["workers"]) == ("::1", 5, 3)
    for off in ("server_header", "date_header", "proxy_headers", "access_log"):
        assert options[off] is False
