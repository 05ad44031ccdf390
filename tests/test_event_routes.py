"""Live events over a socket: in order, each once, only one's own, and resumed where one left."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import proxy.event_routes
from tests.proxied import Walk, system, talk, user, walking
from tests.serving import wait_until

EVENTS = "/tidegate/events"
ONE, TWO = {"authorization": "Bearer sk-one"}, {"authorization": "Bearer sk-two"}


class Heard:
    """Lines of a stream, as they came."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def events(self) -> list[dict[str, Any]]:
        data = [line[6:] for line in self.lines if line.startswith("data: {")]
        return [json.loads(text) for text in data]

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events if event]


@contextmanager
def listening(walk: Walk, headers: Any = None, query: str = "") -> Iterator[Heard]:
    """Listens in a thread until the block ends."""
    heard, ended = Heard(), threading.Event()

    def listen() -> None:
        with walk.client.stream("GET", f"{EVENTS}{query}", headers=headers) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            for line in reply.iter_lines():
                heard.lines.append(line)
                if ended.is_set():
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    wait_until(lambda: heard.lines)
    yield heard
    ended.set()
    walk.ask([user("the last line")], headers=headers)
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_what_happens_is_told_in_the_logs_order() -> None:
    messages = [system(), *talk(12, 200)]
    expected = ["compaction_start", "summary", "replacement", "compaction_end", "request"]
    with walking() as walk, listening(walk) as heard:
        answer = walk.ask(messages)
        wait_until(lambda: "request" in heard.kinds)
        assert heard.kinds == expected
        ids = [int(line[4:]) for line in heard.lines if line.startswith("id: ")]
        assert ids == [event["order"] for event in heard.events]
        assert ids == sorted(set(ids))
        name = answer.facts["conversation"]
        place = f"/tidegate/conversations/{name}/events"
        assert walk.client.get(place).json()["events"] == heard.events


def test_each_tenant_hears_its_own_and_the_operator_all() -> None:
    with (
        walking() as walk,
        listening(walk, ONE) as first,
        listening(walk) as operator,
    ):
        walk.ask([user("of two")], headers=TWO)
        walk.ask([user("of one")], headers=ONE)
        wait_until(lambda: len(operator.kinds) == 2 and len(first.kinds) == 1)
        assert first.events == operator.events[1:]


def test_one_conversation_alone() -> None:
    named = {"x-tidegate-conversation": "mine"}
    with walking() as walk, listening(walk, named, "?conversation=mine") as heard:
        walk.ask([user("another")])
        walk.ask([user("this")], headers=named)
        wait_until(lambda: heard.kinds)
        assert {event["conversation_id"] for event in heard.events} == {"mine"}


def test_a_listener_goes_on_where_it_left() -> None:
    with walking() as walk:
        names = [walk.ask([user(f"n {n}")]).facts["conversation"] for n in range(3)]
        place = f"/tidegate/conversations/{names[0]}/events"
        first = walk.client.get(place).json()["events"][0]["order"]
        with listening(walk, {"last-event-id": str(first)}) as heard:
            wait_until(lambda: len(heard.kinds) == 2)
            walk.ask([user("one more")])
            wait_until(lambda: len(heard.kinds) == 3)
            assert [event["conversation_id"] for event in heard.events[:2]] == names[1:]


def test_silence_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy.event_routes, "KEEP_ALIVE_SECONDS", 0.05)
    with walking() as walk, listening(walk) as heard:
        wait_until(lambda: heard.lines.count(": keep-alive") >= 3)


def test_a_place_that_is_none_is_refused() -> None:
    with walking() as walk:
        reply = walk.client.get(f"{EVENTS}?after=x")
        assert (reply.status_code, reply.json()["error"]["param"]) == (422, "after")
