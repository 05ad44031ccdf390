"""Listings are asked for in the background, rarely, and by what kind of server it is."""

import asyncio
from typing import Any

import pytest

from proxy.listing_book import (
    LISTING_SECONDS,
    NOTHING_SECONDS,
    UNSERVED_SECONDS,
    ListingBook,
    Place,
)

PLACE = Place("default", "tenant", "http://127.0.0.1:9/v1")
ROOT = "http://127.0.0.1:9"


class Server:
    """An upstream's answers by route; remembers what it was asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.bodies: list[object] = []

    async def __call__(self, method: str, url: str, body: object) -> object | None:
        path = url.removeprefix(ROOT)
        self.asked.append(f"{method} {path}")
        self.bodies.append(body)
        answer = self.answers.get(path)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def book(clock: Clock, provider: str | None = None) -> ListingBook:
    return ListingBook(provider_of=lambda url: provider, now=clock)


async def window(known: ListingBook, server: Server, model: str = "m") -> int | None:
    known.refresh(PLACE, model, server)
    await known.settled()
    listed = known.listed(PLACE, model)
    return None if listed is None else listed.window_tokens


async def test_a_listing_that_tells_is_asked_for_once_an_hour() -> None:
    clock, server = Clock(), Server({"/v1/models": {"data": [{"id": "m", "max_model_len": 5_000}]}})
    known = book(clock)
    assert known.listed(PLACE, "m") is None
    for _ in range(3):
        assert await window(known, server) == 5_000
    clock.now += LISTING_SECONDS
    assert await window(known, server) == 5_000
    assert server.asked == ["GET /v1/models"] * 2


@pytest.mark.parametrize(
    "answer", [{"data": [{"id": "m", "max_model_len": 5}]}, {"data": []}, None, OSError("gone")]
)
async def test_the_version_tells_that_something_was_asked(answer: Any) -> None:
    known = book(Clock())
    before = known.version
    await window(known, Server({"/v1/models": answer}))
    assert known.version > before
    before = known.version
    await window(known, Server({}))
    assert known.version == before


async def test_nobody_waits_and_one_asks() -> None:
    clock, release = Clock(), asyncio.Event()
    asked = 0

    async def slow(method: str, url: str, body: object) -> object:
        nonlocal asked
        asked += 1
        await release.wait()
        return [{"id": "m", "context_length": 7}]

    known = book(clock)
    for _ in range(5):
        known.refresh(PLACE, "m", slow)
    await asyncio.sleep(0)
    assert known.listed(PLACE, "m") is None
    release.set()
    await known.settled()
    listed = known.listed(PLACE, "m")
    assert listed is not None
    assert (listed.window_tokens, asked) == (7, 1)


@pytest.mark.parametrize(
    ("answers", "expected", "last"),
    [
        (
            {
                "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": None}]},
                "/props": {"default_generation_settings": {"n_ctx": 8_192}},
            },
            8_192,
            "GET /props",
        ),
        (
            {
                "/v1/models": {"data": [{"id": "m:latest", "owned_by": "library"}]},
                "/api/ps": {"models": [{"name": "m:latest", "context_length": 16_384}]},
            },
            16_384,
            "GET /api/ps",
        ),
        (
            {
                "/v1/models": {"data": [{"id": "m", "owned_by": "library"}]},
                "/api/ps": {"models": []},
                "/api/show": {"model_info": {"llama.context_length": 131_072}},
            },
            131_072,
            "POST /api/show",
        ),
        (
            {
                "/v1/models": {"data": [{"id": "m", "owned_by": "organization_owner"}]},
                "/api/v0/models": {"data": [{"id": "m", "loaded_context_length": 4_096}]},
            },
            4_096,
            "GET /api/v0/models",
        ),
        ({"/info": {"model_id": "x", "max_total_tokens": 2_048}}, 2_048, "GET /info"),
        (
            {
                "/model/info": {
                    "data": [{"model_name": "m", "model_info": {"max_input_tokens": 9_000}}]
                }
            },
            9_000,
            "GET /model/info",
        ),
        (
            {"/v1/models/status": {"models": [{"id": "m", "max_context_window": 3_000}]}},
            3_000,
            "GET /v1/models/status",
        ),
        ({}, None, "GET /v1/models/status"),
    ],
)
async def test_a_self_hosted_server_is_asked_in_its_own_way(
    answers: dict[str, Any], expected: int | None, last: str
) -> None:
    server = Server(answers)
    assert await window(book(Clock()), server) == expected
    assert server.asked[-1] == last


async def test_ollama_is_asked_about_the_model_by_name() -> None:
    server = Server({"/v1/models": [{"id": "m", "owned_by": "library"}]})
    await window(book(Clock()), server)
    assert server.bodies[-1] == {"model": "m"}


@pytest.mark.parametrize(
    ("provider", "asked"),
    [
        ("openai", ["GET /v1/models"]),
        ("google", ["GET /v1/models", "GET /v1beta/models"]),
    ],
)
async def test_a_known_provider_is_not_tried_for_servers_that_it_is_not(
    provider: str, asked: list[str]
) -> None:
    server = Server({"/v1/models": {"data": [{"id": "m", "owned_by": "openai"}]}})
    assert await window(book(Clock(), provider), server) is None
    assert server.asked == asked


async def test_what_is_not_loaded_yet_is_asked_for_again_soon() -> None:
    clock = Clock()
    server = Server(
        {
            "/v1/models": [{"id": "m", "owned_by": "library"}],
            "/api/show": {"model_info": {"x.context_length": 131_072}},
        }
    )
    known = book(clock)
    assert await window(known, server) == 131_072
    server.answers["/api/ps"] = {"models": [{"name": "m", "context_length": 4_096}]}
    assert await window(known, server) == 131_072
    clock.now += UNSERVED_SECONDS
    assert await window(known, server) == 4_096
    assert server.asked.count("GET /v1/models") == 1


@pytest.mark.parametrize("failure", [None, RuntimeError("broken"), TimeoutError()])
async def test_an_upstream_that_fails_is_left_alone_for_a_while(
    failure: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock, server = Clock(), Server({"/v1/models": failure})
    known = book(clock, "openai")
    for _ in range(3):
        assert await window(known, server) is None
    assert len(server.asked) == 1
    clock.now += NOTHING_SECONDS
    server.answers["/v1/models"] = [{"id": "m", "context_length": 7}]
    assert await window(known, server) == 7


async def test_what_was_known_stays_while_an_upstream_fails() -> None:
    clock, server = Clock(), Server({"/v1/models": [{"id": "m", "context_length": 7}]})
    known = book(clock, "openai")
    assert await window(known, server) == 7
    for failure in (None, RuntimeError("broken")):
        clock.now += LISTING_SECONDS
        server.answers["/v1/models"] = failure
        assert await window(known, server) == 7


async def test_tenants_do_not_share_what_their_own_credentials_show() -> None:
    known, server = book(Clock()), Server({"/v1/models": [{"id": "m", "context_length": 7}]})
    assert await window(known, server) == 7
    assert known.listed(Place("default", "another", PLACE.base_url), "m") is None


async def test_closing_stops_asking() -> None:
    async def never(method: str, url: str, body: object) -> object:
        await asyncio.Event().wait()
        return None

    known = book(Clock())
    known.refresh(PLACE, "m", never)
    await asyncio.sleep(0)
    await known.aclose()
    await known.settled()
    assert known.listed(PLACE, "m") is None
