"""The walk of a chat request over real sockets: what passes untouched, what is compacted first,
what comes next turn. Names hold the rows of cases.jsonl that they prove."""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.compactor import Compactor
from proxy.core.errors import StoreUnavailable
from proxy.meter import Meter
from proxy.store.sql import SqlStore
from tests.fake_provider import completion, stream_events
from tests.proxied import (
    CHAT,
    agent_run,
    assistant,
    calling,
    raw_messages,
    result,
    system,
    talk,
    text_of_tokens,
    user,
    walking,
)
from tests.strict_provider import StrictProvider, request_tokens

WINDOW = 6000
TRIGGER = 4800


def test_under_budget_the_provider_gets_the_clients_bytes_and_the_client_the_providers() -> None:
    """Odd white space, unknown fields, duplicate keys and an unusual number stay as they are."""
    body = (
        b'{ "messages":\n[ {"role" : "user","content":"hi \\u00e9", "x":[1.0, 2e400]} ] ,\t'
        b'"model":"gpt-4o", "seed": 123456789012345678901234567890, "seed":1, "vendor": {"a":null}}'
    )
    answer = b'{ "choices" : [{"message":{"role":"assistant","content":"\\u00fc"}}], "odd": 1.50}\n'
    with walking(WINDOW) as walk:
        walk.provider.next(body=answer)
        reply = walk.client.post(CHAT, content=body)
        assert walk.provider.requests[-1].body == body
        assert reply.content == answer
        assert reply.headers["x-tidegate-action"] == "none"


def test_under_budget_a_stream_passes_chunk_by_chunk() -> None:
    chunks = stream_events("one two three")
    with walking(WINDOW) as walk:
        walk.provider.next(chunks=chunks, content_type="text/event-stream", pause=0.03)
        body = {"model": "m", "stream": True, "messages": [user("hi")]}
        with walk.client.stream("POST", CHAT, json=body) as reply:
            seen = list(reply.iter_raw())
        assert b"".join(seen) == b"".join(chunks)
        assert len(seen) >= len(chunks) - 2


class TestOverBudget:
    def test_compacted_before_the_first_main_call_and_below_the_trigger(self) -> None:
        messages = [system("Be brief."), system("Be kind."), *talk(9, 300)]
        with walking(WINDOW) as walk:
            answer = walk.ask(messages)
        assert answer.reply.status_code == 200
        assert len(answer.main) == 1
        assert len(answer.summaries) == 1
        assert answer.main[0].tokens < answer.trigger == TRIGGER
        assert answer.forwarded[:2] == messages[:2]
        assert answer.forwarded[-1] == messages[-1]

    def test_the_next_turn_reuses_the_summary_and_begins_with_the_same_bytes(self) -> None:
        messages = [system(), *talk(12, 300)]
        with walking(WINDOW) as walk:
            first = walk.ask(messages)
            longer = [*messages, assistant("Done."), user("And now this.")]
            second = walk.ask(longer)
        assert second.summaries == ()
        assert raw_messages(second.main[0]).startswith(raw_messages(first.main[0]))
        assert second.forwarded[-2:] == longer[-2:]

    def test_what_was_not_counted_is_still_told_apart_from_what_is_forwarded(self) -> None:
        messages = [system(), *talk(12, 300)]
        with walking(WINDOW, compaction={"retain_tokens": 50}) as walk:
            before = int(walk.ask(messages).facts["tokens-before"])
            again = walk.ask([*messages, assistant("Done."), user("And now this.")]).facts
        assert again["action"] == "none"
        assert int(again["tokens-before"].removeprefix("<=")) > before
        assert again["tokens"].startswith("<=")
        assert int(again["tokens"].removeprefix("<=")) < before

    def test_the_same_after_a_restart(self, tmp_path: Path) -> None:
        messages = [system(), *talk(12, 300)]
        longer = [*messages, assistant("Done."), user("And now this.")]
        with walking(WINDOW, folder=tmp_path) as walk:
            first = walk.ask(messages)
        with walking(WINDOW, folder=tmp_path) as walk:
            again, second = walk.ask(messages), walk.ask(longer)
        assert again.summaries == second.summaries == ()
        assert again.main[0].seen.body == first.main[0].seen.body
        assert raw_messages(second.main[0]).startswith(raw_messages(first.main[0]))

    def test_r085_the_same_request_twice_gives_the_same_bytes(self) -> None:
        messages = [system(), *talk(12, 300)]
        with walking(WINDOW) as walk:
            first = walk.ask(messages)
            second = walk.ask(messages)
        assert first.main[0].seen.body == second.main[0].seen.body

    def test_r085_and_so_does_another_store_given_the_same_summary(self) -> None:
        """Nothing that Tidegate inserts holds a time, a counter, an id or chance."""
        messages = [system(), *talk(12, 300)]
        bodies = []
        for _ in range(2):
            with walking(WINDOW) as walk:
                bodies.append(walk.ask(messages).main[0].seen.body)
        assert bodies[0] == bodies[1]

    def test_r032_the_very_first_request_may_be_three_times_over(self) -> None:
        with walking(WINDOW, provider=StrictProvider(WINDOW)) as walk:
            answer = walk.ask(talk(24, 300))
        assert request_tokens({"messages": talk(24, 300)}) > 3 * TRIGGER * 95 // 100
        assert answer.reply.status_code == 200
        assert len(answer.main) == 1
        assert answer.main[0].tokens < TRIGGER

    def test_r030_a_stream_without_usage_is_counted_by_ourselves(self) -> None:
        messages = [system(), *talk(1, 300)]
        actions = []
        with walking(WINDOW) as walk:
            for n in range(12):
                actions.append(walk.ask(messages, stream=True).facts["action"])
                messages += [
                    assistant(text_of_tokens(300, f"a{n}")),
                    user(text_of_tokens(300, f"u{n}")),
                ]
        assert actions.count("summary") >= 1
        assert all(call.refusal is None for call in walk.provider.calls)

    def test_r151_the_client_sees_it_in_headers_and_never_in_the_body(self) -> None:
        messages = talk(12, 300)
        with walking(WINDOW) as walk:
            answer = walk.ask(messages)
            metrics = walk.client.get("/metrics").text
        facts = answer.facts
        assert facts["action"] == "summary"
        assert int(facts["tokens-before"]) > TRIGGER > int(facts["tokens"])
        assert facts["window"] == str(WINDOW)
        assert int(facts["summary-tokens"]) > 0
        assert (
            answer.reply.json()["choices"][0]["message"]["content"] == "It is done, as you asked."
        )
        assert 'action="summary"' in metrics

    def test_r152_the_bypass_header_passes_it_untouched(self) -> None:
        body = json.dumps({"model": "m", "messages": talk(12, 400)}, indent=3).encode()
        with walking(WINDOW) as walk:
            answer = walk.send(body, headers={"x-tidegate-mode": "off"})
        (call,) = answer.main
        assert call.seen.body == body
        assert call.seen.header("x-tidegate-mode") is None
        assert answer.reply.status_code == 400
        assert answer.reply.content == call.refusal


class TestShapes:
    @pytest.mark.parametrize("shape", ["string", "parts", "cache_control"])
    def test_r153_every_shape_of_content_is_compacted(self, shape: str) -> None:
        """Strings (OpenAI SDK, Open WebUI), parts (Cline, LangChain), marked parts (opencode)."""

        def shaped(message: dict[str, Any]) -> dict[str, Any]:
            if shape == "string":
                return message
            part = {"type": "text", "text": message["content"]}
            if shape == "cache_control":
                part["cache_control"] = {"type": "ephemeral"}
            return {**message, "content": [part]}

        messages = [shaped(message) for message in [system(), *talk(12, 300)]]
        with walking(WINDOW) as walk:
            answer = walk.ask(messages)
        assert answer.actions == {"summary"}
        assert answer.forwarded[0] == messages[0]
        assert answer.forwarded[-1] == messages[-1]
        assert answer.main[0].tokens < TRIGGER

    def test_r126_every_other_top_level_field_stays_as_it_was(self) -> None:
        fields = {
            "temperature": 1.0,
            "seed": 123456789012345678901234567890,
            "top_k": 40,
            "repetition_penalty": 1.05,
            "chat_template_kwargs": {"enable_thinking": False, "nested": [1, {"a": None}]},
            "logit_bias": {"50256": -100},
            "metadata": {"é": "\u2028"},
            "user": "u-1",
            "stream": False,
            "response_format": {"type": "text"},
            "stop": ["\n\n"],
        }
        lead = json.dumps({"model": "gpt-4o", **fields}, ensure_ascii=False)[:-1].encode()
        body = lead + b', "messages": ' + json.dumps(talk(12, 300)).encode() + b' , "n" : 1.0}'
        with walking(WINDOW) as walk:
            answer = walk.send(body)
        assert answer.actions == {"summary"}
        sent = answer.main[0].seen.body
        for piece in (b'"temperature":1.0', b'"n":1.0', '{"é": "\u2028"}'.encode()):
            assert piece in sent
        expected, seen = json.loads(body), answer.main[0].body
        assert {**expected, "messages": 0} == {**seen, "messages": 0}
        assert list(expected) == list(seen)

    def test_r126_a_lone_surrogate_keeps_its_value(self) -> None:
        messages = [*talk(12, 300)[:-1], user("cut \ud83d")]
        body = json.dumps({"model": "gpt-4o", "user": "\ud83d", "messages": messages}).encode()
        with walking(WINDOW) as walk:
            answer = walk.send(body)
        assert answer.actions == {"summary"}
        assert answer.main[0].body["user"] == "\ud83d"
        assert answer.forwarded[-1] == messages[-1]


class TestWindows:
    def test_r034_the_operators_window_wins_over_the_catalogue(self) -> None:
        model = {"match": "gpt-4.1", "context_window": 8000, "headroom_tokens": "auto"}
        with walking(8000, models=[model]) as walk:
            answer = walk.ask(talk(16, 300), model="gpt-4.1")
        assert answer.facts["window"] == "8000"
        assert answer.actions == {"summary"}

    def test_r035_an_unknown_model_is_passed_on_and_said_to_be_unknown(self) -> None:
        with walking(None) as walk:
            answer = walk.ask(talk(60, 500), model="nobodys-model")
        assert answer.reply.status_code == 200
        assert answer.facts["window"] == "unknown"
        assert answer.facts["reason"] == "unknown-window"
        assert answer.summaries == ()

    def test_r038_a_large_window_is_not_compacted_early(self) -> None:
        model = {"match": "*", "context_window": 1_000_000}
        with walking(1_000_000, models=[model]) as walk:
            answer = walk.ask(talk(100, 1000))
        assert answer.main[0].tokens > 180_000
        assert answer.actions == set()
        assert answer.trigger == 800_000

    @pytest.mark.parametrize(
        "name", ["openai/gpt-4o", "gpt-4o:free", "gpt-4o-2024-08-06", "openai/gpt-4o:nitro"]
    )
    def test_r039_a_known_model_is_known_by_its_other_names(self, name: str) -> None:
        with walking(None) as walk:
            assert walk.ask([user("hi")], model=name).facts["window"] == "128000"

    def test_r041_a_large_output_reserve_lowers_the_trigger(self) -> None:
        model = {"match": "*", "context_window": 100_000, "headroom_tokens": 1000}
        with walking(100_000, models=[model]) as walk:
            answer = walk.ask(talk(30, 500), max_tokens=85_000)
        assert answer.trigger == 14_000
        assert answer.main[0].tokens < 14_000
        assert answer.main[0].tokens + 85_000 <= 100_000

    @pytest.mark.parametrize(("above", "compacted"), [(-1, False), (0, True), (1, True)])
    def test_r042_the_trigger_is_exact(self, above: int, compacted: bool) -> None:
        messages = talk(7, 300)
        meter = Meter()
        filler = "x"
        body = {"model": "gpt-4o", "messages": [*messages, user(filler)]}
        missing = TRIGGER + above - meter.count_request(body, "gpt-4o")
        body["messages"] = [*messages, user(filler + " x" * missing)]
        assert meter.count_request(body, "gpt-4o") == TRIGGER + above
        sent = json.dumps(body).encode()
        with walking(WINDOW) as walk:
            answer = walk.send(sent)
        assert answer.trigger == TRIGGER
        assert (answer.summaries != ()) is compacted
        assert (answer.main[0].seen.body == sent) is not compacted

    def test_r043_a_provider_that_saw_far_less_is_not_believed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        messages = talk(6, 300)
        cut = json.dumps(completion("ok", usage={"prompt_tokens": 900})).encode()
        with walking(WINDOW) as walk:
            for _ in range(3):
                walk.provider.next(body=cut)
                assert walk.send(body_of(messages)).reply.content == cut
                messages = [*messages, assistant("ok"), user("more")]
            facts = walk.ask([*messages, user(text_of_tokens(600, "much more"))]).facts
        assert int(facts["tokens"]) > 4000
        warned = [r for r in caplog.records if "truncated" in r.getMessage()]
        assert len(warned) == 1


def body_of(messages: Any) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": messages}).encode()


class TestOthersConversations:
    def test_r006_an_earlier_large_conversation_says_nothing_about_a_small_new_one(self) -> None:
        with walking(WINDOW) as walk:
            large = walk.ask(talk(12, 300))
            small = walk.ask([user("one"), assistant("two"), user("three")])
        assert large.actions == {"summary"}
        assert small.actions == set()
        assert small.summaries == ()
        assert int(re.sub(r"\D", "", small.facts["tokens"])) < 1000

    def test_r110_the_clients_usage_is_the_main_calls_alone(self) -> None:
        with walking(WINDOW) as walk:
            answer = walk.ask(talk(12, 300))
        usage = answer.reply.json()["usage"]
        assert usage["prompt_tokens"] == answer.main[0].tokens
        assert int(answer.facts["summary-tokens"]) >= answer.summaries[0].tokens

    def test_r109_asking_for_usage_gives_the_main_calls_alone_in_a_stream(self) -> None:
        with walking(WINDOW) as walk:
            answer = walk.ask(talk(12, 300), stream=True, stream_options={"include_usage": True})
        usage = re.findall(r'"prompt_tokens": (\d+)', answer.reply.text)
        assert usage == [str(answer.main[0].tokens)]


class TestWhenCompactionFails:
    """R095: never worse than without Tidegate."""

    def test_r095_a_request_that_fits_goes_through_and_the_error_is_logged_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        break_compaction(monkeypatch, "compact_if_needed")
        with walking(WINDOW) as walk:
            answer = walk.ask(talk(8, 310))
        assert answer.reply.status_code == 200
        assert answer.main[0].tokens > TRIGGER
        assert answer.facts["reason"] == "summary-failed"
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1

    def test_r095_what_does_not_fit_gets_the_providers_own_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        break_compaction(monkeypatch, "compact_if_needed")
        break_compaction(monkeypatch, "recover")
        with walking(WINDOW) as walk:
            answer = walk.ask(talk(12, 300))
        assert len(answer.main) == 1
        assert answer.reply.status_code == 400
        assert answer.reply.content == answer.main[0].refusal

    def test_r095_without_a_store_the_request_gets_a_digest_for_itself_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def gone(*arguments: Any, **options: Any) -> Any:
            raise StoreUnavailable("gone")

        with walking(WINDOW) as walk:
            for name in ("replacements", "commit", "acquire", "adoptable", "live_leases"):
                monkeypatch.setattr(SqlStore, name, gone)
            answer = walk.ask(talk(12, 300))
        assert answer.reply.status_code == 200
        assert answer.facts["degraded"] == "store"
        assert "digest" in answer.actions
        assert answer.main[0].tokens < WINDOW


def break_compaction(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async def broken(*arguments: Any, **options: Any) -> Any:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Compactor, name, broken)


class TestWaiting:
    def test_r097_a_stream_that_waits_long_gets_comments_and_then_the_stream(self) -> None:
        body = {"model": "gpt-4o", "stream": True, "messages": talk(12, 300)}
        with walking(WINDOW, server={"heartbeat_seconds": 0.2}) as walk:
            walk.provider.next_summary(delay=0.9)
            reply = walk.client.post(CHAT, json=body)
        lines = reply.text.split("\n")
        assert reply.status_code == 200
        assert sum(line.startswith(":") for line in lines) >= 2
        assert lines[-3] == "data: [DONE]"

    def test_r097_a_short_wait_sends_none_and_keeps_the_status(self) -> None:
        body = {"model": "gpt-4o", "stream": True, "messages": talk(12, 300)}
        with walking(WINDOW) as walk:
            walk.provider.next(status=429, body=b'{"error":{"message":"slow down"}}')
            reply = walk.client.post(CHAT, json=body)
        assert reply.status_code == 429
        assert reply.content == b'{"error":{"message":"slow down"}}'

    def test_r096_chunks_reach_the_client_as_they_come_over_budget_too(self) -> None:
        body = {"model": "gpt-4o", "stream": True, "messages": talk(9, 300)}
        with walking(WINDOW) as walk:
            walk.provider.next(pause=0.15)
            delays, events = [], 0
            with walk.client.stream("POST", CHAT, json=body) as reply:
                for chunk in reply.iter_raw():
                    events += chunk.count(b"\n\n")
                    delays.append((events, time.monotonic()))
            sent = walk.provider.sent_at[-events:]
        assert len(walk.provider.summaries) == 1
        # The first event says nothing yet: it is held until the next one is known good.
        late = sorted(came - sent[count - 1] for count, came in delays[1:])
        assert len(late) >= 5
        assert late[len(late) // 2] < 0.1
        assert late[-1] < 0.15

    def test_r100_only_one_turn_pays_for_a_summary(self) -> None:
        messages = [system(), *talk(6, 300)]
        took = []
        with walking(WINDOW) as walk:
            for n in range(20):
                if len(walk.provider.summaries) == 0:
                    walk.provider._summary_scripts.clear()
                    walk.provider.next_summary(delay=1.0)
                started = time.monotonic()
                walk.ask(messages)
                took.append(time.monotonic() - started)
                messages += [assistant(text_of_tokens(60, f"a{n}")), user(f"u{n}")]
        assert len(walk.provider.summaries) == 1
        assert sum(seconds > 0.9 for seconds in took) == 1


class TestSecrets:
    def test_r133_no_log_line_metric_or_stored_byte_holds_a_credential(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        key = "sk-secret-0123456789abcdefghij"
        headers = {"authorization": f"Bearer {key}", "api-key": key, "x-goog-api-key": key}
        caplog.set_level(logging.DEBUG, logger="proxy")
        echo = json.dumps({"error": {"message": f"Incorrect API key provided: {key}"}}).encode()
        with walking(WINDOW, folder=tmp_path) as walk:
            walk.ask(talk(12, 300), headers=headers)
            walk.provider.next(status=401, body=echo)
            assert walk.ask([user("hi")], headers=headers).reply.content == echo
            walk.provider.next(overflow=True)
            walk.ask([user("hi")], headers=headers)
            walk.client.post(f"{CHAT}?key={key}", content=body_of(talk(12, 300)))
            walk.client.post(f"{CHAT}?key={key}", content=b"{")
            exposition = walk.client.get("/metrics").text
        hidden = (key, key[10:20])
        ours = [r for r in caplog.records if r.name.startswith(("proxy", "uvicorn"))]
        lines = "\n".join(record.getMessage() + (record.exc_text or "") for record in ours)
        assert ours
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        for part in hidden:
            assert part not in lines
            assert part not in exposition
            assert part.encode() not in stored


def test_a_refusal_despite_our_count_is_recovered_and_replayed_once() -> None:
    """The provider's window is smaller than believed: the stated limit decides."""
    provider = StrictProvider(4000)
    messages = [system(), *talk(7, 300)]
    with walking(WINDOW, provider=provider) as walk:
        answer = walk.ask(messages)
    assert [call.refusal is None for call in answer.main] == [False, True]
    assert answer.reply.status_code == 200
    assert {"summary", "replay"} <= answer.actions


def test_a_refusal_that_never_ends_is_shown_as_it_first_was() -> None:
    with walking(WINDOW) as walk:
        walk.provider.next(overflow=True)
        walk.provider.next(overflow=True)
        answer = walk.ask(talk(6, 300))
    assert len(answer.main) == 2
    assert answer.reply.content == answer.main[0].refusal


def test_tools_and_calls_are_kept_together_when_over_budget() -> None:
    messages = [*agent_run(15, 300), assistant("Read."), user("Again?")]
    with walking(WINDOW) as walk:
        answer = walk.ask(messages)
    assert answer.actions == {"summary"}
    assert answer.forwarded[-1] == messages[-1]


def test_an_open_call_at_the_end_is_forwarded_as_it_is() -> None:
    messages = [*talk(12, 300), calling("c1"), result("c1", "ok"), calling("c2")]
    with walking(WINDOW) as walk:
        answer = walk.ask(messages)
    assert answer.forwarded[-1] == messages[-1]


def test_what_is_no_chat_is_relayed() -> None:
    with walking(WINDOW) as walk:
        reply = walk.client.post(CHAT, content=b'{"messages": 7}')
        assert isinstance(reply, httpx.Response)
        assert walk.provider.requests[-1].body == b'{"messages": 7}'
