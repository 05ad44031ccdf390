"""Plays the scripted session through the real proxy on real sockets, to the practice provider.

Every figure is measured: what the client sent is counted as the provider counts, what was forwarded
is the provider's own usage, the calls are those that reached the provider, the rest is read from
the response headers.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.assembly import create_app
from proxy.demo_script import STEPS, SYSTEM, TOOLS, Step, messages_of, tool_calls
from proxy.loopback import served
from proxy.meter import Meter
from proxy.practice import MODEL, WINDOW_TOKENS, create_practice_app
from proxy.settings import Settings

MAX_OUTPUT_TOKENS = 640
"""What the client allows for an answer."""

REQUEST_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One chat call that reached the provider, and its answer."""

    body: bytes
    status: int
    usage: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One request of the client: what it cost, what was done, whether it was answered."""

    number: int
    title: str
    status: int
    client_tokens: int
    forwarded_tokens: int
    generation: str
    action: str
    reason: str
    window: str
    milliseconds: float
    answer: str
    refused_calls: int
    summary_calls: tuple[ProviderCall, ...]
    forwarded_bytes: int
    kept_bytes: int

    @property
    def answered(self) -> bool:
        """Whether the client got an answer with words in it."""
        return self.status == 200 and bool(self.answer)


class RecordedProvider:
    """The provider behind a wire-tap: keeps every chat call and the status it got."""

    def __init__(self, app: ASGIApp) -> None:
        """Wraps the provider's application."""
        self._app = app
        self._calls: list[ProviderCall] = []

    def take(self) -> list[ProviderCall]:
        """The calls since this was asked before."""
        calls, self._calls = self._calls, []
        return calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on, both ways."""
        if scope["type"] != "http" or not scope["path"].endswith("/chat/completions"):
            await self._app(scope, receive, send)
            return
        asked, said = bytearray(), bytearray()
        status = 0

        async def heard() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def told(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            said.extend(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._calls.append(ProviderCall(bytes(asked), status, _usage(said)))
            await send(message)

        await self._app(scope, heard, told)


@contextmanager
def demo_servers(
    *, window_known: bool, window_tokens: int
) -> Iterator[tuple[str, RecordedProvider]]:
    """The base URL for the client, and the provider; a store of their own, gone afterwards."""
    meter = Meter()
    practice = create_practice_app(
        window_tokens=window_tokens, lists_window=window_known, meter=meter
    )
    provider = RecordedProvider(practice)
    model: dict[str, Any] = {"match": MODEL, "headroom_tokens": "auto"}
    if window_known:
        model["context_window"] = window_tokens
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder,
            served(provider) as upstream,
        ):
            settings = Settings.model_validate(
                {
                    "store": {"url": f"sqlite:///{Path(folder) / 'demo.db'}"},
                    "upstreams": {"default": {"base_url": f"{upstream}/v1"}},
                    "models": [model],
                }
            )
            with served(create_app(settings)) as url:
                yield f"{url}/v1", provider
    finally:
        meter.close()


class Client:
    """A client as clients are: it keeps the whole conversation and sends all of it every turn."""

    def __init__(self, http: httpx.Client, provider: RecordedProvider) -> None:
        """`http` knows the base URL, the one thing that points to the proxy."""
        self._http = http
        self._provider = provider
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self._meter = Meter()
        self._forwarded_before = b""

    def play(self, steps: Sequence[Step] = STEPS) -> Iterator[PlayedTurn]:
        """One turn for each step; ends early at a turn that was not answered."""
        try:
            for number, step in enumerate(steps, 1):
                if step.calls:
                    self._messages[-1]["tool_calls"] = tool_calls(step, number)
                self._messages += messages_of(step, number)
                turn = self._turn(number, step.title)
                yield turn
                if not turn.answered:
                    return
                self._messages.append({"role": "assistant", "content": turn.answer})
        finally:
            self._meter.close()

    def _turn(self, number: int, title: str) -> PlayedTurn:
        # The messages come last, so that what two requests have in common stands at their start.
        request = {
            "model": MODEL,
            "max_tokens": MAX_OUTPUT_TOKENS,
            "tools": list(TOOLS),
            "messages": self._messages,
        }
        started = time.perf_counter()
        reply = self._http.post("/chat/completions", json=request)
        seconds = time.perf_counter() - started
        # The answered call is the last: what made room for it came before.
        calls = self._provider.take()
        *others, answered = calls or [ProviderCall(b"", 0, {})]
        kept = _common_bytes(self._forwarded_before, answered.body)
        self._forwarded_before = answered.body
        headers = reply.headers
        return PlayedTurn(
            number=number,
            title=title,
            status=reply.status_code,
            client_tokens=self._meter.count_request(request, MODEL),
            forwarded_tokens=answered.usage.get("prompt_tokens", 0),
            generation=headers.get("x-tidegate-generation", ""),
            action=headers.get("x-tidegate-action", ""),
            reason=headers.get("x-tidegate-reason", ""),
            window=headers.get("x-tidegate-window", ""),
            milliseconds=seconds * 1000,
            answer=_answer(reply),
            refused_calls=sum(call.status != 200 for call in calls),
            summary_calls=tuple(call for call in others if call.status == 200),
            forwarded_bytes=len(answered.body),
            kept_bytes=kept,
        )


def play(*, window_known: bool = True, window_tokens: int = WINDOW_TOKENS) -> Iterator[PlayedTurn]:
    """The turns as they are played."""
    with (
        demo_servers(window_known=window_known, window_tokens=window_tokens) as (url, provider),
        httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False) as http,
    ):
        yield from Client(http, provider).play()


@dataclass(frozen=True, slots=True)
class Saved:
    """What the play came to."""

    turns: int
    answered: int
    client_tokens: int
    forwarded_tokens: int
    largest_client_tokens: int
    largest_forwarded_tokens: int
    over_window: int
    refused_calls: int
    summary_calls: int
    summary_prompt_tokens: int
    summary_completion_tokens: int
    kept_share: float
    windows: tuple[str, ...]
    last_answer: str


def saved(turns: Sequence[PlayedTurn], *, window_tokens: int = WINDOW_TOKENS) -> Saved:
    """The sums. The share kept is of the bytes of all requests but the first; `windows` are those
    that the response headers named, in order."""
    summaries = [call for turn in turns for call in turn.summary_calls]
    later = turns[1:]
    return Saved(
        turns=len(turns),
        answered=sum(turn.answered for turn in turns),
        client_tokens=sum(turn.client_tokens for turn in turns),
        forwarded_tokens=sum(turn.forwarded_tokens for turn in turns),
        largest_client_tokens=max((turn.client_tokens for turn in turns), default=0),
        largest_forwarded_tokens=max((turn.forwarded_tokens for turn in turns), default=0),
        over_window=sum(turn.client_tokens + MAX_OUTPUT_TOKENS > window_tokens for turn in turns),
        refused_calls=sum(turn.refused_calls for turn in turns),
        summary_calls=len(summaries),
        summary_prompt_tokens=sum(call.usage.get("prompt_tokens", 0) for call in summaries),
        summary_completion_tokens=sum(call.usage.get("completion_tokens", 0) for call in summaries),
        kept_share=sum(turn.kept_bytes for turn in later)
        / max(1, sum(turn.forwarded_bytes for turn in later)),
        windows=tuple(dict.fromkeys(turn.window for turn in turns)),
        last_answer=turns[-1].answer if turns else "",
    )


def _usage(body: bytes | bytearray) -> Mapping[str, int]:
    try:
        usage = json.loads(body).get("usage")
    except ValueError:
        return {}
    return usage if isinstance(usage, Mapping) else {}


def _answer(reply: httpx.Response) -> str:
    if reply.status_code != 200:
        return ""
    return str(reply.json()["choices"][0]["message"]["content"] or "")


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
