"""`/compact` from any chat window: answered as an assistant message, and never shown to a model, on
this turn or any later one. Everything else goes on to the pipeline, by the bytes that were sent."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.answers import http_date
from proxy.core.command_answers import Answer, Figures, answer_text, language_of
from proxy.core.commands import (
    Command,
    candidate_answers,
    exchange_positions,
    pending_command,
)
from proxy.core.errors import StoreUnavailable, TidegateError
from proxy.core.manual import Options, Untouched
from proxy.manual import Done, Manual
from proxy.outcome import Outcome
from proxy.own_work import EVENT_STREAM_HEADERS, OwnWork
from proxy.relay import Caller
from proxy.reply import local_reply
from proxy.store.store import Store
from proxy.surfaces import Surfaces
from proxy.turn import facts
from proxy.wire import ChatRequest, encode, without_messages

log = logging.getLogger(__name__)

_ANSWER_OF_CODE = {
    "conversation_busy": Answer.BUSY,
    "history_changed": Answer.CHANGED,
    "compaction_disabled": Answer.DISABLED,
    "invalid_budget": Answer.INVALID_BUDGET,
}
_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Chats(Protocol):
    """Whoever walks a chat that is for the model."""

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        """The reply and the facts about it."""


@dataclass(frozen=True, slots=True)
class _Said:
    answer: Answer
    figures: Figures = field(default_factory=Figures)
    facts: Mapping[str, str] = field(default_factory=dict)


class ChatCommands:
    """Stands before the pipeline and takes out what was said to Tidegate itself."""

    def __init__(
        self,
        chats: Chats,
        *,
        manual: Manual,
        surfaces: Surfaces,
        store: Store,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` only dates an answer."""
        self._chats = chats
        self._manual = manual
        self._surfaces = surfaces
        self._store = store
        self._clock = clock

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        """Answer a command; pass anything else on without the exchanges before it."""
        command = pending_command(request.messages)
        request = await self.without_exchanges(request, caller.tenant)
        if command is None:
            return await self._chats.chat(request, caller, own_work)
        language = language_of(request.history)
        if command is Command.USAGE:
            said = _Said(Answer.USAGE)
        else:
            with own_work.busy():
                said = await self._compacted(request, caller)
        text = answer_text(said.answer, language, said.figures)
        await self._keep(caller.tenant, said.facts.get("x-tidegate-conversation", ""), text)
        return self._outcome(request, text, said.facts)

    async def without_exchanges(self, request: ChatRequest, tenant: str) -> ChatRequest:
        """The request less every command and every answer of ours; itself when there is none."""
        messages = request.messages
        if not request.has_commands or not exchange_positions(messages, lambda position: True):
            return request
        digests = {
            position: self._surfaces.digest_of(messages[position])
            for position in candidate_answers(messages)
        }
        try:
            ours = await self._store.known_answers(tenant, digests.values())
        except StoreUnavailable:
            log.warning("own answers not looked up: store unavailable")
            ours = frozenset()
        taken = exchange_positions(messages, lambda position: digests.get(position) in ours)
        return without_messages(request, taken) if taken else request

    async def _compacted(self, request: ChatRequest, caller: Caller) -> _Said:
        """The compaction, and what is to be said of it; failures are told, too."""
        try:
            done = await self._manual.compact(request, caller, Options())
        except TidegateError as exc:
            log.warning("chat command failed code=%s", exc.code)
            return _Said(
                _ANSWER_OF_CODE.get(exc.code or "", Answer.FAILED), Figures(detail=exc.message)
            )
        return _Said(_answer_of(done), _figures_of(done), facts(done.turn))

    async def _keep(self, tenant: str, conversation: str, text: str) -> None:
        """Stored before it is sent: the next turn may come to another worker."""
        digest = self._surfaces.digest_of({"role": "assistant", "content": text})
        try:
            await self._store.keep_answer(tenant, conversation, digest)
        except StoreUnavailable:
            log.warning("own answer not stored: store unavailable, it is known here alone")

    def _outcome(self, request: ChatRequest, text: str, said: Mapping[str, str]) -> Outcome:
        head = {
            "id": f"chatcmpl-tidegate-{uuid.uuid4().hex}",
            "created": int(self._clock()),
            "model": request.model,
        }
        date = (b"date", http_date())
        if not request.stream:
            body = encode(_completion(head, text))
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                date,
            ]
            return Outcome(local_reply(200, headers, body), said)
        options = request.params.get("stream_options")
        usage = isinstance(options, Mapping) and options.get("include_usage") is True
        chunks = _chunks(head, text, usage=usage)
        return Outcome(local_reply(200, [date, *EVENT_STREAM_HEADERS], *chunks), said)


def _answer_of(done: Done) -> Answer:
    reason = done.result.reason
    if reason is None:
        return Answer.COMPACTED
    assert reason is Untouched.NOT_ENOUGH_MESSAGES, "a command is always forced"
    return Answer.NOT_ENOUGH


def _figures_of(done: Done) -> Figures:
    result = done.result
    return Figures(
        removed=result.removed,
        preserved=result.preserved,
        tokens_before=result.tokens_before,
        tokens_after=result.total_tokens,
        window_tokens=done.turn.budget.window_tokens,
    )


def _completion(head: Mapping[str, Any], text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": _NO_USAGE,  # no model was asked for this answer
    }


def _chunks(head: Mapping[str, Any], text: str, *, usage: bool) -> list[bytes]:
    """The events of the answer as a stream; with usage the choices of the last one are empty."""
    common: dict[str, Any] = {**head, "object": "chat.completion.chunk"}
    if usage:
        common["usage"] = None
    deltas: tuple[tuple[dict[str, str], str | None], ...] = (
        ({"role": "assistant", "content": ""}, None),
        ({"content": text}, None),
        ({}, "stop"),
    )
    events: list[dict[str, Any]] = [
        {
            **common,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }
        for delta, finish in deltas
    ]
    if usage:
        events.append({**common, "choices": [], "usage": _NO_USAGE})
    return [*(b"data: " + encode(event) + b"\n\n" for event in events), b"data: [DONE]\n\n"]
