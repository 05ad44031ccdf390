"""The parts as built from the settings, opened in order and closed in the reverse order."""

import asyncio
import sqlite3
from pathlib import Path

import httpx
import pytest

from proxy.assembly import create_app
from tests.proxied import CHAT, assistant, settings_for, talk, user, walking
from tests.serving import wait_until

UPSTREAM = "http://127.0.0.1:9"


def test_making_the_application_opens_nothing(tmp_path: Path) -> None:
    create_app(settings_for(tmp_path, UPSTREAM, 6000))
    assert list(tmp_path.iterdir()) == []


def test_models_go_to_the_upstream_of_their_rule(tmp_path: Path) -> None:
    """The default upstream is not there; only the model's own one answers."""
    with walking(6000) as other:
        upstreams = {
            "default": {"base_url": f"{UPSTREAM}/v1"},
            "local": {"base_url": f"{other.provider.url}/v1"},
        }
        models = [{"match": "qwen*", "upstream": "local"}]
        with walking(6000, folder=tmp_path, upstreams=upstreams, models=models) as walk:
            qwen = walk.client.post(CHAT, json={"model": "qwen3", "messages": [user("hi")]})
            gpt = walk.client.post(CHAT, json={"model": "gpt-4o", "messages": [user("hi")]})
    assert qwen.status_code == 200
    assert gpt.status_code == 502


def test_compaction_switched_off_leaves_everything_to_the_provider() -> None:
    with walking(6000, compaction={"enabled": False}) as walk:
        answer = walk.ask(talk(12, 300))
    assert answer.forwarded == talk(12, 300)
    assert answer.reply.content == answer.main[0].refusal
    assert answer.summaries == ()


def test_health_readiness_and_metrics_answer() -> None:
    with walking(6000) as walk:
        walk.ask([user("hi")])
        assert walk.client.get("/healthz").status_code == 200
        assert walk.client.get("/readyz").status_code == 200
        exposition = walk.client.get("/metrics")
    assert exposition.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "tidegate_requests_total" in exposition.text


async def test_a_run_that_is_cut_off_by_the_end_is_told_in_the_log(tmp_path: Path) -> None:
    """A start without an end would look like a compaction that is still running.

    The first run is cancelled because its client leaves, the second one goes on until the end.
    """
    body = {"model": "gpt-4o", "messages": talk(9, 300)}
    with walking(6000, folder=tmp_path) as walk:
        provider = walk.provider
        async with httpx.AsyncClient(base_url=str(walk.client.base_url)) as client:
            for asked in (1, 2):
                provider.next_summary(never=True)
                asking = asyncio.create_task(client.post(CHAT, json=body))
                await asyncio.to_thread(wait_until, lambda n=asked: len(provider.summaries) == n)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await asyncio.to_thread(wait_until, lambda: provider.cancelled == 1)
    kinds = kinds_in(tmp_path / "tidegate.db")
    assert kinds.count("compaction_start") == kinds.count("compaction_end") == 2


def kinds_in(path: Path) -> list[str]:
    """The kinds of all events, in order."""
    with sqlite3.connect(path) as database:
        rows = database.execute("select kind from events order by 1").fetchall()
    database.close()
    return [kind for (kind,) in rows]


def test_the_log_tells_a_compaction_from_start_to_end(tmp_path: Path) -> None:
    with walking(6000, folder=tmp_path) as walk:
        walk.ask(talk(9, 300))
    kinds = kinds_in(tmp_path / "tidegate.db")
    assert kinds == sorted(
        ["compaction_start", "summary", "replacement", "compaction_end", "request"]
    )


@pytest.mark.parametrize("kept", [True, False])
def test_no_message_text_is_stored_when_messages_are_not_kept(tmp_path: Path, kept: bool) -> None:
    messages = [*talk(9, 300), {"role": "assistant", "content": "ok"}, user("TOPSECRET")]
    with walking(6000, folder=tmp_path, log={"messages": kept}) as walk:
        assert walk.ask(messages).actions == {"summary"}
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (b"TOPSECRET" in stored) is kept
    assert (b"round 0 asked" in stored) is kept


def test_a_long_conversation_that_grows_arrives_as_it_was_sent() -> None:
    """Each turn is read from where it differs from the one before: by a byte, or by an exchange."""
    history = talk(12, 300, label="long")
    turns = (
        history,
        [*history, assistant("done"), user("next")],
        [*history[:-1], user("asked otherwise"), assistant("done")],
        [*history[:7], user("a fork"), *history[7:]],
    )
    with walking(128_000) as walk:
        for messages in turns:
            assert walk.ask(messages).forwarded == messages
