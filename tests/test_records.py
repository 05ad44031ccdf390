"""What is kept of an answered request, once its reply has ended; over real sockets."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.fake_provider import completion
from tests.proxied import CHAT, Walk, assistant, talk, text_of_tokens, user, walking
from tests.serving import wait_until

WINDOW = 6000


def metric(walk: Walk, line: str) -> float:
    """The value of a series as `/metrics` shows it, 0 where it is not there."""
    for text in walk.client.get("/metrics").text.splitlines():
        if text.startswith(f"{line} "):
            return float(text.rsplit(" ", 1)[1])
    return 0.0


def requests_in(folder: Path) -> list[dict[str, Any]]:
    """The data of every `request` event."""
    with sqlite3.connect(folder / "tidegate.db") as database:
        rows = database.execute("select data from events where kind = 'request'").fetchall()
    database.close()
    return [json.loads(data) for (data,) in rows]


def test_r043_a_figure_that_is_far_too_small_teaches_nothing_and_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = talk(12, 350)
    told = json.dumps(completion("ok", usage={"prompt_tokens": 2051})).encode()
    with walking(20_000) as walk:
        walk.provider.next(body=told)
        assert walk.ask(messages).reply.content == told
        walk.provider.next(body=told)
        again = walk.ask([*messages, assistant("ok"), user("more")])
        warned = [r for r in caplog.records if "truncated" in r.getMessage()]
        assert metric(walk, 'tidegate_estimate_ratio{model="gpt-4o"}') == 0
    assert len(warned) == 1
    assert again.actions == set()


def test_the_providers_figure_becomes_the_anchor_of_the_next_turn() -> None:
    messages = talk(8, 250)
    with walking(WINDOW) as walk:
        before = int(walk.ask(talk(9, 260)).facts["tokens"])
        assert before > 0
        usage = {"prompt_tokens": 4600, "completion_tokens": 5}
        walk.provider.next(body=json.dumps(completion("ok", usage=usage)).encode())
        counted = int(walk.ask(messages, model="gpt-4.1").facts["tokens"].removeprefix("<="))
        grown = [*messages, assistant("ok"), user(text_of_tokens(60))]
        facts = walk.ask(grown, model="gpt-4.1").facts
    assert counted < 4600
    assert int(facts["tokens-before"]) >= 4000 or facts["action"] == "summary"
    assert facts["action"] in {"summary", "none"}
    assert 4600 <= int(facts["tokens"]) <= 4800 or facts["action"] == "summary"


def test_tokens_of_client_and_forwarded_are_counted_apart() -> None:
    with walking(WINDOW) as walk:
        answer = walk.ask(talk(9, 300))
        client = metric(walk, 'tidegate_client_tokens_total{model="gpt-4o"}')
        forwarded = metric(walk, 'tidegate_forwarded_tokens_total{model="gpt-4o"}')
        walk.ask([user("hi")])
        uncounted = metric(walk, 'tidegate_uncounted_requests_total{model="gpt-4o"}')
    assert answer.actions == {"summary"}
    assert client > 4800 > forwarded > 0
    assert uncounted == 1


def test_a_request_is_told_with_its_end_and_its_figures(tmp_path: Path) -> None:
    with walking(WINDOW, folder=tmp_path) as walk:
        walk.ask(talk(9, 300))
        walk.provider.next(status=429, body=b"{}")
        walk.ask([user("hi")])
    large, refused = requests_in(tmp_path)
    assert (large["status"], large["completed"], large["finish_reason"]) == (200, True, "stop")
    assert large["tokens_before"] > large["tokens"]
    assert large["reported_tokens"] > 0
    assert large["actions"] == ["summary"]
    assert (refused["status"], refused["tokens_exact"]) == (429, False)
    assert "round 0" not in json.dumps([large, refused])


def test_a_stream_that_breaks_is_told_as_broken(tmp_path: Path) -> None:
    with walking(WINDOW, folder=tmp_path) as walk:
        walk.provider.next(break_after=3)
        body = {"model": "m", "stream": True, "messages": [user("hi")]}
        with (
            pytest.raises(Exception, match=r".*"),
            walk.client.stream("POST", CHAT, json=body) as reply,
        ):
            reply.read()
    (told,) = requests_in(tmp_path)
    assert told["completed"] is False
    assert told["broke"]


def test_recoveries_are_counted_and_told(tmp_path: Path) -> None:
    with walking(WINDOW, folder=tmp_path) as walk:
        walk.provider.next(overflow=True)
        assert "replay" in walk.ask(talk(7, 300)).actions
        assert metric(walk, 'tidegate_replays_total{cause="overflow"}') == 1
    with sqlite3.connect(tmp_path / "tidegate.db") as database:
        kinds = {kind for (kind,) in database.execute("select kind from events")}
    database.close()
    assert {"overflow", "replay"} <= kinds


def test_reasons_are_counted() -> None:
    with walking(None) as walk:
        walk.ask([user("hi")], model="nobodys-model")
        assert metric(walk, 'tidegate_reasons_total{reason="unknown-window"}') == 1


def test_usage_of_an_uncounted_request_that_looks_cut_is_counted_after_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the background: the reply was not delayed for it."""
    told = json.dumps(completion("ok", usage={"prompt_tokens": 40})).encode()
    with walking(200_000) as walk:
        walk.provider.next(body=told)
        answer = walk.ask([user(text_of_tokens(3000))])
        wait_until(lambda: any("truncated" in r.getMessage() for r in caplog.records))
    assert answer.facts["tokens"].startswith("<=")
