"""Requests as bytes, for clients that do with them what no library would."""

import json
from typing import Any

HELLO: dict[str, Any] = {
    "model": "gpt-4o",
    "stream": True,
    "messages": [{"role": "user", "content": "hello"}],
}


def chat_bytes(*headers: str, body: Any = None, close: bool = False) -> bytes:
    """A whole chat request."""
    data = body if isinstance(body, bytes) else json.dumps(HELLO if body is None else body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
        *(["Connection: close"] if close else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data
