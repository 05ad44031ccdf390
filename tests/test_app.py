"""The application as a whole: own paths, the guard, and errors that nobody foresaw."""

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from proxy.app import EdgeOptions, Parts, create_app
from proxy.core.errors import InvalidRequest
from proxy.provider import Provider
from proxy.relay import Upstream
from tests.edge import chat_body, serve_edge
from tests.fake_provider import FakeProvider, running
from tests.raw_client import ask, ask_chat
from tests.serving import Served, serve, wait_until


async def own(request: Request) -> JSONResponse:
    return JSONResponse({"own": True})


async def refusing(request: Request) -> JSONResponse:
    raise InvalidRequest("busy", status=409, code="conversation_busy", headers={"Retry-After": "1"})


async def failing(request: Request) -> JSONResponse:
    raise RuntimeError("a secret detail")


@contextlib.contextmanager
def serve_own(not_ready: str | None = None, **options: Any) -> Any:
    async def reason() -> str | None:
        return not_ready

    @contextlib.asynccontextmanager
    async def parts(provider: Provider) -> AsyncIterator[Parts]:
        routes = tuple(
            Route(f"/tidegate/{name}", handler)
            for name, handler in (("own", own), ("refusing", refusing), ("failing", failing))
        )
        yield Parts(secret=b"s" * 32, routes=routes, not_ready=reason)

    upstream = Upstream("default", "http://127.0.0.1:1", options.pop("api_key", None))
    with serve(create_app(EdgeOptions(upstreams=[upstream], **options), parts)) as served:
        yield served


class TestOwnPaths:
    def test_health_and_readiness(self) -> None:
        with serve_own() as served:
            for path in ("/healthz", "/readyz", "/tidegate/own"):
                answer = ask(served.port, "GET", path)
                assert answer.status == 200, path
        with serve_own(not_ready="the store does not answer") as served:
            answer = ask(served.port, "GET", "/readyz")
            assert answer.status == 503
            assert answer.json["reason"] == "the store does not answer"
            assert ask(served.port, "GET", "/healthz").status == 200

    def test_their_errors_are_in_the_envelope(self, caplog: pytest.LogCaptureFixture) -> None:
        with serve_own() as served:
            answer = ask(served.port, "GET", "/tidegate/refusing")
            assert (answer.status, answer.one("retry-after")) == (409, "1")
            assert answer.json["error"]["code"] == "conversation_busy"
            assert len(str(answer.one("x-tidegate-request-id"))) == 16
            answer = ask(served.port, "GET", "/tidegate/nothing")
            assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
            assert ask(served.port, "POST", "/tidegate/own", b"").status == 405
            answer = ask(served.port, "GET", "/tidegate/failing")
            assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
            assert b"secret" not in answer.body
            wait_until(lambda: [r for r in caplog.records if r.levelno >= logging.ERROR])
        errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert [r.name for r in errors] == ["proxy.app"]
        assert "request_id=" in errors[0].getMessage()


class TestGuard:
    FOREIGN = (
        ["Host: rebound.example"],
        ["Origin: https://evil.example"],
        ["Origin: null"],
    )

    @pytest.mark.parametrize("headers", FOREIGN)
    def test_own_paths_answer_only_to_loopback_names(self, headers: list[str]) -> None:
        with serve_own() as served:
            answer = ask(served.port, "GET", "/tidegate/own", None, *headers)
            assert answer.status == 403
            assert answer.json["error"]["code"] == "forbidden_origin"
            # without a configured key there is nothing to steal on the other paths
            assert ask(served.port, "GET", "/v1/models", None, *headers).status == 502

    @pytest.mark.parametrize("headers", FOREIGN)
    def test_with_a_configured_key_every_path_does(self, headers: list[str]) -> None:
        with serve_own(api_key="sk-op") as served:
            for path in ("/v1/models", "/tidegate/own", "/healthz", "/v1/chat/completions"):
                assert ask(served.port, "GET", path, None, *headers).status == 403, path

    def test_off_loopback_it_is_the_keys_that_guard(self) -> None:
        with serve_own(bound_to_loopback=False) as served:
            assert ask(served.port, "GET", "/tidegate/own", None, "Host: tg.corp").status == 200


class TestErrorsOfTheWayOut:
    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
    def test_are_one_warning_that_says_why(
        self, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serve_own() as served:
            body = json.dumps(chat_body("a secret")).encode()
            assert ask(served.port, "POST", path, body).status == 502
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "status=502 code=upstream_unreachable" in warnings[0]
        assert "http://127.0.0.1:1: Connection refused" in warnings[0]
        assert "secret" not in warnings[0]


class TestUnforeseenErrors:
    @contextlib.contextmanager
    def failing_edge(self, fake: FakeProvider) -> Any:
        async def before(request: Any, caller: Any, own_work: Any) -> None:
            raise RuntimeError("a secret detail")

        with serve_edge(fake.url, before=before) as served:
            yield served

    def test_are_one_log_line_with_an_id_and_an_envelope_that_names_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running(FakeProvider()) as fake, self.failing_edge(fake) as served:
            answer = ask_chat(served.port, chat_body())
        assert answer.status == 500
        assert answer.json["error"]["code"] == "internal_error"
        assert b"secret" not in answer.body
        errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert len(errors) == 1
        assert str(answer.one("x-tidegate-request-id")) in errors[0].getMessage()

    def test_other_requests_go_on(self) -> None:
        with running(FakeProvider()) as fake, self.failing_edge(fake) as served:
            ask_chat(served.port, chat_body())
            assert ask(served.port, "POST", "/v1/embeddings", b"{}").status == 200


async def test_websockets_are_refused() -> None:
    @contextlib.asynccontextmanager
    async def parts(provider: Provider) -> AsyncIterator[Parts]:
        yield Parts(secret=b"s" * 32)

    app = create_app(EdgeOptions(upstreams=[Upstream("default", "http://127.0.0.1:1")]), parts)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_stopping_ends_streams_and_closes_the_connections() -> None:
    with running(FakeProvider(pause=0.01)) as fake:
        with serve_edge(fake.url) as served:
            assert isinstance(served, Served)
            assert ask_chat(served.port, chat_body(stream=True)).complete
        assert len(fake.requests) == 1
