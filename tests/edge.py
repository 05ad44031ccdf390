"""The edge by itself: the real application with a pipeline that only passes chats through."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from proxy.app import EdgeOptions, Parts, create_app
from proxy.outcome import Outcome
from proxy.own_work import OwnWork
from proxy.provider import Provider
from proxy.relay import Caller, Upstream, provider_request
from proxy.wire import ChatRequest
from tests.serving import Served, serve

ChatHook = Callable[[ChatRequest, Caller, OwnWork], Awaitable[None]]


class PassThrough:
    """A pipeline that sends a chat as it is. `before` may spend time, or raise, before that."""

    def __init__(self, provider: Provider, hold_seconds: float, before: ChatHook | None) -> None:
        self._provider = provider
        self._hold_seconds = hold_seconds
        self._before = before

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        if self._before is not None:
            await self._before(request, caller, own_work)
        outgoing = provider_request(caller, request.body, identity=own_work.answering)
        opening = await self._provider.open_chat(outgoing, hold_seconds=self._hold_seconds)
        return Outcome(opening.reply, {"x-tidegate-action": "none"})


@contextlib.contextmanager
def serve_edge(
    base_url: str,
    *,
    api_key: str | None = None,
    hold_seconds: float = 10,
    before: ChatHook | None = None,
    upstreams: Sequence[Upstream] = (),
    **options: Any,
) -> Iterator[Served]:
    """The application in front of `base_url`, or of `upstreams`, on a port of its own."""

    @contextlib.asynccontextmanager
    async def parts(provider: Provider) -> AsyncIterator[Parts]:
        yield Parts(secret=b"s" * 32, pipeline=PassThrough(provider, hold_seconds, before))

    upstreams = upstreams or [Upstream("default", base_url, api_key)]
    with serve(create_app(EdgeOptions(upstreams=upstreams, **options), parts)) as served:
        yield served


def chat_body(text: str = "hello", *, stream: bool = False, **extra: Any) -> dict[str, Any]:
    """A small chat."""
    messages = [{"role": "user", "content": text}]
    return {"model": "fake", "messages": messages, "stream": stream, **extra}
