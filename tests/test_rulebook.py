"""Which rules hold for a request, and what refusals teach; over real sockets."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proxied import system, talk, user, walking
from tests.serving import wait_until
from tests.strict_provider import StrictProvider

WINDOW = 6000


def test_an_invalid_budget_never_fails_a_chat_and_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """65536 - 0 - 65536 leaves nothing: no compaction under pressure, recovery still works."""
    models = [{"match": "*", "context_window": 65_536}]
    with walking(65_536, models=models, provider=StrictProvider(4000)) as walk:
        first, second = walk.ask([user("hi")]), walk.ask([user("ho")])
        recovered = walk.ask(talk(8, 300))
    assert first.reply.status_code == second.reply.status_code == 200
    assert first.facts["reason"] == second.facts["reason"] == "invalid-budget"
    assert recovered.reply.status_code == 200
    assert "replay" in recovered.actions
    warned = [r.getMessage() for r in caplog.records if "no_budget" in r.getMessage()]
    assert len(warned) == 1
    assert "65536" in warned[0]


def test_r036_a_stated_limit_holds_from_then_on() -> None:
    provider = StrictProvider(4000)
    messages = [system(), *talk(8, 300)]
    with walking(None, provider=provider) as walk:
        first = walk.ask(messages, model="nobodys-model")
        second = walk.ask([*messages, *talk(4, 300, "then")], model="nobodys-model")
    assert [call.refusal is None for call in first.main] == [False, True]
    assert first.facts["reason"] == "window-stated"
    assert second.facts["window"] == "4000"
    assert [call.refusal for call in second.main] == [None]


def test_a_learned_limit_is_kept_over_a_restart(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with walking(None, provider=StrictProvider(4000), folder=tmp_path) as walk:
            answer = walk.ask(talk(8, 300, f"try {attempt}"), model="nobodys-model")
            assert answer.reply.status_code == 200
            assert len(answer.main) == (2 if attempt == 1 else 1)


def test_a_limit_that_is_learned_is_the_tenants_alone() -> None:
    provider = StrictProvider(4000)
    with walking(None, provider=provider) as walk:
        walk.ask(talk(8, 300), model="m", headers={"authorization": "Bearer a"})
        other = walk.ask([user("hi")], model="m", headers={"authorization": "Bearer b"})
    assert other.facts["window"] == "unknown"


def test_any_name_may_be_asked_for_in_a_listing(caplog: pytest.LogCaptureFixture) -> None:
    """A lone surrogate, too, which a client's JSON may hold."""
    provider = StrictProvider()
    with walking(None, provider=provider) as walk:
        assert walk.ask([user("hi")], model="model-\ud800").reply.status_code == 200
        wait_until(lambda: any(seen.path == "/api/show" for seen in provider.requests))
    assert not [record for record in caplog.records if record.exc_info]


def test_a_listing_of_the_upstream_says_the_window(caplog: pytest.LogCaptureFixture) -> None:
    """Asked in the background: the chat that caused it does not wait for it."""
    listing = json.dumps({"data": [{"id": "local-model", "max_model_len": 8000}]}).encode()

    class Listing(StrictProvider):
        async def _answer(self, seen: Any, send: Any) -> None:
            if seen.path.endswith("/models"):
                headers = [(b"content-type", b"application/json")]
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await send(start)
                await send({"type": "http.response.body", "body": listing})
                return
            await super()._answer(seen, send)

    with walking(None, provider=Listing()) as walk:
        for _ in range(200):
            window = walk.ask([user("hi")], model="local-model").facts["window"]
            if window == "8000":
                break
    assert window == "8000"
    # What was late was not missing: there is nothing for an operator to mend.
    assert not [r for r in caplog.records if "no_budget" in r.getMessage()]


def test_images_are_not_asked_about_for_text_alone() -> None:
    with walking(WINDOW) as walk:
        assert walk.ask([user([{"type": "text", "text": "hi"}])]).reply.status_code == 200
