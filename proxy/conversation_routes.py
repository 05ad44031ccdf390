"""Conversations, for people: lists, what a model saw of one at any generation, its log, its events,
and the two things that take away. Nobody learns of another tenant's."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from proxy.access import Access, AccessRules, access_of
from proxy.conversation_views import event_json, listed_json, shown_json, steps_json, surface_json
from proxy.conversations import Conversations
from proxy.core.errors import InvalidRequest
from proxy.core.generations import made_by
from proxy.core.manual import refused
from proxy.events import EventLog
from proxy.in_flight import InFlight
from proxy.logged import ConversationNotFound, Logged
from proxy.management import answer
from proxy.meter import Meter
from proxy.paging import flag_of, limit_of, place_of
from proxy.store.store import Conversation, Store
from proxy.wire import decode, encode

Handler = Callable[[Request, Access], Awaitable[Response]]
LISTED, LISTED_MOST = 50, 200
ITEMS, ITEMS_MOST = 200, 1000
EVENTS, EVENTS_MOST = 200, 1000


class ConversationRoutes:
    """The routes below `/tidegate/conversations`, but for compacting."""

    def __init__(
        self,
        access: AccessRules,
        *,
        logged: Logged,
        store: Store,
        events: EventLog,
        meter: Meter,
        conversations: Conversations,
        in_flight: InFlight,
    ) -> None:
        """`access` decides whom every call is served as."""
        self._access = access
        self._logged = logged
        self._store = store
        self._events = events
        self._meter = meter
        self._conversations = conversations
        self._in_flight = in_flight

    def routes(self) -> tuple[BaseRoute, ...]:
        """All of them; an id may hold slashes, so that the bare one comes last."""
        one = "/tidegate/conversations/{id:path}"
        return (
            self._route("GET", "/tidegate/conversations", self._list),
            self._route("GET", f"{one}/surface", self._surface),
            self._route("GET", f"{one}/log", self._log),
            self._route("GET", f"{one}/events", self._happened),
            self._route("DELETE", f"{one}/generations/{{name}}", self._revoke),
            self._route("GET", one, self._show),
            self._route("DELETE", one, self._forget),
        )

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            scope = request.scope
            return await handler(
                request, access_of(self._access, scope["headers"], scope["query_string"])
            )

        return Route(path, endpoint, methods=[method])

    async def _list(self, request: Request, access: Access) -> Response:
        limit = limit_of(request, default=LISTED, most=LISTED_MOST)
        before = request.query_params.get("before")
        await self._logged.written()
        found = await self._store.conversations(access.tenant, limit=limit + 1, before=before)
        shown = found[:limit]
        following = shown[-1].cursor if len(found) > limit else None
        return answer({"conversations": await self._listed(shown), "next": following})

    async def _listed(self, conversations: Sequence[Conversation]) -> list[dict[str, Any]]:
        titles = await self._logged.titles(conversations)
        busy = self._in_flight.busy_here
        return [
            listed_json(each, title=title, in_flight=busy(each.tenant, each.id))
            for each, title in zip(conversations, titles, strict=True)
        ]

    async def _one(self, request: Request, access: Access) -> Conversation:
        """The conversation of the path; the operator may name a tenant, ids being theirs alone."""
        tenant = access.tenant or request.query_params.get("tenant")
        return await self._logged.conversation(tenant, request.path_params["id"])

    async def _show(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        made = await self._logged.steps(conversation)
        scheduled = await self._store.is_scheduled(conversation.tenant, conversation.id)
        (listed,) = await self._listed([conversation])
        return answer(shown_json(listed, made, scheduled=scheduled))

    async def _surface(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        made = await self._logged.steps(conversation)
        generation = place_of(request, "generation", default=len(made))
        if generation > len(made):
            raise refused(f"generation: the newest is {len(made)}.", "generation")
        after = place_of(request, "after")
        limit = limit_of(request, default=ITEMS, most=ITEMS_MOST)
        history = await self._logged.history(conversation)
        surface = history.surface(made, generation)
        part = surface.items[after : after + limit]
        counted = [(encode(item.message), item.message) for item in part]
        tokens = await self._meter.count_messages(counted, conversation.model)
        more = after + limit < len(surface.items)
        return answer(
            {
                "conversation_id": conversation.id,
                "generation": generation,
                "newest_generation": len(made),
                "message_count": len(history.request.history),
                "item_count": len(surface.items),
                "head": list(history.request.head),
                "items": surface_json(surface, range(after, after + len(part)), tokens),
                "generations": steps_json(made),
                "next": after + limit if more else None,
            }
        )

    async def _log(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        after = place_of(request, "after")
        limit = limit_of(request, default=ITEMS, most=ITEMS_MOST)
        sent = (await self._logged.history(conversation)).request
        part = list(zip(sent.raw_history, sent.history, strict=True))[after : after + limit]
        tokens = await self._meter.count_messages(part, conversation.model)
        more = after + limit < len(sent.history)
        return answer(
            {
                "conversation_id": conversation.id,
                "message_count": len(sent.history),
                "head": list(sent.head),
                "tools": decode(sent.fields["tools"]) if "tools" in sent.fields else None,
                "messages": [
                    {"position": position, "tokens": count, "message": message}
                    for position, (count, (_, message)) in enumerate(
                        zip(tokens, part, strict=True), start=after
                    )
                ],
                "next": after + limit if more else None,
            }
        )

    async def _happened(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        limit = limit_of(request, default=EVENTS, most=EVENTS_MOST)
        after = place_of(request, "after")
        newest = flag_of(request, "newest")
        found = await self._store.events(
            conversation.tenant, conversation.id, limit=limit, after=after, newest=newest
        )
        more = len(found) == limit and not newest
        return answer(
            {
                "events": [event_json(event) for event in found],
                "next": found[-1].order if more else None,
            }
        )

    async def _revoke(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        name = request.path_params["name"]
        step = made_by(await self._logged.steps(conversation), name)
        row = None
        if step is not None:
            row = await self._store.revoke(conversation.tenant, step.replacement.id)
        if step is None or row is None:
            raise InvalidRequest(
                f"No replacement of this conversation made generation {name[:100]!r}.",
                status=404,
                code="generation_not_found",
            )
        if not step.replacement.revoked:
            self._events.revoked(conversation.tenant, conversation.id, row)
        made = await self._logged.steps(conversation)
        return answer(
            {
                "conversation_id": conversation.id,
                "checkpoint_id": row.id,
                "revoked": True,
                "generation": len(made),
            }
        )

    async def _forget(self, request: Request, access: Access) -> Response:
        conversation = await self._one(request, access)
        gone = await self._store.forget(conversation.tenant, conversation.id)
        if gone is None:
            raise ConversationNotFound(f"There is no conversation {conversation.id[:200]!r}.")
        self._conversations.forget(conversation.tenant, conversation.id)
        return answer(
            {
                "conversation_id": conversation.id,
                "forgotten": True,
                "messages": gone.messages,
                "events": gone.events,
                "replacements": gone.replacements,
            }
        )
