"""The two calls that compact by hand: a history as sent, and a conversation from the log. A caller
that leaves detaches; what it alone waited for is cancelled."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from proxy.access import Access, AccessRules, access_of
from proxy.chat_commands import ChatCommands
from proxy.codings import CodingError, TooLarge, codings_of, decode_bounded
from proxy.core.errors import InvalidRequest
from proxy.core.manual import options_as_json, read_options
from proxy.incoming import Incoming, while_connected
from proxy.logged import Logged
from proxy.management import answer
from proxy.manual import Done, Manual
from proxy.off_loop import off_loop
from proxy.relay import Caller, RelayRules, Upstream, read_caller
from proxy.store.store import Conversation, Store
from proxy.tenants import Headers, identify, without_credentials
from proxy.turn import facts
from proxy.wire import ChatRequest, decode, read_chat, without_field

OPTIONS_FIELD = "tidegate"
_CHAT_PATH = b"/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class CompactRules:
    """What the operator decided that these calls must know."""

    access: AccessRules
    relay: RelayRules
    upstream_for: Callable[[str | None], Upstream]
    upstreams: Mapping[str, Upstream]
    max_body_bytes: int


class CompactRoutes:
    """`POST /tidegate/compact` and `POST /tidegate/conversations/{id}/compact`."""

    def __init__(
        self,
        rules: CompactRules,
        *,
        manual: Manual,
        commands: ChatCommands,
        logged: Logged,
        store: Store,
    ) -> None:
        """`commands` takes earlier `/compact` exchanges out of a history, as in a chat."""
        self._rules = rules
        self._manual = manual
        self._commands = commands
        self._logged = logged
        self._store = store

    def routes(self) -> tuple[BaseRoute, ...]:
        """Both."""
        return (
            Route("/tidegate/compact", _Call(self._rules, self._sent), methods=["POST"]),
            Route(
                "/tidegate/conversations/{id:path}/compact",
                _Call(self._rules, self._known),
                methods=["POST"],
            ),
        )

    async def _sent(self, request: Request, access: Access, body: bytes) -> Response:
        """Compact the history in the body."""
        chat = await off_loop(len(body), read_chat, body)
        if chat is None or not chat.model:
            raise InvalidRequest(
                'Send a chat body: a JSON object with "model" and "messages", and options under '
                f'"{OPTIONS_FIELD}".'
            )
        options = read_options(chat.params.get(OPTIONS_FIELD))
        if OPTIONS_FIELD in chat.fields:
            chat = without_field(chat, OPTIONS_FIELD)
        caller = self._caller(request, access, self._rules.upstream_for(chat.model))
        chat = await self._commands.without_exchanges(chat, caller.tenant)
        done = await self._manual.compact(chat, caller, options)
        return _answered(done, with_messages=options.returns_messages)

    async def _known(self, request: Request, access: Access, body: bytes) -> Response:
        """Compact a conversation as the log has it, or have it done by its next chat."""
        options = read_options(_options_of(body))
        # The operator may name a tenant: ids are theirs alone.
        tenant = access.tenant or request.query_params.get("tenant")
        conversation = await self._logged.conversation(tenant, request.path_params["id"])
        caller = self._caller_for(request, access, conversation)
        history = await self._logged.history(conversation)
        if not await self._can_pay(access, caller, history.request):
            await self._store.schedule(
                conversation.tenant, conversation.id, options_as_json(options)
            )
            said = {"conversation_id": conversation.id, "compacted": False, "reason": "scheduled"}
            return answer(said, status=202)
        done = await self._manual.compact(history.request, caller, options, chain=history.chain)
        return _answered(done, with_messages=options.returns_messages)

    def _caller(self, request: Request, access: Access, upstream: Upstream) -> Caller:
        """As in a chat; the admin key is for Tidegate alone and goes nowhere."""
        headers: Headers = request.scope["headers"]
        query: bytes = request.scope["query_string"]
        if access.is_operator:
            headers, query = without_credentials(headers, query)
        return read_caller(
            "POST", _CHAT_PATH, query, headers, rules=self._rules.relay, upstream=upstream
        )

    def _caller_for(self, request: Request, access: Access, conversation: Conversation) -> Caller:
        upstream = self._rules.upstreams.get(conversation.upstream)
        if upstream is None:
            raise InvalidRequest(
                f"The upstream {conversation.upstream!r} of this conversation is not configured.",
                status=422,
            )
        headers, query = without_credentials(
            request.scope["headers"], request.scope["query_string"]
        )
        if not access.is_operator:
            sent = self._caller(request, access, upstream)
            headers, query = sent.headers, sent.query
        return Caller(
            tenant=conversation.tenant,
            upstream=upstream,
            method="POST",
            path=_CHAT_PATH,
            query=query,
            headers=tuple(headers),
            credential=not access.is_operator,
            conversation=conversation.id,
            labels=conversation.labels,
        )

    async def _can_pay(self, access: Access, caller: Caller, chat: ChatRequest) -> bool:
        """Whether some summariser can be asked with what is at hand.

        The tenant itself brings its credential; a tenant that never sends one needs none.
        """
        if not access.is_operator or caller.upstream.api_key or self._is_nobody(caller.tenant):
            return True
        rules = await self._manual.rules(caller, chat)
        chain = rules.compaction.summarizers
        return any(self._rules.upstreams[s.upstream].api_key for s in chain)

    def _is_nobody(self, tenant: str) -> bool:
        tenancy = self._rules.relay.tenancy
        return not tenancy.client_keys and identify(tenancy, (), b"").tenant == tenant


_Handler = Callable[[Request, Access, bytes], Awaitable[Response]]


class _Call:
    """An ASGI endpoint that reads a body, works while its client is there, and answers."""

    def __init__(self, rules: CompactRules, handler: _Handler) -> None:
        self._rules = rules
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = access_of(self._rules.access, scope["headers"], scope["query_string"])
        by_name = dict(scope["headers"])
        declared = by_name.get(b"content-length", b"")
        incoming = Incoming(
            receive,
            max_body_bytes=self._rules.max_body_bytes,
            declared_bytes=int(declared) if declared.isdigit() else None,
        )
        request, answers = Request(scope), []

        async def work() -> None:
            body = await incoming.whole()
            plain = await self._decoded(body, by_name.get(b"content-encoding", b""))
            answers.append(await self._handler(request, access, plain))

        if await while_connected(incoming, work()):
            await answers[0](scope, receive, send)

    async def _decoded(self, body: bytes, coding: bytes) -> bytes:
        codings, limit = codings_of(coding), self._rules.max_body_bytes
        if not codings:
            return body
        try:
            return await off_loop(len(body), decode_bounded, (body,), codings, max_bytes=limit)
        except CodingError:
            raise InvalidRequest("The body is not in the content coding it names.") from None
        except TooLarge:
            raise InvalidRequest(
                f"The request body is larger than {limit} bytes when decoded.",
                status=413,
                code="request_too_large",
            ) from None


def _options_of(body: bytes) -> Any:
    if not body.strip():
        return None
    try:
        return decode(body)
    except (ValueError, RecursionError):
        raise InvalidRequest("The options are not JSON.") from None


def _answered(done: Done, *, with_messages: bool) -> Response:
    value = done.result.as_json()
    if with_messages:
        items = done.turn.surface.items
        value["messages"] = [*done.turn.request.head, *(item.message for item in items)]
    return answer(value, headers=facts(done.turn))
