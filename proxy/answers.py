"""Answers of Tidegate's own: JSON, errors in OpenAI's envelope, with a Date of their own."""

import json
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from starlette.types import Send

from proxy.core.errors import InvalidRequest, TidegateError

HEADERS_TOO_LARGE = InvalidRequest(
    "The request line and headers are larger than 64 KiB.", status=431, code="headers_too_large"
)
INTERNAL_ERROR = TidegateError(
    "Tidegate failed to handle this request; its log says why, under the request id.",
    code="internal_error",
)


def http_date() -> bytes:
    """The time now, as HTTP writes it."""
    return formatdate(time.time(), usegmt=True).encode()


async def send_json(
    send: Send, status: int, value: Any, *, headers: Mapping[str, str] | None = None
) -> None:
    """A whole JSON answer."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"date", http_date()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                *((k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: TidegateError, *, request_id: str | None = None) -> None:
    """The error with its status, in OpenAI's envelope."""
    headers = dict(error.headers)
    if request_id is not None:
        headers["x-tidegate-request-id"] = request_id
    await send_json(send, error.status, error.envelope(), headers=headers)
