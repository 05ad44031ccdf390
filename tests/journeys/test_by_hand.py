"""The log of compactions, whatever becomes of them: an end on every way out, nothing ever changed,
a process killed in the middle, a stop in the middle. And usage that no client asked for."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.assembly import create_app
from tests.fake_provider import FakeProvider, running, stream_events
from tests.proxied import CHAT, assistant, settings_for, system, talk, user, walking
from tests.serving import serve, wait_until
from tests.strict_provider import StrictProvider

MODEL = "gpt-4o"
MESSAGES = [system(), *talk(6, 200)]
OVER = [system(), *talk(14, 200)]
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def events_of(client: httpx.Client, conversation: str) -> list[dict[str, Any]]:
    reply = client.get(f"/tidegate/conversations/{conversation}/events?limit=1000")
    found: list[dict[str, Any]] = reply.json()["events"]
    return found


def test_every_start_has_its_end_and_what_was_told_is_never_changed() -> None:
    """A success, a failure, nothing usable, a client that left; by pressure and by hand."""
    named = {"x-tidegate-conversation": "one"}
    messages = list(OVER)
    with walking() as walk:
        seen: list[dict[str, Any]] = []

        def look() -> list[dict[str, Any]]:
            told = events_of(walk.client, "one")
            assert told[: len(seen)] == seen
            new = told[len(seen) :]
            seen[:] = told
            return new

        walk.ask(messages, headers=named)
        kinds = [event["kind"] for event in look()]
        assert kinds == ["compaction_start", "summary", "replacement", "compaction_end", "request"]
        messages += [assistant("ok"), *talk(4, 200, "more")]
        for _ in range(2):
            walk.provider.next_summary(status=500, body=b"{}")
        sent = {"model": MODEL, "messages": messages}
        failed = walk.client.post("/tidegate/compact", json=sent, headers=named)
        assert failed.status_code == 502
        kinds = [event["kind"] for event in look()]
        assert kinds == ["compaction_start", "summary", "compaction_end"]
        assert seen[-1]["error"]
        walk.provider.next_summary(never=True)
        with pytest.raises(httpx.ReadTimeout):
            walk.client.post("/tidegate/compact", json=sent, headers=named, timeout=0.5)
        wait_until(lambda: events_of(walk.client, "one")[-1]["kind"] == "compaction_end")
        assert [event["kind"] for event in look()] == ["compaction_start", "compaction_end"]
        assert seen[-1]["error"] == "cancelled"
        assert walk.client.post("/tidegate/compact", json=sent, headers=named).status_code == 200
        kinds = [event["kind"] for event in look()]
        assert kinds == ["compaction_start", "summary", "replacement", "compaction_end"]
        assert "error" not in seen[-1]
    starts = [event for event in seen if event["kind"] == "compaction_start"]
    ends = [event for event in seen if event["kind"] == "compaction_end"]
    assert [e["end"] for e in starts] == [e["end"] for e in ends]


def test_a_stop_in_the_middle_is_told(tmp_path: Path) -> None:
    provider = StrictProvider(6000)
    with running(provider):
        settings = settings_for(tmp_path, provider.url, 6000)
        with (
            serve(create_app(settings)) as proxy,
            httpx.Client(base_url=proxy.url) as client,
        ):
            sent = {"model": MODEL, "messages": MESSAGES}
            name = client.post(CHAT, json=sent).headers["x-tidegate-conversation"]
            provider.next_summary(never=True)
            with pytest.raises(httpx.ReadTimeout):
                client.post("/tidegate/compact", json=sent, timeout=0.3)
            # Cancelled once, the same range runs to its own end: only the stop cuts it off.
            provider.next_summary(never=True)
            wait_until(lambda: provider.cancelled == 1)
            wait_until(lambda: _left_waiting(client, sent))
        with serve(create_app(settings)) as again, httpx.Client(base_url=again.url) as client:
            events = events_of(client, name)
            assert client.post("/tidegate/compact", json=sent).json()["compacted"] is True
    assert [e["kind"] for e in events[1:]] == ["compaction_start", "compaction_end"] * 2
    assert [e.get("error") for e in events[2::2]] == ["cancelled", "cancelled"]


@contextlib.contextmanager
def served(folder: Path, provider: FakeProvider) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The real command in a process of its own."""
    file = folder / "tidegate.toml"
    file.write_text(
        f'[store]\nurl = "sqlite:///{folder}/tidegate.db"\n'
        f'[upstreams.default]\nbase_url = "{provider.url}/v1"\n'
        '[[models]]\nmatch = "*"\ncontext_window = 6000\nheadroom_tokens = "auto"\n'
    )
    command = [sys.executable, "-c", "from proxy.cli import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--config", str(file)], stderr=subprocess.PIPE, env={**os.environ}
    )
    try:
        assert process.stderr is not None
        line = ""
        while "base URL" not in line:
            line = process.stderr.readline().decode()
            assert line, "it did not start"
        yield process, line.split()[-1].removesuffix("/v1")
    finally:
        process.kill()
        process.wait(timeout=10)
        if process.stderr is not None:
            process.stderr.close()


def test_a_process_that_was_killed_blocks_nobody_once_its_lease_expired(tmp_path: Path) -> None:
    provider = StrictProvider(6000)
    sent = {"model": MODEL, "messages": MESSAGES}
    with running(provider):
        with served(tmp_path, provider) as (process, url), httpx.Client(base_url=url) as client:
            wait_until(lambda: _answers(client), seconds=20)
            name = client.post(CHAT, json=sent).headers["x-tidegate-conversation"]
            events_of(client, name)
            provider.next_summary(never=True)
            left: list[Exception] = []

            def compact() -> None:
                try:
                    httpx.post(f"{url}/tidegate/compact", json=sent, timeout=30)
                except httpx.HTTPError as error:
                    left.append(error)

            waiting = threading.Thread(target=compact)
            waiting.start()
            wait_until(lambda: len(provider.requests) == 2)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=10)
            waiting.join(timeout=10)
            assert left
        settings = settings_for(tmp_path, provider.url, 6000)
        with serve(create_app(settings)) as again, httpx.Client(base_url=again.url) as client:
            with sqlite3.connect(tmp_path / "tidegate.db") as database:
                leases = database.execute("select count(*) from leases where model <> ''")
                assert leases.fetchone() == (1,)
                busy = client.post("/tidegate/compact", json=sent)
                assert busy.json()["error"]["code"] == "conversation_busy"
                # Half a minute later.
                database.execute("update leases set expires_at = expires_at - 31")
            database.close()
            assert client.post("/tidegate/compact", json=sent).json()["compacted"] is True


def test_a_stop_does_not_wait_for_those_who_only_listen(tmp_path: Path) -> None:
    """An open page must not hold a restart back."""
    provider = StrictProvider(6000)
    with (
        running(provider),
        served(tmp_path, provider) as (process, url),
        httpx.Client(base_url=url) as client,
    ):
        wait_until(lambda: _answers(client), seconds=20)
        with client.stream("GET", "/tidegate/events") as reply:
            assert next(reply.iter_lines()) == ": listening"
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=8)
        assert process.returncode == 0


def _left_waiting(client: httpx.Client, sent: Any) -> bool:
    """Whether the compaction was begun; a moment after another it is still busy."""
    try:
        return client.post("/tidegate/compact", json=sent, timeout=0.3).status_code != 409
    except httpx.ReadTimeout:
        return True


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


class TestInjectedUsage:
    def test_usage_is_asked_for_and_the_extra_event_never_reaches_the_client(self) -> None:
        expected = b"".join(stream_events("It is done, as you asked."))
        with walking(server={"inject_stream_usage": True}) as walk:
            body = {"model": MODEL, "stream": True, "messages": [user("hi")]}
            reply = walk.client.post(CHAT, json=body)
            seen = walk.provider.requests[-1]
            name = reply.headers["x-tidegate-conversation"]
            (event,) = events_of(walk.client, name)
        assert reply.content == expected
        assert seen.json["stream_options"] == {"include_usage": True}
        assert {k: v for k, v in seen.json.items() if k != "stream_options"} == body
        assert event["reported_tokens"] is not None

    def test_it_arrives_chunk_by_chunk(self) -> None:
        chunks = stream_events("one two three", usage=USAGE)
        with walking(server={"inject_stream_usage": True}) as walk:
            walk.provider.next(chunks=chunks, content_type="text/event-stream", pause=0.03)
            body = {"model": MODEL, "stream": True, "messages": [user("hi")]}
            with walk.client.stream("POST", CHAT, json=body) as reply:
                got = list(reply.iter_raw())
        assert b"".join(got) == b"".join(chunks[:-2] + chunks[-1:])
        assert len(got) >= len(chunks) - 3

    def test_who_asks_gets_it_and_who_does_not_stream_is_left_alone(self) -> None:
        asking = {"stream": True, "stream_options": {"include_usage": True}}
        with walking(server={"inject_stream_usage": True}) as walk:
            for fields in (asking, {}):
                raw = json.dumps({"model": MODEL, **fields, "messages": [user("hi")]}).encode()
                reply = walk.client.post(CHAT, content=raw)
                assert walk.provider.requests[-1].body == raw
                assert b'"usage"' in reply.content

    def test_it_is_off_unless_asked_for(self) -> None:
        with walking() as walk:
            raw = json.dumps({"model": MODEL, "stream": True, "messages": [user("hi")]}).encode()
            walk.client.post(CHAT, content=raw)
            assert walk.provider.requests[-1].body == raw

    def test_a_break_comes_through_as_one(self) -> None:
        chunks = stream_events("one two three", usage=USAGE)
        with walking(server={"inject_stream_usage": True}) as walk:
            body = {"model": MODEL, "stream": True, "messages": [user("hi")]}
            walk.provider.next(chunks=chunks, content_type="text/event-stream", break_after=3)
            got: list[bytes] = []
            with walk.client.stream("POST", CHAT, json=body) as reply:
                pieces = reply.iter_raw()
                with pytest.raises(httpx.RemoteProtocolError):
                    got.extend(pieces)
        assert b"".join(got) == b"".join(chunks[:3])
