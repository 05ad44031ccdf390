"""The `/tidegate/...` calls: whom a request is served as, and a JSON answer. What is done stands
elsewhere; errors are raised, and rendered by `app`."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from proxy.access import Access, AccessRules, access_of
from proxy.answers import http_date
from proxy.known_models import KnownModels
from proxy.wire import encode

Handler = Callable[[Request, Access], Awaitable[Response]]


class Management:
    """The routes below `/tidegate/`."""

    def __init__(self, access: AccessRules, *, models: KnownModels) -> None:
        """`access` decides whom every call is served as."""
        self._access = access
        self._models = models

    def routes(self) -> tuple[BaseRoute, ...]:
        """All of them."""
        return (
            self._route("GET", "/tidegate/models", self._show_models),
            self._route("DELETE", "/tidegate/models/{model:path}/learned", self._forget_learned),
        )

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        """A route whose handler is told who asks."""

        async def endpoint(request: Request) -> Response:
            scope = request.scope
            access = access_of(self._access, scope["headers"], scope["query_string"])
            return await handler(request, access)

        return Route(path, endpoint, methods=[method])

    async def _show_models(self, request: Request, access: Access) -> Response:
        shown = await self._models.shown(access.tenant)
        headers = {} if shown.degraded is None else {"x-tidegate-degraded": shown.degraded}
        return answer({"models": shown.models, "truncated": shown.truncated}, headers=headers)

    async def _forget_learned(self, request: Request, access: Access) -> Response:
        model = request.path_params["model"]
        forgotten = await self._models.forget(access.tenant, model)
        return answer({"model": model, "forgotten": forgotten})


def answer(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer that no cache keeps."""
    own = {"date": http_date().decode(), "cache-control": "no-store"}
    return Response(
        encode(value),
        status_code=status,
        headers={**own, **(headers or {})},
        media_type="application/json",
    )
