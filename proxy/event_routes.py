"""`GET /tidegate/events`: what happens, live, as server-sent events. The id of each is its order in
the log, so that a listener that was cut off goes on where it was."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from proxy.access import AccessRules, access_of
from proxy.answers import http_date
from proxy.conversation_views import event_json
from proxy.live_events import Listener, LiveEvents
from proxy.paging import place_of
from proxy.store.store import Event

KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 1.0  # how late a stop of the server may be noticed
_OPENING = b": listening\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_LOST = b"event: lost\ndata: {}\n\n"  # read the lists again: some events were dropped


class EventRoutes:
    """The live route."""

    def __init__(self, access: AccessRules, live: LiveEvents) -> None:
        """`access` decides whose events a listener hears."""
        self._access = access
        self._live = live

    def routes(self) -> tuple[BaseRoute, ...]:
        """One."""
        return (Route("/tidegate/events", self._listen, methods=["GET"]),)

    async def _listen(self, request: Request) -> Response:
        scope = request.scope
        access = access_of(self._access, scope["headers"], scope["query_string"])
        conversation = request.query_params.get("conversation")
        listening = self._live.listening(access.tenant, conversation, after=_after(request))
        # Entered here, so that a refusal is an answer and nothing that happens next is missed.
        listener = await listening.__aenter__()

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for chunk in _told(listener):
                    yield chunk
            finally:
                await listening.__aexit__(None, None, None)

        headers = {
            "date": http_date().decode(),
            "cache-control": "no-store",
            "x-accel-buffering": "no",
        }
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


def _after(request: Request) -> int | None:
    last = request.headers.get("last-event-id", "")
    if last.isascii() and last.isdecimal() and len(last) < 20:
        return int(last)
    return place_of(request, "after") if "after" in request.query_params else None


async def _told(listener: Listener) -> AsyncIterator[bytes]:
    yield _OPENING
    silent_seconds = 0.0
    while not server_is_stopping():
        step_seconds = min(LOOK_SECONDS, KEEP_ALIVE_SECONDS)
        try:
            async with asyncio.timeout(step_seconds):
                event = await listener.next()
        except TimeoutError:
            silent_seconds += step_seconds
            if silent_seconds >= KEEP_ALIVE_SECONDS:
                silent_seconds = 0.0
                yield _KEEP_ALIVE
            continue
        silent_seconds = 0.0
        yield _as_sse(event)
        if listener.lost:
            listener.lost = False
            yield _LOST


def server_is_stopping() -> bool:
    """Whether uvicorn was told to stop: it waits for open streams, and these would never end.

    It tells its applications nothing, but its own signal handler is a method of the server.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


def _as_sse(event: Event) -> bytes:
    data = json.dumps(event_json(event), separators=(",", ":"))
    return f"id: {event.order}\nevent: {event.kind.value}\ndata: {data}\n\n".encode()
