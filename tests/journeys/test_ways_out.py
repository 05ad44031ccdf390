"""Every way a recovery can end: what landed is used, what did not is not tried again, what nobody
waits for stops, and the answer to a replay is the answer."""

import json
import logging
import time
from typing import Any

import pytest

from proxy.meter import Meter
from proxy.surfaces import Surfaces
from proxy.windows import Windows
from tests.fake_provider import overflow_body, stream_event, stream_events
from tests.journeys.refusing_provider import (
    EVENTS,
    Refuse,
    Refused,
    RefusingProvider,
    as_400,
    as_first_event,
    as_gzip,
    as_gzip_event,
    in_words,
)
from tests.journeys.test_overflow import BELIEVED, LONG, TRUE, answer_of
from tests.proxied import CHAT, agent_run, talk, user, walking
from tests.raw_client import connected
from tests.serving import wait_until

NO_DIGEST: dict[str, Any] = {"compaction": {"fallback": "none"}}
# Old results that a prune makes small, then more than a turn of other things.
WITH_OLD_RESULTS = [*agent_run(2, 2600), *talk(2, 200)]


def test_a_prune_that_landed_is_replayed_though_the_summary_failed() -> None:
    provider = RefusingProvider(3000)
    with walking(BELIEVED, provider=provider, **NO_DIGEST) as walk:
        for _ in range(2):
            provider.next_summary(status=500, body=b"{}")
        answer = walk.ask(WITH_OLD_RESULTS)
        assert 1 <= len(provider.summaries) <= 2
        assert answer.facts["reason"] == "summary-failed"
        assert answer.actions == {"prune", "replay"}
        assert answer_of(answer.reply) == "It is done, as you asked."
        assert len(answer.main) == 2


def test_where_nothing_landed_nothing_is_replayed() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider, **NO_DIGEST) as walk:
        for _ in range(2):
            provider.next_summary(status=500, body=b"{}")
        answer = walk.ask(LONG)
        assert answer.reply.status_code == 400
        assert answer.reply.content == provider.refused[0].body
        assert len(answer.main) == 1
        assert len(provider.summaries) <= 2
        assert answer.facts["reason"] == "summary-failed"
        assert answer.actions == set()


def test_a_digest_stands_in_for_a_failed_summary() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        for _ in range(2):
            provider.next_summary(status=500, body=b"{}")
        answer = walk.ask(LONG)
        assert answer_of(answer.reply) == "It is done, as you asked."
        assert answer.actions == {"digest", "replay"}
        assert len(answer.main) == 2
        assert len(provider.summaries) <= 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_any_other_answer_to_a_replay_is_the_answer(status: int) -> None:
    body = json.dumps({"error": {"message": "later", "code": "busy"}}).encode()
    calls: list[int] = []

    def refuse(window: int, prompt: int) -> Refused:
        calls.append(prompt)
        return as_400(window, prompt) if len(calls) == 1 else Refused(status, [body])

    provider = RefusingProvider(TRUE, refuse, always=True)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG)
        assert (answer.reply.status_code, answer.reply.content) == (status, body)
        assert len(answer.main) == 2


def test_more_replays_where_the_operator_allows_them() -> None:
    """Each must make the surface smaller; the first error is still the one that is shown."""
    provider = RefusingProvider(TRUE, as_400, always=True)
    allowed: dict[str, Any] = {"compaction": {"max_overflow_replays": 3}}
    with walking(BELIEVED, provider=provider, **allowed) as walk:
        answer = walk.ask(LONG)
        sizes = [call.tokens for call in answer.main]
        assert 2 <= len(sizes) <= 4
        assert sizes == sorted(sizes, reverse=True)
        assert answer.reply.content == provider.refused[0].body


def test_recovery_off_means_off() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider, compaction={"enabled": False}) as walk:
        answer = walk.ask(LONG)
        assert answer.reply.content == provider.refused[0].body
        assert (len(answer.main), len(answer.summaries)) == (1, 0)


def test_r152_the_bypass_header_gets_the_refusal_as_it_is() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        body = json.dumps({"model": "m", "messages": LONG}).encode()
        answer = walk.send(body, LONG, headers={"x-tidegate-mode": "off"})
        assert answer.reply.content == provider.refused[0].body
        assert answer.main[0].seen.body == body
        assert answer.main[0].seen.header("x-tidegate-mode") is None
        assert (len(answer.main), len(answer.summaries)) == (1, 0)


def test_the_replay_of_a_stored_recovery_is_not_needed_again() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        assert len(walk.ask(LONG).main) == 2
        again = walk.ask(LONG)
        assert (len(again.main), len(again.summaries)) == (1, 0)
        assert again.reply.status_code == 200


@pytest.mark.parametrize("refuse", [as_400, as_first_event], ids=lambda f: f.__name__)
def test_a_client_that_leaves_in_the_middle_stops_it_all(refuse: Refuse) -> None:
    provider = RefusingProvider(TRUE, refuse)
    with walking(BELIEVED, provider=provider) as walk:
        provider.next_summary(never=True)
        assert walk.client.base_url.port is not None
        with connected(walk.client.base_url.port) as client:
            client.chat({"model": "m", "messages": LONG, "stream": True})
            wait_until(lambda: len(provider.summaries) == 1)
            left = time.monotonic()
            client.leave()
            wait_until(lambda: provider.cancelled >= 1, seconds=1)
        assert time.monotonic() - left < 1
        # A request of another conversation comes and goes; nothing was replayed meanwhile.
        assert walk.ask([user("hello")]).reply.status_code == 200
        assert len(provider.chats) == 2
        assert len(provider.summaries) == 1


def test_a_refusal_whose_stream_stays_open_is_given_up_when_the_client_leaves() -> None:
    provider = RefusingProvider(TRUE)
    event = b"data: " + overflow_body(TRUE, TRUE + 300) + b"\n\n"
    with walking(BELIEVED, provider=provider) as walk:
        provider.next(chunks=[event, b": still here\n\n"], content_type=EVENTS, pause=60)
        provider.next_summary(never=True)
        assert walk.client.base_url.port is not None
        with connected(walk.client.base_url.port) as client:
            client.chat({"model": "m", "messages": LONG, "stream": True})
            wait_until(lambda: len(provider.summaries) == 1)
            client.leave()
            wait_until(lambda: provider.cancelled == 2, seconds=1)


def test_a_refusal_whose_stream_stays_open_is_given_up_when_the_replay_is_answered() -> None:
    provider = RefusingProvider(TRUE)
    event = b"data: " + overflow_body(TRUE, TRUE + 300) + b"\n\n"
    with walking(BELIEVED, provider=provider) as walk:
        provider.next(chunks=[event, b": still here\n\n"], content_type=EVENTS, pause=60)
        assert walk.ask(LONG, stream=True).reply.status_code == 200
        wait_until(lambda: provider.cancelled == 1, seconds=1)


@pytest.mark.parametrize("refuse", [as_400, as_gzip, as_gzip_event], ids=lambda f: f.__name__)
@pytest.mark.parametrize("always", [False, True])
def test_a_long_recovery_is_heard_and_ends_readably(refuse: Refuse, always: bool) -> None:
    """After the comments a 200 without a coding has gone out: what follows is plain events."""
    provider = RefusingProvider(TRUE, refuse, always=always)
    with walking(BELIEVED, provider=provider, server={"heartbeat_seconds": 0.1}) as walk:
        provider.next_summary(delay=0.5)
        headers = {"accept-encoding": "gzip"}
        reply = walk.ask(LONG, stream=True, headers=headers).reply
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith(EVENTS)
        assert "content-encoding" not in reply.headers
        assert reply.text.startswith(": tidegate is making room\n\n")
        if not always:
            assert answer_of(reply) == "It is done, as you asked."
            return
        said = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")]
        first = json.loads(overflow_body(TRUE, provider.main_calls[0].tokens))
        assert [json.loads(data) for data in said] == [first]


def test_the_first_token_passes_before_the_second_is_made() -> None:
    """A reply is held until it is known good and no longer."""
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        port = walk.client.base_url.port
        assert port is not None
        chunks = [stream_event({"role": "assistant", "content": ""}), *stream_events("a b")[1:]]
        for known_good in (1, 0):
            provider.sent_at.clear()
            provider.next(chunks=chunks[1 - known_good :], content_type=EVENTS, pause=0.4)
            with connected(port) as client:
                client.chat({"model": "m", "messages": [user("hi")], "stream": True})
                answer = client.read_head()
                pieces = []
                for _, piece in client.chunks(answer):
                    pieces.append((time.monotonic(), piece))
            arrived = next(at for at, piece in pieces if b'"a"' in piece)
            assert arrived - provider.sent_at[known_good] < 0.2


def test_an_error_with_the_whole_request_inside_is_judged_without_delay() -> None:
    """Old llama.cpp puts the request into the message; the scan stays bounded."""
    echoed = in_words(
        400, {"error": {"message": "cannot read: " + "context length exceeded " * 40}}
    )
    provider = RefusingProvider(TRUE, echoed, always=True)
    with walking(BELIEVED, provider=provider) as walk:
        history: list[Any] = [user("context length exceeded " * 40 * 2000), *LONG]
        started = time.monotonic()
        answer = walk.ask(history)
        assert time.monotonic() - started < 10
        assert answer.reply.content == provider.refused[0].body
        assert len(answer.main) == 1
        assert CHAT in answer.main[0].seen.path


@pytest.mark.parametrize(
    ("part", "name"),
    [(Surfaces, "open"), (Surfaces, "price"), (Meter, "count_messages"), (Windows, "prepare")],
)
@pytest.mark.parametrize("messages", [[user("hello")], LONG], ids=["small", "too long"])
def test_r095_a_broken_part_costs_nobody_an_answer(
    part: type,
    name: str,
    messages: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request goes through as it came; what does not fit gets the provider's own answer."""

    def broken(*arguments: Any, **options: Any) -> Any:
        raise ValueError("a mistake of ours")

    provider = RefusingProvider(TRUE)
    # T is below this request, which is therefore counted.
    with walking(3 * TRUE // 2, provider=provider) as walk:
        monkeypatch.setattr(part, name, broken)
        answer = walk.ask(messages)
        assert answer.main[0].body["messages"] == messages
        assert len(answer.main) == 1
        if provider.refused:
            assert (answer.reply.status_code, answer.reply.content) == (
                400,
                provider.refused[0].body,
            )
        else:
            assert answer_of(answer.reply) == "It is done, as you asked."
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) <= 2
