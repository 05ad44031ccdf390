"""A small provider for trying things out offline: it really counts, really refuses, and streams.

It speaks OpenAI's chat completions, with a window of any size. What it answers is made of what it
was sent (see `practice_answers`), so it costs nothing and needs no key. It calls no tools.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.meter import Meter
from proxy.practice_answers import answer, sections_asked_for, summarise
from proxy.practice_checks import PracticeRefusal, check_request, check_window, output_limit
from proxy.vocabulary import encoding_for

MODEL = "practice"
"""The model it lists; it answers to any name, and counts as that model's family counts."""

WINDOW_TOKENS = 8192
DEFAULT_OUTPUT_TOKENS = 1024
"""How long an answer may be when the request does not say."""

CHUNK_CHARS = 24
CREATED = 0
"""It has no clock to tell: the same request gives the same bytes."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, before it takes the form of a body or a stream."""

    id: str
    model: str
    text: str
    finish_reason: str
    usage: Mapping[str, Any]

    def body(self) -> dict[str, Any]:
        """The answer as a whole."""
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return {
            **self._envelope("chat.completion"),
            "choices": [{**choice, "logprobs": None}],
            "usage": self.usage,
        }

    def chunks(self, *, include_usage: bool) -> list[dict[str, Any]]:
        """The answer in pieces; with usage asked for, every one has the field, as at OpenAI."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += (
            {"content": self.text[start : start + CHUNK_CHARS]}
            for start in range(0, len(self.text), CHUNK_CHARS)
        )
        envelope = self._envelope("chat.completion.chunk")
        if include_usage:
            envelope["usage"] = None
        chunks = [
            {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            for delta in deltas
        ]
        end = {"index": 0, "delta": {}, "finish_reason": self.finish_reason}
        chunks.append({**envelope, "choices": [end]})
        if include_usage:
            chunks.append({**envelope, "choices": [], "usage": self.usage})
        return chunks

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": CREATED, "model": self.model}


def create_practice_app(
    *,
    window_tokens: int = WINDOW_TOKENS,
    lists_window: bool = True,
    chunk_delay_seconds: float = 0.0,
    meter: Meter | None = None,
) -> Starlette:
    """The provider as an ASGI application. `window_tokens` holds prompt and answer together.

    Without `lists_window` its listing names the models alone, as OpenAI's does; a refusal still
    states the window.
    """
    provider = _Practice(window_tokens, lists_window, chunk_delay_seconds, meter or Meter())
    return Starlette(
        routes=[
            Route("/v1/chat/completions", provider.chat, methods=["POST"]),
            Route("/v1/models", provider.models),
            Route("/v1/models/{model:path}", provider.model),
        ],
        exception_handlers={PracticeRefusal: _refused, HTTPException: _no_such_url},
    )


class _Practice:
    """The endpoints."""

    def __init__(
        self, window_tokens: int, lists_window: bool, chunk_delay_seconds: float, meter: Meter
    ) -> None:
        self._window_tokens = window_tokens
        self._lists_window = lists_window
        self._chunk_delay_seconds = chunk_delay_seconds
        self._meter = meter

    async def chat(self, request: Request) -> Response:
        body = await request.body()
        answered, wanted = await run_in_threadpool(self._answer, body)
        if wanted.get("stream") is not True:
            return JSONResponse(answered.body())
        options = wanted.get("stream_options")
        include_usage = isinstance(options, Mapping) and options.get("include_usage") is True
        return StreamingResponse(
            self._events(answered.chunks(include_usage=include_usage)),
            media_type="text/event-stream",
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._listed(MODEL)]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._listed(request.path_params["model"]))

    def _listed(self, model: str) -> dict[str, Any]:
        listed = {"id": model, "object": "model", "created": CREATED, "owned_by": "tidegate"}
        if not self._lists_window:
            return listed
        # `max_model_len` is vLLM's name for the window, which OpenAI's listing leaves out.
        return {**listed, "max_model_len": self._window_tokens}

    def _answer(self, body: bytes) -> tuple[Answered, Mapping[str, Any]]:
        """Raises: PracticeRefusal."""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise PracticeRefusal(
                "We could not parse the JSON body of your request. The OpenAI API expects a JSON "
                "payload."
            ) from error
        check_request(request)
        model, messages = request["model"], request["messages"]
        prompt_tokens = self._meter.count_request(request, model)
        limit = output_limit(request)
        check_window(prompt_tokens, limit, self._window_tokens)
        room = min(limit or DEFAULT_OUTPUT_TOKENS, self._window_tokens - prompt_tokens)
        sections = sections_asked_for(messages)
        if sections:
            text = summarise(messages, sections, cap_tokens=room, count=self._meter.counter(model))
        else:
            text = answer(messages, prompt_tokens=prompt_tokens, window_tokens=self._window_tokens)
        tokens = encoding_for(model).encode_ordinary(text)
        finish_reason = "stop"
        if len(tokens) > room:
            finish_reason, tokens = "length", tokens[:room]
            text = encoding_for(model).decode(tokens, errors="ignore")
        digest = blake2b(body, digest_size=9).hexdigest()
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "total_tokens": prompt_tokens + len(tokens),
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }
        return Answered(f"chatcmpl-{digest}", model, text, finish_reason, usage), request

    async def _events(self, chunks: list[dict[str, Any]]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            if self._chunk_delay_seconds:
                await asyncio.sleep(self._chunk_delay_seconds)
            yield b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, PracticeRefusal)
    return JSONResponse(error.envelope(), status_code=error.status)


async def _no_such_url(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = PracticeRefusal(
        f"Unknown request URL: {request.method} {request.url.path}. Check the URL for typos.",
        code="unknown_url",
    )
    return JSONResponse(refusal.envelope(), status_code=error.status_code)
