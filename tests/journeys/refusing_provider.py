"""A strict provider that refuses in the words, status, envelope and coding that a test asks for."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fake_provider import Scripted, Seen, completion, overflow_body, stream_event
from tests.strict_provider import Call, StrictProvider, request_tokens

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Refused:
    """One way of saying that a prompt does not fit."""

    status: int
    chunks: Sequence[bytes]
    kind: str = JSON
    coding: str | None = None
    headers: Sequence[tuple[bytes, bytes]] = ((b"x-request-id", b"req-1"), (b"x-vendor", b"a, b"))

    @property
    def body(self) -> bytes:
        """What a client reads."""
        return b"".join(self.chunks)


Refuse = Callable[[int, int], Refused]


def as_400(window: int, prompt: int) -> Refused:
    """OpenAI's."""
    return Refused(400, [overflow_body(window, prompt)])


def as_gzip(window: int, prompt: int) -> Refused:
    """The same, compressed."""
    return Refused(400, [overflow_body(window, prompt)], coding="gzip")


def as_413(window: int, prompt: int) -> Refused:
    """GitHub Models'."""
    message = f"Request body too large for gpt-4o model. Max size: {window} tokens."
    error = {"code": "tokens_limit_reached", "message": message, "details": message}
    return Refused(413, [json.dumps({"error": error}).encode()])


def in_200(window: int, prompt: int) -> Refused:
    """An error as the body of a success."""
    return Refused(200, [overflow_body(window, prompt)])


def in_gzip_200(window: int, prompt: int) -> Refused:
    """The same, compressed."""
    return Refused(200, [overflow_body(window, prompt)], coding="gzip")


def as_first_event(window: int, prompt: int) -> Refused:
    """A stream whose first event is the error, after a comment."""
    event = b"data: " + overflow_body(window, prompt) + b"\n\n"
    return Refused(200, [b": ping\n\n", event, b"data: [DONE]\n\n"], EVENTS)


def as_error_event(window: int, prompt: int) -> Refused:
    """A stream with an event of that name, after a chunk that holds only the role."""
    role = stream_event({"role": "assistant", "content": ""})
    event = b"event: error\ndata: " + overflow_body(window, prompt) + b"\n\n"
    return Refused(200, [role, event], EVENTS)


def as_gzip_event(window: int, prompt: int) -> Refused:
    """A compressed stream whose first event is the error."""
    event = b"data: " + overflow_body(window, prompt) + b"\n\n"
    return Refused(200, [event, b"data: [DONE]\n\n"], EVENTS, "gzip")


def as_input_limit(window: int, prompt: int) -> Refused:
    """A limit on the input alone, as an event."""
    message = (
        f"Input tokens exceed the configured limit of {window} tokens. Your messages resulted in"
        f" {prompt} tokens. Please reduce the length of the messages."
    )
    error = {"message": message, "type": "invalid_request_error", "param": "messages"}
    body = json.dumps({"error": {**error, "code": "context_length_exceeded"}}).encode()
    return Refused(200, [b"data: " + body + b"\n\n"], EVENTS)


def in_words(status: int, body: Any) -> Refuse:
    """Always the same body, numbers filled in: `$W` the window, `$P` the prompt, `$T` both."""
    raw = body if isinstance(body, str) else json.dumps(body)

    def refuse(window: int, prompt: int) -> Refused:
        said = raw.replace("$W", str(window)).replace("$P", str(prompt))
        return Refused(status, [said.replace("$T", str(prompt + 32)).encode()])

    return refuse


def finished(reason: str, usage: Mapping[str, int] | None, content: str = "") -> Refuse:
    """A whole answer that stopped for `reason` with `content`."""

    def refuse(window: int, prompt: int) -> Refused:
        value = completion(content, usage=usage)
        value["choices"][0]["finish_reason"] = reason
        return Refused(200, [json.dumps(value).encode()])

    return refuse


def finished_stream(reason: str, usage: Mapping[str, int] | None, content: str = "") -> Refuse:
    """The same as a stream, usage in an event of its own."""

    def refuse(window: int, prompt: int) -> Refused:
        events = [stream_event({"role": "assistant", "content": content})]
        events.append(stream_event({}, finish=reason))
        if usage is not None:
            value = {"id": "1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
            events.append(b"data: " + json.dumps(value).encode() + b"\n\n")
        return Refused(200, [*events, b"data: [DONE]\n\n"], EVENTS)

    return refuse


class RefusingProvider(StrictProvider):
    """Main calls over the window are refused as `refuse` says, `always`: whatever their size.

    `first` of them at most; `window` also bounds summary calls. Nothing but chats is served here,
    so that no listing takes what was scripted for a chat.
    """

    def __init__(
        self,
        window: int | None,
        refuse: Refuse = as_400,
        *,
        always: bool = False,
        first: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(window, **options)
        self.refuse = refuse
        self.always = always
        self.left = first
        self.refused: list[Refused] = []

    async def _answer(self, seen: Seen, send: Any) -> None:
        if seen.path.endswith("/chat/completions"):
            await super()._answer(seen, send)
            return
        await self._send(send, seen, Scripted(status=404), [b"{}"], JSON)

    async def _chat(self, send: Any, seen: Seen, script: Scripted, chat: Any) -> None:
        tokens, summary = request_tokens(chat), self.is_summary(chat)
        cap = chat.get("max_completion_tokens") or chat.get("max_tokens") or 0
        over = self.always or (self.window is not None and tokens + cap > self.window)
        if summary or not over or self.left == 0:
            await super()._chat(send, seen, script, chat)
            return
        if self.left is not None:
            self.left -= 1
        refused = self.refuse(self.window or tokens - 1, tokens)
        self.refused.append(refused)
        self.calls.append(Call(seen, chat, tokens, cap, False, refused.body, ()))
        said = Scripted(status=refused.status, headers=refused.headers, coding=refused.coding)
        await self._send(send, seen, said, refused.chunks, refused.kind)
