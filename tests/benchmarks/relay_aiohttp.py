"""The bare relay to be measured against: starlette and httpx over the `httpx-aiohttp` transport.

It parses and re-encodes the request with orjson and does nothing else that a proxy must do.

    BENCHMARK_UPSTREAM=http://127.0.0.1:9000 uvicorn tests.benchmarks.relay_aiohttp:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
from httpx_aiohttp import AiohttpTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

UPSTREAM = os.environ.get("BENCHMARK_UPSTREAM", "")
NOT_PASSED_ON = frozenset({"host", "content-length", "connection"})
NOT_PASSED_BACK = frozenset({"content-length", "transfer-encoding", "connection"})
LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)


def make_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AiohttpTransport(limits=LIMITS), timeout=600)


def relay(make: Any) -> Starlette:
    """The application around one client."""

    async def chat(request: Request) -> Response:
        client: httpx.AsyncClient = request.app.state.client
        body = orjson.loads(await request.body())
        upstream = client.build_request(
            "POST",
            f"{UPSTREAM}{request.url.path}",
            content=orjson.dumps(body),
            headers={k: v for k, v in request.headers.items() if k not in NOT_PASSED_ON},
        )
        reply = await client.send(upstream, stream=True)
        headers = {k: v for k, v in reply.headers.items() if k not in NOT_PASSED_BACK}
        if not body.get("stream"):
            content = await reply.aread()
            return Response(content, reply.status_code, headers)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in reply.aiter_raw():
                    yield chunk
            finally:
                await reply.aclose()

        return StreamingResponse(chunks(), reply.status_code, headers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with make() as client:
            app.state.client = client
            yield

    routes = [Route("/v1/chat/completions", chat, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


app = relay(make_client)
