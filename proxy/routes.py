"""The HTTP edge: a request's bytes to a chat or to the relay, a reply's bytes back.

A POST whose path ends in `/chat/completions` and whose body can be read as a chat goes to the
pipeline; everything else passes to the provider untouched.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send

from proxy.callers import Callers, Head
from proxy.codings import CodingError, TooLarge, decode_bounded
from proxy.core.errors import InvalidRequest, TidegateError
from proxy.incoming import ClientGone, Incoming, while_connected
from proxy.off_loop import off_loop
from proxy.outcome import Outcome
from proxy.own_work import OwnWork
from proxy.provider import Provider
from proxy.relay import (
    Caller,
    RelayRules,
    Upstream,
    provider_request,
    streamed_request,
    without_content_encoding,
)
from proxy.relay_response import RelayResponse, send_error_event
from proxy.wire import ChatRequest, model_named, read_chat

logger = logging.getLogger(__name__)

# A body up to this size is received whole before it is sent on, so that it can be sent again when a
# pooled connection turns out to be closed. Larger ones stream through.
WHOLE_BODY_BYTES = 1 << 20

# Decoding more than this happens off the event loop.
_DECODE_INLINE_BYTES = 64 * 1024


class ChatPipeline(Protocol):
    """The walk of a chat request."""

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        """The reply, whose beginning is known good, or the provider's own error."""


ReadChat = Callable[[str, bytes, str], Awaitable[ChatRequest | None]]
"""The chat in a tenant's body, None when it is none; the model is the one that the path names."""


async def read_alone(tenant: str, body: bytes, default_model: str) -> ChatRequest | None:
    """Reads each body by itself, whoever sent what before."""
    return await off_loop(len(body), read_chat, body, default_model=default_model)


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """What the operator decided about the edge. `upstream_for` takes a model, None without one;
    `several_upstreams`: which one it is depends on the model, whatever is asked of it."""

    relay: RelayRules
    upstream_for: Callable[[str | None], Upstream]
    several_upstreams: bool = False
    max_body_bytes: int = 64 << 20
    heartbeat_seconds: float = 10


class Edge:
    """Answers every path that is not Tidegate's own."""

    def __init__(
        self,
        rules: EdgeRules,
        provider: Provider,
        pipeline: ChatPipeline | None,
        *,
        read: ReadChat = read_alone,
    ) -> None:
        """Without a pipeline every chat passes untouched."""
        self._read = read
        self._rules = rules
        self._callers = Callers(rules.relay, rules.upstream_for(None))
        self._provider = provider
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; a client that leaves ends whatever is going on for it.

        Raises:
            TidegateError: to be shown to the client, nothing was sent yet.
        """
        head, declared = self._callers.read(scope)
        incoming = Incoming(
            receive,
            max_body_bytes=self._rules.max_body_bytes,
            declared_bytes=int(declared) if declared.isdigit() else None,
        )
        request = _Request(head, declared, incoming, send)
        if not await while_connected(incoming, self._answer(request)):
            logger.info("client_left path=%s", _shown(head.caller.path))

    async def _answer(self, request: "_Request") -> None:
        head = request.head
        try:
            if head.is_chat and not head.caller.mode_off and self._pipeline is not None:
                await self._chat(request, self._pipeline)
            else:
                await self._relay(request)
        except ClientGone:
            logger.info("client_left_while_sending path=%s", _shown(head.caller.path))
        except InvalidRequest as exc:
            if exc.status == 413 and not head.waits:
                await request.incoming.discard_rest()
            raise

    async def _relay(self, request: "_Request") -> None:
        """The request and its reply, neither read, but for a model that chooses the upstream."""
        head, incoming = request.head, request.incoming
        caller = head.caller
        named = self._rules.several_upstreams and _may_name_a_model(head)
        limit = self._rules.max_body_bytes if named else WHOLE_BODY_BYTES
        beginning, whole = await incoming.beginning(up_to_bytes=limit)
        if named:
            plain = await self._decoded(beginning, head.codings) if head.codings else beginning
            caller = await self._routed(head, plain)
        if whole:
            outgoing = provider_request(caller, beginning)
        else:
            rest = incoming.rest(beginning)
            outgoing = streamed_request(caller, rest, declared=request.declared)
        try:
            reply = await self._provider.send(outgoing)
        except TidegateError:
            if incoming.refusal is not None:
                raise incoming.refusal from None
            raise
        await RelayResponse(reply, {}, send=request.send, incoming=incoming).relay()

    async def _chat(self, request: "_Request", pipeline: ChatPipeline) -> None:
        started = time.monotonic()
        head, incoming = request.head, request.incoming
        body = await incoming.whole()
        received_at = time.monotonic()
        plain = await self._decoded(body, head.codings) if head.codings else body
        chat = None
        if plain:
            chat = await self._read(head.caller.tenant, plain, head.deployment)
        if chat is None:
            several = self._rules.several_upstreams
            caller = await self._routed(head, plain) if several else head.caller
            reply = await self._provider.send(provider_request(caller, body))
            await RelayResponse(reply, {}, send=request.send, incoming=incoming).relay()
            return
        caller = without_content_encoding(head.caller) if head.codings else head.caller
        caller = caller.at(self._rules.upstream_for(chat.model))
        line = _ChatLine(chat, caller, started)
        try:
            own_work = OwnWork(
                request.send if chat.stream else None,
                heartbeat_seconds=self._rules.heartbeat_seconds,
                received_at=received_at,
            )
            outcome = await self._walk(request, chat, caller, own_work, pipeline)
            if outcome is None:
                line.ended = "failed_in_stream"
                return
            line.outcome = outcome
            response = RelayResponse(
                outcome.reply, outcome.headers, send=request.send, incoming=incoming
            )
            if own_work.answering:
                await response.relay_as_events()
            else:
                await response.relay()
        except TidegateError as exc:
            line.ended = f"error_{exc.status}"
            raise
        finally:
            line.write()

    async def _walk(
        self,
        request: "_Request",
        chat: ChatRequest,
        caller: Caller,
        own_work: OwnWork,
        pipeline: ChatPipeline,
    ) -> Outcome | None:
        """The pipeline's outcome; None when it failed after heartbeats and the stream says so."""
        try:
            outcome = await pipeline.chat(chat, caller, own_work)
        except TidegateError as exc:
            if not await own_work.stop():
                raise
            await send_error_event(request.send, exc.envelope(), request.incoming)
            return None
        except BaseException:
            own_work.abandon()
            raise
        try:
            await own_work.stop()
        except BaseException:
            await outcome.reply.aclose()
            raise
        return outcome

    async def _routed(self, head: Head, plain: bytes | None) -> Caller:
        """The caller at the upstream that serves the model named in the body or the path."""
        model = await off_loop(len(plain), model_named, plain) if plain else None
        upstream = self._rules.upstream_for(model or head.deployment or None)
        return head.caller.at(upstream)

    async def _decoded(self, body: bytes, codings: tuple[str, ...]) -> bytes | None:
        """The body without its codings, None where they cannot be undone."""
        limit = self._rules.max_body_bytes
        try:
            if len(body) <= _DECODE_INLINE_BYTES:
                return decode_bounded((body,), codings, max_bytes=limit)
            return await asyncio.to_thread(decode_bounded, (body,), codings, max_bytes=limit)
        except CodingError:
            return None
        except TooLarge:
            raise InvalidRequest(
                f"The request body is larger than {limit} bytes when decoded.",
                status=413,
                code="request_too_large",
            ) from None


@dataclass(frozen=True, slots=True)
class _Request:
    head: Head
    declared: bytes
    incoming: Incoming
    send: Send


class _ChatLine:
    """The one log line of a chat, written on every way out."""

    def __init__(self, chat: ChatRequest, caller: Caller, started: float) -> None:
        self.outcome: Outcome | None = None
        self.ended: str | None = None
        self._chat = chat
        self._caller = caller
        self._started = started

    def write(self) -> None:
        """Status 0: nothing was answered."""
        if not logger.isEnabledFor(logging.INFO):
            return
        reply = self.outcome.reply if self.outcome is not None else None
        end = reply.ended if reply is not None else None
        headers = self.outcome.headers if self.outcome is not None else {}
        ended = self.ended or "client_left"
        if end is not None and end.completed:
            ended = "complete"
        elif end is not None and end.broke is not None:
            ended = "broke"
        logger.info(
            "chat model=%s upstream=%s stream=%s status=%d action=%s tokens=%s ended=%s bytes=%d"
            " seconds=%.3f",
            _shown(self._chat.model.encode("utf-8", "replace")),
            self._caller.upstream.name,
            self._chat.stream,
            reply.status if reply is not None else 0,
            headers.get("x-tidegate-action", "none"),
            headers.get("x-tidegate-tokens", "-"),
            ended,
            end.passed_bytes if end is not None else 0,
            time.monotonic() - self._started,
        )


def _may_name_a_model(head: Head) -> bool:
    return head.is_chat or (head.caller.method == "POST" and head.says_json)


def _shown(raw: bytes) -> str:
    """Client-chosen text for a log line: bounded, with nothing that could end the line."""
    return repr(raw[:120].decode("utf-8", "replace"))
