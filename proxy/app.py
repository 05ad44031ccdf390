"""The composition root: the ASGI application, its lifespan, and the place that renders errors."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.answers import INTERNAL_ERROR, http_date, send_error
from proxy.core.errors import InvalidRequest, TidegateError
from proxy.draining import Draining
from proxy.guard import require_loopback
from proxy.provider import Provider, Timeouts
from proxy.relay import RelayRules, Upstream
from proxy.request_ids import begin_request, current_request_id
from proxy.routes import ChatPipeline, Edge, EdgeRules, ReadChat, read_alone
from proxy.tenants import Tenancy

logger = logging.getLogger(__name__)

_OWN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/tidegate"})
_OWN_PREFIX = "/tidegate/"
_SHUTTING_DOWN = TidegateError(
    "Tidegate is shutting down; send the request again.",
    status=503,
    code="shutting_down",
    headers={"retry-after": "1"},
)


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """The values that the edge takes from the settings."""

    upstreams: Sequence[Upstream]
    upstream_for: Callable[[str | None], Upstream] | None = None  # None: always the first
    client_keys: tuple[str, ...] = field(default=(), repr=False)
    tenant_header: str | None = None
    forward_client_headers: bool = False
    bound_to_loopback: bool = True
    max_body_bytes: int = 64 << 20
    heartbeat_seconds: float = 10
    drain_seconds: float = 0
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True)
class Parts:
    """What is opened for the application's lifetime, inside its event loop.

    `better` waits for parts that are to take their place, for a start without everything.
    """

    secret: bytes = field(repr=False)
    pipeline: ChatPipeline | None = None
    routes: tuple[BaseRoute, ...] = ()
    not_ready: Callable[[], Awaitable[str | None]] | None = None
    better: Callable[[], Awaitable["Parts"]] | None = None
    read: ReadChat = read_alone


OpenParts = Callable[[Provider], AbstractAsyncContextManager[Parts]]


def create_app(options: EdgeOptions, open_parts: OpenParts) -> "Tidegate":
    """The application. Nothing is opened before its lifespan starts."""
    return Tidegate(options, open_parts)


class Tidegate:
    """The ASGI application: guard, request id, dispatch, and errors in OpenAI's envelope."""

    def __init__(self, options: EdgeOptions, open_parts: OpenParts) -> None:
        """Holds values only; see `create_app`."""
        self._options = options
        self._open_parts = open_parts
        self._edge: Edge | None = None
        self._not_ready: Callable[[], Awaitable[str | None]] | None = None
        has_key = any(upstream.api_key for upstream in options.upstreams)
        self._guards_all = options.bound_to_loopback and has_key
        self._guards_own = options.bound_to_loopback
        self._draining = Draining(options.drain_seconds)
        self._health = (Route("/healthz", self._healthz), Route("/readyz", self._readyz))
        self._own = Starlette(
            routes=self._health,
            lifespan=self._lifespan,
            exception_handlers={
                TidegateError: _render_own_error,
                HTTPException: _render_http_exception,
                Exception: _render_unexpected,
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One lifespan, request, or (refused) WebSocket."""
        if scope["type"] == "lifespan":
            await self._own(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        begin_request()
        sender = _Sender(send)
        try:
            await self._responsible(scope)(scope, receive, sender)
        except TidegateError as exc:
            _log_own_error(exc)
            await self._render(exc, sender)
        except asyncio.CancelledError:
            # The server cancels what is still under way when the time for a stop is over.
            logger.info("request_cut answer_begun=%s", sender.started)
            await self._render(_SHUTTING_DOWN, sender)
        except Exception:
            logger.exception("request_failed request_id=%s", current_request_id())
            await self._render(INTERNAL_ERROR, sender)

    def _responsible(self, scope: Scope) -> ASGIApp:
        """Who answers; raises what refuses it."""
        path: str = scope["path"]
        own = path in _OWN_PATHS or path.startswith(_OWN_PREFIX)
        if self._guards_all or (self._guards_own and path.startswith("/tidegate")):
            require_loopback(scope["headers"])
        if own:
            return self._own
        if self._edge is None:
            raise TidegateError("Tidegate is not started.", status=503, code="not_ready")
        return self._edge

    async def _render(self, error: TidegateError, sender: "_Sender") -> None:
        """The error as an answer, unless one has begun: then leaving it unfinished says it."""
        if not sender.started:
            await send_error(sender, error, request_id=current_request_id())

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        provider = Provider(self._options.timeouts)
        try:
            async with self._open_parts(provider) as parts:
                self._use(parts, provider)
                improving = asyncio.create_task(self._improve(parts, provider), name="parts")
                try:
                    with self._draining.watching():
                        yield
                finally:
                    improving.cancel()
                    await asyncio.gather(improving, return_exceptions=True)
        finally:
            self._edge = None
            await provider.aclose()

    def _use(self, parts: Parts, provider: Provider) -> None:
        """Serve with these parts from the next request on."""
        self._edge = Edge(self._edge_rules(parts.secret), provider, parts.pipeline, read=parts.read)
        self._not_ready = parts.not_ready
        self._own.router.routes[:] = [*self._health, *parts.routes]

    async def _improve(self, parts: Parts, provider: Provider) -> None:
        while parts.better is not None:
            parts = await parts.better()
            self._use(parts, provider)

    def _edge_rules(self, secret: bytes) -> EdgeRules:
        options = self._options
        first = options.upstreams[0]
        return EdgeRules(
            relay=RelayRules(
                Tenancy(secret, options.client_keys, options.tenant_header),
                options.forward_client_headers,
            ),
            upstream_for=options.upstream_for or (lambda model: first),
            several_upstreams=len(options.upstreams) > 1,
            max_body_bytes=options.max_body_bytes,
            heartbeat_seconds=options.heartbeat_seconds,
        )

    async def _healthz(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        if self._draining.asked:
            return _json({"status": "not ready", "reason": "shutting down"}, status=503)
        reason = await self._not_ready() if self._not_ready is not None else None
        if reason is None:
            return _json({"status": "ready"})
        return _json({"status": "not ready", "reason": reason}, status=503)


class _Sender:
    """An ASGI `send` that remembers whether an answer has begun."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    def __call__(self, message: Message) -> Awaitable[None]:
        self.started = True
        return self._send(message)


def _json(value: Mapping[str, object], *, status: int = 200) -> Response:
    return JSONResponse(value, status_code=status, headers={"date": http_date().decode()})


def _log_own_error(error: TidegateError) -> None:
    """What a 5xx was about; of a client's mistake the code alone, its words may be the client's."""
    if error.status >= 500:
        logger.warning(
            "answered_with_error status=%d code=%s cause=%r", error.status, error.code, str(error)
        )
    else:
        logger.info("answered_with_error status=%d code=%s", error.status, error.code)


async def _render_own_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, TidegateError)
    if exc is not INTERNAL_ERROR:  # which `Tidegate` logs, with what it was
        _log_own_error(exc)
    headers = {
        **exc.headers,
        "date": http_date().decode(),
        "x-tidegate-request-id": current_request_id(),
    }
    return JSONResponse(exc.envelope(), status_code=exc.status, headers=headers)


async def _render_http_exception(request: Request, exc: Exception) -> Response:
    """Starlette's 404 and 405, in the envelope."""
    assert isinstance(exc, HTTPException)
    error = InvalidRequest(
        f"{request.method} {request.url.path}: {exc.detail}.",
        status=exc.status_code,
        code="not_found" if exc.status_code == 404 else "invalid_request",
        headers=exc.headers,
    )
    return await _render_own_error(request, error)


async def _render_unexpected(request: Request, exc: Exception) -> Response:
    """The answer only: Starlette raises the error on, and `Tidegate` logs it."""
    return await _render_own_error(request, INTERNAL_ERROR)
