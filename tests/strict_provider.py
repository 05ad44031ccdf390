"""A provider with a hard window and OpenAI's rules: it counts like a tokeniser, refuses over its
window, and refuses what breaks pairing or roles, unless the client itself sent it broken so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tiktoken

from proxy.summarizer import load_prompts
from proxy.vocabulary import encoding_for
from tests.fake_provider import (
    FakeProvider,
    Scripted,
    Seen,
    completion,
    overflow_body,
    stream_events,
)
from tests.validator import Message, violations

TOKENS_PER_MESSAGE = 4
TOKENS_PER_CALL = 8
TOKENS_PER_IMAGE = 765

# The first sentence of the instruction that ends every summary call.
_ASKS = load_prompts().instruction.split(";")[0]


def is_summary(body: Any) -> bool:
    """Whether a request asks for a summary."""
    messages = body.get("messages") if isinstance(body, Mapping) else None
    last = messages[-1] if isinstance(messages, list) and messages else {}
    return _ASKS in str(last.get("content"))


def is_replay(body: Any) -> bool:
    """Whether a summary call sends the conversation itself, not a transcript of it."""
    return is_summary(body) and len(body["messages"]) > 1


def request_tokens(body: Mapping[str, Any]) -> int:
    """Message text, reasoning, calls and tools, 4 more a message, 8 a call, 765 an image."""
    tools = body.get("tools") or body.get("functions")
    return messages_tokens(body.get("messages") or ()) + (
        _text_tokens(_json(tools)) if tools else 0
    )


def messages_tokens(messages: Sequence[Message]) -> int:
    """The same for messages alone."""
    return sum(message_tokens(_json(message)) for message in messages)


@lru_cache(maxsize=100_000)
def message_tokens(raw: str) -> int:
    """The tokens of one message, given as JSON."""
    message = json.loads(raw)
    total = TOKENS_PER_MESSAGE + _content_tokens(message.get("content"))
    total += sum(_text_tokens(message.get(name)) for name in ("reasoning_content", "reasoning"))
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls += [message["function_call"]] if message.get("function_call") else []
    for call in calls:
        total += TOKENS_PER_CALL + _text_tokens(call.get("name"))
        total += _text_tokens(call.get("arguments"))
    return total


def _content_tokens(content: Any) -> int:
    if not isinstance(content, list):
        return _text_tokens(content)
    images = sum("image" in str(part.get("type")) for part in content)
    return images * TOKENS_PER_IMAGE + sum(_text_tokens(part.get("text")) for part in content)


def _text_tokens(text: Any) -> int:
    if not isinstance(text, str):
        return 0
    return len(_encoding().encode(text.encode("utf-8", "replace").decode(), disallowed_special=()))


def _encoding() -> tiktoken.Encoding:
    return encoding_for("gpt-4o")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Call:
    """One chat request as it arrived, weighed, and what was answered when it was refused."""

    seen: Seen
    body: Any
    tokens: int
    output_cap: int
    summary: bool
    refusal: bytes | None
    faults: tuple[str, ...]


class StrictProvider(FakeProvider):
    """`window` holds for prompt and output cap together. `client` is the request now played, for
    comparison: set it before each turn, or leave it None to have nothing compared."""

    def __init__(self, window: int | None = None, **options: Any) -> None:
        """Answers and summaries as for the fake provider."""
        options.setdefault("is_summary", is_summary)
        super().__init__(window=window, **options)
        self.client: Sequence[Message] | None = None
        self.calls: list[Call] = []

    @property
    def main_calls(self) -> list[Call]:
        """Every call that was not for a summary."""
        return [call for call in self.calls if not call.summary]

    @property
    def summary_calls(self) -> list[Call]:
        """Every call for a summary."""
        return [call for call in self.calls if call.summary]

    async def _chat(self, send: Any, seen: Seen, script: Scripted, chat: Any) -> None:
        tokens, summary = request_tokens(chat), self.is_summary(chat)
        faults = tuple(self._faults(chat, summary))
        output_cap = chat.get("max_completion_tokens") or chat.get("max_tokens") or 0
        refusal = None
        if faults:
            refusal = _invalid("; ".join(faults))
        elif script.overflow or (self.window is not None and tokens + output_cap > self.window):
            refusal = overflow_body(self.window or tokens - 1, tokens)
        self.calls.append(Call(seen, chat, tokens, output_cap, summary, refusal, faults))
        if refusal is None:
            await self._answered(send, seen, script, chat, tokens)
            return
        script.status = 400
        await self._send(send, seen, script, [refusal], "application/json")

    async def _answered(
        self, send: Any, seen: Seen, script: Scripted, chat: Any, tokens: int
    ) -> None:
        text = self.summary(chat) if self.is_summary(chat) else self.answer(chat)
        output = _text_tokens(text)
        usage = {"prompt_tokens": tokens, "completion_tokens": output}
        usage["total_tokens"] = tokens + output
        if chat.get("stream"):
            asked = (chat.get("stream_options") or {}).get("include_usage")
            events = stream_events(text, usage=usage if asked else None)
            await self._send(send, seen, script, events, "text/event-stream")
            return
        whole = json.dumps(completion(text, usage=usage)).encode()
        await self._send(send, seen, script, [whole], "application/json")

    def _faults(self, chat: Any, summary: bool) -> list[str]:
        if self.client is None or (summary and not is_replay(chat)):
            return []
        return violations(self.client, chat["messages"])


def _invalid(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": None}
    return json.dumps({"error": error}).encode()
