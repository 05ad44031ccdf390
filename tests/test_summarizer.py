"""The chain of summary calls: which are made, in what order, within which bounds."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.breaker import Breaker
from proxy.core.compaction import Reason
from proxy.core.errors import ProviderError, ProviderTimeout, ProviderUnreachable
from proxy.core.messages import Message, head_length
from proxy.core.summary_tasks import (
    Candidate,
    SummaryCall,
    SummaryMode,
    SummaryOutcome,
    SummaryReply,
    SummaryTask,
)
from proxy.summarizer import Summarizer, load_prompts

CONVERSATIONS = Path(__file__).parents[2] / "shared" / "conversations"
Answer = SummaryReply | ProviderError | Callable[[SummaryCall], SummaryReply]


def tokens(text: str) -> int:
    return (len(text) + 3) // 4


def said(text: Any, *, finish: str = "stop", status: int = 200, **message: Any) -> SummaryReply:
    body = {
        "choices": [{"message": {"content": text, **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7},
    }
    return SummaryReply(status, json.dumps(body).encode())


def error(status: int, message: str, code: str | None = None) -> SummaryReply:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return SummaryReply(status, json.dumps(body).encode())


OVERFLOW = error(
    400,
    "This model's maximum context length is 2000 tokens. However, your messages resulted in 2500 "
    "tokens. Please reduce the length of the messages.",
    "context_length_exceeded",
)


class Provider:
    """Answers calls from a script, the last answer for ever, and keeps them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.calls: list[SummaryCall] = []

    async def ask(self, call: SummaryCall) -> SummaryReply:
        self.calls.append(call)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ProviderError):
            raise answer
        return answer if isinstance(answer, SummaryReply) else answer(call)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(call.body) for call in self.calls]

    @property
    def modes(self) -> list[str]:
        return [call.mode.value for call in self.calls]


OWN = Candidate("u", "gpt-4o", 8000, tokens, own=True, same_upstream=True)
OTHER = Candidate("v", "mini", 8000, tokens)


def task_over(messages: list[Message], *candidates: Candidate, **options: Any) -> SummaryTask:
    raw = [json.dumps(message).encode() for message in messages]
    price = sum(len(item) for item in raw) // 4
    values: dict[str, Any] = {
        "tenant": "t",
        "candidates": candidates or (OWN,),
        "fields": {"model": b'"gpt-4o"', "messages": b"", "max_tokens": b"200000", "n": b"2"},
        "raw_messages": [b'{"role":"system","content":"head"}', *raw],
        "messages": messages,
        "replay_tokens": price + 10,
        "range_tokens": price,
        "cap_tokens": 500,
        **options,
    }
    return SummaryTask(**values)


def chat(turns: int = 20, size: int = 100) -> list[Message]:
    return [
        {"role": role, "content": f"{role} {turn} " + "word " * (size // 5)}
        for turn in range(turns)
        for role in ("user", "assistant")
    ]


async def run(task: SummaryTask, provider: Provider) -> SummaryOutcome:
    return await Summarizer(breaker=Breaker(lambda: 0.0)).summarise(task, provider.ask)


async def test_r061_a_replay_is_one_call_with_its_own_cap() -> None:
    """R061: the cap is bounded and independent of the client's."""
    provider = Provider(said("The summary"))
    outcome = await run(task_over(chat()), provider)
    assert (outcome.text, outcome.reason, outcome.mode) == ("The summary", None, SummaryMode.REPLAY)
    assert outcome.candidate is OWN
    (body,) = provider.bodies
    assert set(body) == {"model", "messages", "max_tokens"}
    assert body["max_tokens"] == 500
    assert len(body["messages"]) == 42
    assert body["messages"][0] == {"role": "system", "content": "head"}
    (record,) = outcome.calls
    assert (record.reported_prompt_tokens, record.completion_tokens) == (11, 7)
    assert outcome.failed_calls == 0


async def test_the_instruction_is_the_last_thing_asked_in_both_ways() -> None:
    prompts = load_prompts()
    sentence = prompts.instruction.split(";")[0]
    for task in (task_over(chat()), task_over(chat(), OTHER, earlier_summary="Before.")):
        provider = Provider(said("s"))
        await run(task, provider)
        last = provider.bodies[0]["messages"][-1]
        assert last["role"] == "user"
        assert sentence in last["content"]
        assert last["content"].endswith(prompts.instruction.strip()[-30:])
        assert "{" not in last["content"].rsplit("=====", 1)[-1]


async def test_another_model_reads_a_transcript_and_the_earlier_summary() -> None:
    provider = Provider(said("s"))
    outcome = await run(task_over(chat(), OTHER, earlier_summary="What was before."), provider)
    assert outcome.mode is SummaryMode.TRANSCRIPT
    (body,) = provider.bodies
    assert set(body) == {"model", "messages", "max_tokens"}
    assert body["model"] == "mini"
    (message,) = body["messages"]
    assert "SUMMARY OF WHAT CAME BEFORE =====\nWhat was before.\n" in message["content"]
    assert "===== ASSISTANT =====\nassistant 19 " in message["content"]


async def test_a_failed_replay_is_followed_by_one_transcript() -> None:
    provider = Provider(error(500, "oops"), said("s"))
    outcome = await run(task_over(chat()), provider)
    assert outcome.text == "s"
    assert provider.modes == ["replay", "transcript"]
    assert [call.failure for call in outcome.calls] == ["status-500", None]


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_after_a_refused_credential_the_next_summariser_is_asked(status: int) -> None:
    provider = Provider(error(status, "no"), said("s"))
    outcome = await run(task_over(chat(), OWN, OTHER), provider)
    assert [(call.upstream, call.mode.value) for call in provider.calls] == [
        ("u", "replay"),
        ("v", "transcript"),
    ]
    assert outcome.candidate is OTHER


async def test_two_failed_calls_are_the_most() -> None:
    provider = Provider(error(500, "oops"))
    outcome = await run(task_over(chat(), OWN, OTHER), provider)
    assert (outcome.text, outcome.reason) == (None, Reason.SUMMARY_FAILED)
    assert len(provider.calls) == outcome.failed_calls == 2
    assert (await run(task_over(chat(), failures_allowed=0), provider)).calls == ()
    assert len(provider.calls) == 2


@pytest.mark.parametrize(
    "answer",
    [
        said(""),
        said("   "),
        said("<think>only</think>"),
        said('<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        said("cut", finish="length"),
        said("x", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": ""}}]),
        said("long " * 5000),
        SummaryReply(200, b'{"object":"chat.completion"}'),
        SummaryReply(200, b"<html>"),
        SummaryReply(404, b""),
    ],
)
async def test_r074_an_unusable_answer_is_not_asked_again_the_same_way(
    answer: SummaryReply,
) -> None:
    """R063, R065, R073, R074: the next call asks another way, then none is made."""
    provider = Provider(answer)
    outcome = await run(task_over(chat(), cap_tokens=10**6), provider)
    assert outcome.text is None
    assert provider.modes == ["replay", "transcript"]
    assert outcome.failed_calls == 2
    assert outcome.worth_remembering == (answer.status == 200)


async def test_r068_no_connection_is_a_failure_like_others() -> None:
    provider = Provider(ProviderUnreachable("no"), ProviderTimeout("late"))
    outcome = await run(task_over(chat()), provider)
    assert [call.failure for call in outcome.calls] == ["upstream_unreachable", "upstream_timeout"]
    assert outcome.reason is Reason.SUMMARY_TIMEOUT
    assert not outcome.worth_remembering


async def test_r067_a_call_that_never_answers_ends_at_the_deadline() -> None:
    """R067: and is cancelled, not left running."""
    cancelled = asyncio.Event()

    async def never(call: SummaryCall) -> SummaryReply:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    summarizer = Summarizer(breaker=Breaker(lambda: 0.0))
    async with asyncio.timeout(5):
        outcome = await summarizer.summarise(
            task_over(chat(), OWN, OTHER, timeout_seconds=0.05), never
        )
    assert outcome.reason is Reason.SUMMARY_TIMEOUT
    assert [call.failure for call in outcome.calls] == ["timeout"]
    assert cancelled.is_set()


async def test_a_fold_has_one_deadline_for_all_its_parts() -> None:
    now = 0.0

    def slow(call: SummaryCall) -> SummaryReply:
        nonlocal now
        now += 50
        return said("part")

    provider = Provider(slow)
    summarizer = Summarizer(breaker=Breaker(lambda: now), clock=lambda: now)
    task = task_over(chat(100, 200), replace(OWN, context_window=3000))
    outcome = await summarizer.summarise(task, provider.ask)
    assert (outcome.text, outcome.reason) == (None, Reason.SUMMARY_TIMEOUT)
    assert [call.timeout_seconds for call in provider.calls] == [120, 70, 20]


async def test_cancelling_the_task_cancels_the_call_and_blames_nobody() -> None:
    waiting = asyncio.Event()
    breaker = Breaker(lambda: 0.0)

    async def never(call: SummaryCall) -> SummaryReply:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    for _ in range(4):
        waiting.clear()
        task = asyncio.ensure_future(
            Summarizer(breaker=breaker).summarise(task_over(chat()), never)
        )
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert breaker.state("u", "gpt-4o") == "closed"


async def test_an_open_breaker_asks_nobody() -> None:
    summarizer = Summarizer(breaker=Breaker(lambda: 0.0))
    provider = Provider(error(503, "down"))
    for _ in range(2):
        await summarizer.summarise(task_over(chat()), provider.ask)
    calls = len(provider.calls)
    outcome = await summarizer.summarise(task_over(chat()), provider.ask)
    assert (outcome.reason, outcome.calls) == (Reason.BREAKER_OPEN, ())
    assert len(provider.calls) == calls
    provider.answers = [said("s")]
    outcome = await summarizer.summarise(task_over(chat(), OWN, OTHER), provider.ask)
    assert outcome.candidate is OTHER


async def test_r060_the_cap_is_sent_under_the_other_name_once_when_its_name_is_refused() -> None:
    """R060: and the name that a model takes is remembered."""
    summarizer = Summarizer(breaker=Breaker(lambda: 0.0))
    refusal = error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.")
    provider = Provider(refusal, said("s"), said("t"))
    outcome = await summarizer.summarise(task_over(chat()), provider.ask)
    assert outcome.text == "s"
    assert provider.modes == ["replay", "replay"]
    assert "max_tokens" not in provider.bodies[1]
    assert provider.bodies[1]["max_completion_tokens"] == 500
    assert (await summarizer.summarise(task_over(chat()), provider.ask)).failed_calls == 0
    assert "max_completion_tokens" in provider.bodies[2]


async def test_reasoning_that_ate_the_cap_gets_a_larger_one_once() -> None:
    provider = Provider(said("<think>long", finish="length"), said("word " * 3000))
    outcome = await run(task_over(chat(40, 200)), provider)
    assert provider.modes == ["replay", "replay"]
    assert [body["max_tokens"] for body in provider.bodies] == [500, 2000]
    assert outcome.text is not None
    assert outcome.was_cut
    assert tokens(outcome.text) <= 500


async def test_an_output_limit_lowers_the_cap() -> None:
    refusal = error(
        400, "max_tokens is too large: 500. This model supports at most 256 completion tokens"
    )
    provider = Provider(refusal, said("s"))
    assert (await run(task_over(chat()), provider)).text == "s"
    assert [body["max_tokens"] for body in provider.bodies] == [500, 250]


def honest(window: int) -> Callable[[SummaryCall], SummaryReply]:
    """Refuses what is over its window, counting like `tokens`, and quotes what it summarised."""

    def answer(call: SummaryCall) -> SummaryReply:
        body = json.loads(call.body)
        size = sum(tokens(str(message["content"])) + 4 for message in body["messages"])
        assert size + body["max_tokens"] <= window, "the call is over its window"
        return said(f"summary of {size}")

    return answer


async def test_a_range_larger_than_the_window_is_folded_within_it() -> None:
    messages = [*chat(100, 200), {"role": "user", "content": "MARKER " + "long line\n" * 900}]
    provider = Provider(honest(3000))
    outcome = await run(task_over(messages, replace(OWN, context_window=3000)), provider)
    assert outcome.text is not None
    assert outcome.failed_calls == 0
    assert 1 < len(provider.calls) <= 16
    assert set(provider.modes) == {"transcript"}
    prompts = [body["messages"][0]["content"] for body in provider.bodies]
    assert "SUMMARY OF WHAT CAME BEFORE" not in prompts[0]
    assert all("SUMMARY OF WHAT CAME BEFORE =====\nsummary of " in p for p in prompts[1:])
    told = "".join(prompts)
    assert all(str(message["content"])[:20] in told for message in messages)
    assert told.count("long line") == 900


async def test_an_overflow_of_the_call_itself_makes_smaller_parts() -> None:
    """The stated limit is what the parts are cut to, and is there for others to learn."""
    provider = Provider(OVERFLOW, honest(2000))
    messages = chat(40, 200)
    outcome = await run(task_over(messages, replace(OTHER, context_window=None)), provider)
    assert outcome.text is not None
    assert outcome.failed_calls == 1
    assert outcome.calls[0].refusal is not None
    assert outcome.calls[0].refusal.window_tokens == 2000
    assert len(provider.calls) > 2


async def test_an_overflow_of_a_replay_is_followed_by_a_folded_transcript() -> None:
    provider = Provider(OVERFLOW, honest(2000))
    outcome = await run(task_over(chat(40, 200), replace(OWN, context_window=None)), provider)
    assert outcome.text is not None
    assert provider.modes[0] == "replay"
    assert set(provider.modes[1:]) == {"transcript"}


@pytest.mark.parametrize("window", [100, 900])
async def test_a_window_too_small_for_anything_makes_no_call(window: int) -> None:
    provider = Provider(said("s"))
    outcome = await run(task_over(chat(100, 500), replace(OWN, context_window=window)), provider)
    assert (outcome.text, outcome.calls) == (None, ())
    assert outcome.error == "summary-failed"


async def test_a_forced_mode_is_the_only_one() -> None:
    for mode in (SummaryMode.REPLAY, SummaryMode.TRANSCRIPT):
        provider = Provider(error(500, "oops"))
        await run(task_over(chat(), mode=mode), provider)
        assert set(provider.modes) == {mode.value}


async def test_r072_images_are_replayed_as_last_sent_and_never_told() -> None:
    """R072."""
    url = "data:image/png;base64," + "iVBORw0KGgo" * 100_000
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    provider = Provider(error(500, "oops"), said("s"))
    await run(task_over([message, *chat()], replay_tokens=3000), provider)
    replayed, told = (call.body for call in provider.calls)
    assert json.dumps(message).encode() in replayed
    assert len(told) < 20_000
    assert b"data:" not in told


def test_r058_r078_the_prompt_asks_for_every_section_in_the_user_s_language() -> None:
    """R058, R078."""
    text = load_prompts().instruction
    for asked in ("own words", "Decisions", "error messages", "Done", "Not done", "In progress"):
        assert asked in text
    for asked in ("Next step", "preferences", "(none)", "headings included", "Do not translate"):
        assert asked in text
    assert text.startswith("This message asks for a summary of the conversation;")
    assert "are data" not in text
    for name in ("transcript", "merge"):
        assert "as data" in getattr(load_prompts(), name)


@pytest.mark.skipif(not CONVERSATIONS.is_dir(), reason="the real conversations are not here")
@pytest.mark.parametrize("share", [3, 6])
async def test_real_conversations_are_summarised_within_the_window(share: int) -> None:
    """Every call fits; every user text is read by some call."""
    for path in sorted(CONVERSATIONS.glob("*.json")):
        request = json.loads(path.read_text())["request"]
        history = request["messages"][head_length(request["messages"]) :]
        task = task_over(history, OTHER)
        window = max(task.range_tokens // share, 4000)
        provider = Provider(honest(window))
        outcome = await run(
            replace(task, candidates=[replace(OTHER, context_window=window)], range_tokens=10**6),
            provider,
        )
        assert outcome.text is not None, path.name
        assert outcome.failed_calls == 0
        assert len(provider.calls) <= 16
