"""Bodies of many megabytes: untouched, bounded in memory, patient with slow readers and not with
dead ones; and what a conversation leaves behind when nothing may be kept."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands import running as running_command
from tests.fake_provider import FakeProvider
from tests.fake_provider import running as running_provider
from tests.journeys.picky_provider import PickyProvider, at_most, png, said, showing
from tests.proxied import CHAT, assistant, text_of_tokens, user, walking
from tests.raw_provider import RawConnection, RawProvider

MIB = 1 << 20
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Seen."}}]}
).encode()


def body_with_image(image_bytes: int) -> bytes:
    """A small chat with one image, its fields in no usual order."""
    messages = [showing("what is this?", png(4000, 3000, size_bytes=image_bytes))]
    return json.dumps({"messages": messages, "temperature": 0.50, "model": "gpt-4o"}).encode()


def resident_kib(process_id: int, name: str) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def forget_peak(process_id: int) -> None:
    """From here on `VmHWM` is the peak since now (proc_pid_clear_refs(5))."""
    Path(f"/proc/{process_id}/clear_refs").write_text("5")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_r145_an_18_mb_image_passes_untouched_in_less_than_six_times_its_memory(
    tmp_path: Path,
) -> None:
    """R145."""
    body = body_with_image(18_000_000)
    assert len(body) > 24_000_000
    # Long enough to be counted: once it is answered, the token tables are read, whose own peak
    # half a second after the start is as much as two or three such bodies.
    counted = json.dumps({"model": "gpt-4o", "messages": [user(text_of_tokens(60_000))]}).encode()
    provider = FakeProvider()
    with (
        running_provider(provider),
        running_command(
            tmp_path, "tidegate serve --port 0", TIDEGATE_UPSTREAM=f"{provider.url}/v1"
        ) as command,
        httpx.Client(base_url=command.url, timeout=60, trust_env=False) as client,
    ):
        assert client.post(CHAT, content=counted).status_code == 200
        forget_peak(command.process.pid)
        before = resident_kib(command.process.pid, "VmRSS")
        assert client.post(CHAT, content=body).status_code == 200
        peak = resident_kib(command.process.pid, "VmHWM")
    assert provider.chats[-1].body == body
    # The body, the message in it as bytes, and its text: three.
    assert (peak - before) * 1024 < 5 * len(body)


@pytest.mark.parametrize("chunked", [False, True])
def test_r145_above_the_limit_it_is_413_in_openais_shape(chunked: bool) -> None:
    body = body_with_image(2 * MIB)
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    with walking(None, server={"body_limit_mib": 1}) as walk:
        reply = walk.client.post(CHAT, content=pieces if chunked else body)
        below = walk.client.post(CHAT, content=body_with_image(MIB // 2))
    assert reply.status_code == 413
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"] == {
        "message": "The request body is larger than 1048576 bytes.",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_too_large",
    }
    assert below.status_code == 200
    assert len(walk.provider.calls) == 1


def test_many_large_images_are_offloaded_and_the_rest_passes_untouched() -> None:
    """20 MB, a provider that takes two images."""
    messages: list[dict[str, Any]] = []
    for n in range(5):
        messages += [showing(f"{n}?", png(800, 600, size_bytes=3 * MIB, seed=n)), assistant("Yes.")]
    with walking(128_000, provider=PickyProvider(at_most(2))) as walk:
        answer = walk.ask(messages[:-1])
    assert answer.reply.status_code == 200
    assert answer.actions == {"offload", "replay"}
    assert answer.forwarded[6:] == messages[6:-1]


def test_r148_a_slow_reader_gets_everything_although_it_takes_longer_than_the_limit() -> None:
    """R148, a smaller body at the same pace for its size."""
    body = body_with_image(3 * MIB)
    got = bytearray()

    def handler(connection: RawConnection) -> None:
        connection.read_head()
        while len(got) < len(body):
            threading.Event().wait(0.03)
            got.extend(connection.read_some())
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        connection.send(head % len(ANSWER) + ANSWER)

    with RawProvider(handler, receive_bytes=MIB // 4) as provider:
        upstreams = {"default": {"base_url": f"{provider.url}/v1"}}
        with walking(128_000, upstreams=upstreams, server={"write_timeout_seconds": 1}) as walk:
            reply = walk.client.post(CHAT, content=body)
    assert reply.status_code == 200
    assert reply.content == ANSWER
    assert bytes(got) == body


def test_r148_a_dead_reader_is_an_error_within_the_limit_and_its_connection_is_not_used_again() -> (
    None
):
    """R148."""
    closed = threading.Event()

    def handler(connection: RawConnection) -> None:
        head = connection.read_head()
        if b"content-length: 1" in head.lower() and connection.index == 0:
            if connection.stopping.wait(2) or connection.wait_closed():
                closed.set()
            return
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with RawProvider(handler, receive_bytes=65536) as provider:
        upstreams = {"default": {"base_url": f"{provider.url}/v1"}}
        with walking(128_000, upstreams=upstreams, server={"write_timeout_seconds": 0.5}) as walk:
            reply = walk.client.post(CHAT, content=body_with_image(8 * MIB))
            after = walk.client.get("/v1/models")
            assert closed.wait(5)
    assert reply.status_code == 504
    assert "stopped taking the request" in reply.json()["error"]["message"]
    assert after.status_code == 200
    assert provider.connections == 2


@pytest.mark.parametrize("kept", [False, True])
def test_r147_without_message_logging_no_text_of_failing_conversations_is_stored(
    tmp_path: Path, kept: bool
) -> None:
    """R147: distinct conversations over budget, every call failing upstream, summaries too."""
    secrets = [f"swordfish-{n}-herring" for n in range(20)]
    provider = PickyProvider(lambda shown: said("The model is down.", status=500))
    with walking(6000, provider=provider, folder=tmp_path, log={"messages": kept}) as walk:
        for secret in secrets:
            history = [user(f"Always call it {secret}."), assistant(f"{secret}: yes.")]
            for n in range(16):
                history += [user(text_of_tokens(400, secret)), assistant(f"{n} {secret}")]
            answer = walk.ask([*history, user(text_of_tokens(400, secret))])
            assert answer.reply.status_code == 500
            assert answer.actions & {"digest", "summary", "shrink"}
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tidegate.db*"))
    assert stored
    found = [secret for secret in secrets if secret.encode() in stored]
    assert found == (secrets if kept else [])
