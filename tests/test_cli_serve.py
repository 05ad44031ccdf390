"""`tidegate serve` as a process: what it says, what it answers, how it ends."""

import os
import re
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from proxy.app import Tidegate
from proxy.cli import app
from proxy.cli_serve import _certificates_unread, application, uvicorn_options
from proxy.practice import create_practice_app
from proxy.settings_sections import ServerSettings
from tests.commands import STOP_SECONDS, running
from tests.serving import serve, wait_until

CHAT = {"model": "practice", "messages": [{"role": "user", "content": "Which tide is it?"}]}


def _listens(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_without_an_upstream_the_practice_provider_answers_and_the_start_says_so(
    tmp_path: Path, workers: int
) -> None:
    with running(tmp_path, f"tidegate serve --port 0 --workers {workers}") as command:
        for _ in range(4):
            answered = httpx.post(f"{command.url}/v1/chat/completions", json=CHAT, timeout=30)
            assert answered.status_code == 200
            assert "Which tide" in answered.json()["choices"][0]["message"]["content"]
            assert answered.headers["x-tidegate-window"] in ("8192", "unknown")
        said = command.said()
        practice = re.search(r"PRACTICE PROVIDER \((http://127\.0\.0\.1:\d+)/v1", said)
        assert practice, said
        assert "set TIDEGATE_UPSTREAM" in said
        assert "store: sqlite:///tidegate.db" in said
        assert (tmp_path / "tidegate.db").exists()
        assert command.stop() == 0, command.said()
    assert not _listens(command.url)
    assert not _listens(practice[1])


def test_it_says_which_upstream_without_its_secrets(tmp_path: Path) -> None:
    with (
        serve(create_practice_app()) as provider,
        running(
            tmp_path,
            "tidegate serve --port 0",
            TIDEGATE_UPSTREAM=f"{provider.url}/v1?key=swordfish",
        ) as command,
    ):
        answered = httpx.post(f"{command.url}/v1/chat/completions", json=CHAT, timeout=30)
        assert answered.status_code == 200
        assert f"upstream default: {provider.url}/v1" in command.said()
        assert "PRACTICE" not in command.said()
        assert command.stop(signal.SIGINT) == 0
        assert "swordfish" not in command.said()


def test_a_stream_under_way_is_finished_before_the_end(tmp_path: Path) -> None:
    with (
        serve(create_practice_app(chunk_delay_seconds=0.2)) as provider,
        running(
            tmp_path, "tidegate serve --port 0", TIDEGATE_UPSTREAM=f"{provider.url}/v1"
        ) as command,
    ):
        url = f"{command.url}/v1/chat/completions"
        with httpx.stream("POST", url, json={**CHAT, "stream": True}, timeout=30) as reply:
            chunks = reply.iter_bytes()
            first = next(chunks)
            command.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "Shutting down" in command.said(), seconds=STOP_SECONDS)
            text = first + b"".join(chunks)
        assert text.endswith(b"data: [DONE]\n\n")
        assert command.process.wait(STOP_SECONDS) == 0


def test_a_port_in_use_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "http://127.0.0.1:9/v1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in result.output


def test_settings_that_cannot_be_used_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "k")
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "http://127.0.0.1:9/v1")
    result = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "client_keys" in result.output


def test_uvicorn_adds_nothing_of_its_own() -> None:
    options = uvicorn_options(ServerSettings(port=1234, workers=3, shutdown_timeout_seconds=7))
    assert (options["port"], options["workers"], options["timeout_graceful_shutdown"]) == (
        1234,
        3,
        7,
    )
    for name in ("server_header", "date_header", "proxy_headers", "access_log"):
        assert options[name] is False


def test_a_worker_builds_the_application_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "http://127.0.0.1:9/v1")
    assert isinstance(application(), Tidegate)


@pytest.mark.parametrize("given", [None, "/etc/some.pem"])
def test_only_what_is_imported_finds_no_certificates(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given is None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    else:
        monkeypatch.setenv("SSL_CERT_FILE", given)
    with _certificates_unread():
        assert ssl.create_default_context().cert_store_stats()["x509_ca"] == 0
    assert os.environ.get("SSL_CERT_FILE") == given
