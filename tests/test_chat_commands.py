"""`/compact` as chat windows and SDKs send it: answered like a chat, and never seen by a model."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_provider import running
from tests.proxied import (
    CHAT,
    Answer,
    Walk,
    assistant,
    raw_messages,
    settings_for,
    system,
    talk,
    user,
    walking,
)
from tests.serving import serve, wait_until
from tests.strict_provider import StrictProvider

MODEL = "gpt-4o"
COMMANDS = ["/compact", " /context compact\n", [{"type": "text", "text": "/compact"}]]
CHINESE = "请检查一下海潮表，看看今天的潮水什么时候上涨，什么时候退去。"


def ask(walk: Walk, messages: list[Any], **fields: Any) -> httpx.Response:
    return walk.client.post(CHAT, json={"model": MODEL, "messages": messages, **fields})


def ask_later(walk: Walk, messages: list[Any], left: list[Any], headers: Any = None) -> Answer:
    """A later turn; `left` is what a model may be shown of it."""
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    return walk.send(body, left, headers=headers)


def said(reply: httpx.Response) -> str:
    """The text of a whole answer."""
    assert reply.status_code == 200
    choice = reply.json()["choices"][0]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
    text: str = choice["message"]["content"]
    return text


def streamed(reply: httpx.Response) -> tuple[str, list[Any]]:
    """The text of a streamed answer, and its chunks."""
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    return "".join(delta.get("content", "") for delta in deltas), chunks


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_command_compacts_and_is_answered_like_a_chat(command: Any, stream: bool) -> None:
    messages = [system(), *talk(6, 200), assistant("Done.")]
    with walking() as walk:
        reply = ask(walk, [*messages, user(command)], stream=stream)
        assert all(call.summary for call in walk.provider.calls)
        text = streamed(reply)[0] if stream else said(reply)
    for part in ("Compacted", "12 earlier messages", "newest 2 messages"):
        assert part in text
    assert reply.headers["x-tidegate-action"] == "summary"
    assert reply.headers["x-tidegate-generation"] == "1"
    assert reply.headers["x-tidegate-conversation"]
    assert f"{int(reply.headers['x-tidegate-tokens']):,}" in text


@pytest.mark.parametrize("as_parts", [False, True])
def test_the_exchange_reaches_no_model_on_any_later_turn(as_parts: bool) -> None:
    """Open WebUI sends strings back, SDK clients parts; both drop what they do not know."""
    messages = [system(), *talk(6, 200), assistant("Done.")]
    with walking() as walk:
        answer = said(ask(walk, [*messages, user("/compact")]))
        back: Any = [{"type": "text", "text": answer}] if as_parts else answer
        history = [*messages, user("/compact"), assistant(back), user("What now?")]
        left = [*messages, user("What now?")]
        later = ask_later(walk, history, left)
        history += [assistant("This."), user("/compact"), assistant("not ours"), user("And then?")]
        left += [assistant("This."), assistant("not ours"), user("And then?")]
        last = ask_later(walk, history, left)
        calls = [call.seen.body.decode() for call in walk.provider.calls]
    assert later.forwarded[2:] == [*messages[-2:], user("What now?")]
    assert later.facts["generation"] == "1"
    assert later.summaries == ()
    assert last.forwarded[2:] == [
        *messages[-2:],
        user("What now?"),
        assistant("This."),
        assistant("not ours"),
        user("And then?"),
    ]
    assert not any("/compact" in body or "Compacted" in body for body in calls)
    assert raw_messages(last.main[0]).startswith(raw_messages(later.main[0]))


def test_every_other_byte_of_the_request_stays() -> None:
    body = (
        b'{ "model":"m", "seed": 123456789012345678901234567890, "messages": [ {"role":"user",'
        b' "content":"a", "x":1.0},{"role":"user","content":"/compact"},{"role":"user",'
        b'"content":"b\\u00e9"} ], "odd": 1.50}'
    )
    with walking() as walk:
        walk.client.post(CHAT, content=body)
        forwarded = walk.provider.requests[-1].body
    assert (
        b'{"role":"user", "content":"a", "x":1.0},{"role":"user","content":"b\\u00e9"}' in forwarded
    )
    assert b"123456789012345678901234567890" in forwarded
    assert b"1.50" in forwarded
    assert b"compact" not in forwarded


def test_another_worker_knows_our_answers_too_and_so_does_a_restart(tmp_path: Path) -> None:
    from proxy.assembly import create_app

    messages = [system(), *talk(6, 200), assistant("Done.")]
    server = {"workers": 2}
    provider = StrictProvider(6000)
    with running(provider):
        settings = settings_for(tmp_path, provider.url, 6000, server=server)
        with serve(create_app(settings)) as first, serve(create_app(settings)) as second:
            sent = {"model": MODEL, "messages": [*messages, user("/compact")]}
            answer = said(httpx.post(f"{first.url}{CHAT}", json=sent))
            history = [*messages, user("/compact"), assistant(answer), user("go on")]
            httpx.post(f"{second.url}{CHAT}", json={"model": MODEL, "messages": history})
        with serve(create_app(settings)) as again:
            httpx.post(f"{again.url}{CHAT}", json={"model": MODEL, "messages": history})
    for seen in provider.chats:
        assert seen.json["messages"][2:] == [*messages[-2:], user("go on")]


def test_another_tenants_answer_is_not_ours() -> None:
    messages = [system(), *talk(6, 200), assistant("Done.")]
    with walking() as walk:
        one = {"authorization": "Bearer sk-one"}
        sent = {"model": MODEL, "messages": [*messages, user("/compact")]}
        answer = said(walk.client.post(CHAT, json=sent, headers=one))
        history = [user("a"), user("/compact"), assistant(answer), user("b")]
        two = {"authorization": "Bearer sk-two"}
        left = [user("a"), assistant(answer), user("b")]
        other = ask_later(walk, history, left, headers=two)
        own = ask_later(walk, history, [user("a"), user("b")], headers=one)
    assert other.forwarded == [user("a"), assistant(answer), user("b")]
    assert own.forwarded == [user("a"), user("b")]


class TestInWords:
    def test_nothing_to_compact_yet(self) -> None:
        with walking() as walk:
            assert "nothing to compact yet" in said(ask(walk, [user("hi"), user("/compact")]))
            assert "nothing to compact yet" in said(ask(walk, [user("/compact")]))
            assert walk.provider.requests == []

    def test_in_the_language_of_the_conversation(self) -> None:
        messages: list[Any] = [system()]
        for n in range(8):
            messages += [user(f"{n} {CHINESE * 8}"), assistant(f"{n} {CHINESE * 8}")]
        with walking(12_000) as walk:
            assert "已压缩" in said(ask(walk, [*messages, user("/compact")]))
            assert "还没有可压缩" in said(ask(walk, [user(CHINESE), user("/compact")]))
            assert "用法" in said(ask(walk, [user(CHINESE), user("/compact 请")]))

    def test_how_it_is_used(self) -> None:
        messages = [system(), *talk(6, 200), assistant("Done.")]
        with walking() as walk:
            text = said(ask(walk, [*messages, user("/compact everything please")]))
            assert walk.provider.requests == []
            asked = user("/compact everything please")
            left = [*messages, user("go on")]
            later = ask_later(walk, [*messages, asked, assistant(text), user("go on")], left)
        assert "Usage" in text
        assert later.forwarded == [*messages, user("go on")]

    def test_anything_longer_is_for_the_model(self) -> None:
        for text in ("/compact " + "x" * 100, "/compact\nthe table", "/compaction"):
            with walking() as walk:
                answer = walk.ask([user("hello"), assistant("hi"), user(text)])
            assert answer.forwarded[-1] == user(text)

    def test_busy(self) -> None:
        messages = [system(), *talk(6, 200), assistant("Done."), user("again")]
        with walking() as walk:
            walk.ask(messages)
            walk.provider.next(delay=1.0)
            ended = _beside(lambda: ask(walk, messages))
            wait_until(lambda: len(walk.provider.requests) == 2)
            assert "busy" in said(ask(walk, [*messages, user("/compact")]))
            assert ended().status_code == 200
            assert walk.provider.summaries == []

    @pytest.mark.parametrize("stream", [False, True])
    def test_failed(self, stream: bool) -> None:
        messages = [system(), *talk(6, 200), assistant("Done.")]
        with walking() as walk:
            for _ in range(4):
                walk.provider.next_summary(status=500, body=b"{}")
            reply = ask(walk, [*messages, user("/compact")], stream=stream)
            text = streamed(reply)[0] if stream else said(reply)
            history = [*messages, user("/compact"), assistant(text), user("go on")]
            later = ask_later(walk, history, [*messages, user("go on")])
        assert "failed" in text
        assert later.forwarded == [*messages, user("go on")]

    def test_switched_off_and_without_a_budget(self) -> None:
        messages = [system(), *talk(6, 200), user("/compact")]
        with walking(compaction={"enabled": False}) as walk:
            assert "switched off" in said(ask(walk, messages))
        with walking(None) as walk:
            text = said(ask(walk, messages, model="nobody-knows"))
        assert "context_window" in text


def test_usage_is_in_the_stream_when_asked_for() -> None:
    with walking() as walk:
        asked = ask(walk, [user("/compact")], stream=True, stream_options={"include_usage": True})
        plain = ask(walk, [user("/compact")], stream=True)
    _, chunks = streamed(asked)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert all("usage" not in chunk for chunk in streamed(plain)[1])


def test_the_bypass_header_leaves_it_to_the_model() -> None:
    with walking() as walk:
        headers = {"x-tidegate-mode": "off"}
        walk.client.post(
            CHAT, json={"model": MODEL, "messages": [user("/compact")]}, headers=headers
        )
        assert walk.provider.requests[-1].json["messages"] == [user("/compact")]


def test_a_long_compaction_keeps_a_streaming_client_waiting_with_comments() -> None:
    messages = [system(), *talk(6, 200), assistant("Done."), user("/compact")]
    with walking(server={"heartbeat_seconds": 0.2}) as walk:
        walk.provider.next_summary(delay=0.7)
        text = ask(walk, messages, stream=True).text
    assert text.startswith(": ")
    assert "Compacted" in text
    assert text.endswith("data: [DONE]\n\n")


def _beside(send: Callable[[], httpx.Response]) -> Callable[[], httpx.Response]:
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(send()))
    thread.start()

    def ended() -> httpx.Response:
        thread.join(timeout=20)
        return replies[0]

    return ended
