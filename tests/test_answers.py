"""Answers of Tidegate's own: JSON, the envelope, one Date."""

import json
import re
from typing import Any

from proxy.answers import INTERNAL_ERROR, http_date, send_error, send_json
from proxy.core.errors import InvalidRequest


class Sent:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = self.messages[0]["headers"]
        return headers

    @property
    def body(self) -> bytes:
        body: bytes = self.messages[1]["body"]
        return body


def test_the_date_is_as_http_writes_it() -> None:
    assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", http_date())


async def test_json_has_its_length_its_type_and_a_date() -> None:
    sent = Sent()
    await send_json(sent, 201, {"text": "é\ud83d"}, headers={"X-A": "1"})
    assert sent.messages[0]["status"] == 201
    headers = dict(sent.headers)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == b"%d" % len(sent.body)
    assert headers[b"x-a"] == b"1"
    assert [name for name, _ in sent.headers].count(b"date") == 1
    assert b"\xc3\xa9" in sent.body


async def test_an_error_is_its_envelope_its_status_and_its_headers() -> None:
    sent = Sent()
    error = InvalidRequest("no", status=409, code="busy", headers={"Retry-After": "1"})
    await send_error(sent, error, request_id="r1")
    assert sent.messages[0]["status"] == 409
    assert json.loads(sent.body) == error.envelope()
    assert dict(sent.headers)[b"retry-after"] == b"1"
    assert dict(sent.headers)[b"x-tidegate-request-id"] == b"r1"


async def test_an_unexpected_failure_tells_nothing_but_where_to_look() -> None:
    sent = Sent()
    await send_error(sent, INTERNAL_ERROR)
    assert sent.messages[0]["status"] == 500
    assert json.loads(sent.body)["error"]["code"] == "internal_error"
