"""Sends a reply to the client: headers at once, bytes as they come, a break as a break."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from proxy.answers import http_date
from proxy.core.errors import ProviderBroke, TidegateError
from proxy.incoming import Incoming
from proxy.relay import HOP_BY_HOP, connection_names
from proxy.reply import Reply
from proxy.tenants import Headers

logger = logging.getLogger(__name__)

_BODILESS = frozenset({204, 205, 304})
# An error that must be told inside a stream is at most this long; errors are.
_MAX_ERROR_EVENT_BYTES = 1 << 20


class RelayResponse:
    """One reply on its way to one client. The reply is closed on every way out."""

    def __init__(
        self, reply: Reply, added: Mapping[str, str], *, send: Send, incoming: Incoming
    ) -> None:
        """`added` are Tidegate's own headers."""
        self._reply = reply
        self._added = added
        self._send = send
        self._incoming = incoming

    async def relay(self) -> None:
        """Status, headers, bytes. A break downstream is an answer that never completes."""
        reply = self._reply
        try:
            await self._send(
                {
                    "type": "http.response.start",
                    "status": reply.status,
                    "headers": self._headers(),
                }
            )
            await self._pass_bytes()
        finally:
            await reply.aclose()

    async def relay_as_events(self) -> None:
        """The reply after heartbeats: the 200 has gone, so all but a stream is an error event."""
        reply = self._reply
        reply.decode_for_client()  # the headers that went out name no coding
        try:
            kind = (reply.header(b"content-type") or b"").partition(b";")[0].strip().lower()
            if reply.status == 200 and kind == b"text/event-stream":
                await self._pass_bytes()
                return
            body = bytearray()
            while (chunk := await reply.read()) is not None and len(body) < _MAX_ERROR_EVENT_BYTES:
                body += chunk
            await send_error_event(self._send, error_of(reply.status, bytes(body)), self._incoming)
        except ProviderBroke as exc:
            await send_error_event(self._send, exc.envelope(), self._incoming)
        finally:
            await reply.aclose()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        reply = self._reply
        headers = response_headers(
            reply.headers,
            decoded=reply.decoded,
            bodiless=reply.status in _BODILESS,
            added=self._added,
        )
        if reply.local and reply.header(b"date") is None:
            headers.append((b"date", http_date()))
        return headers

    async def _pass_bytes(self) -> None:
        try:
            read, send = self._reply.read, self._send
            while (chunk := await read()) is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except ProviderBroke as exc:
            logger.warning("reply_broke status=%d cause=%s", self._reply.status, exc.message)
            self._incoming.answered = True
            return
        self._incoming.answered = True
        await self._send({"type": "http.response.body", "body": b""})


def response_headers(
    headers: Headers, *, decoded: bool, bodiless: bool, added: Mapping[str, str]
) -> list[tuple[bytes, bytes]]:
    """The provider's headers as they pass to the client, and Tidegate's own after them.

    `decoded`: the body's coding was undone, so its name and length are no longer true.
    `bodiless`: a status that has no body, where a length would be waited for.
    """
    own = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in added.items()}
    passing = []
    listed = False
    for item in headers:
        name = item[0].lower()
        if name == b"content-length":
            if not decoded and not bodiless:
                passing.append(item)
        elif name in HOP_BY_HOP:
            listed = listed or name == b"connection"
        elif name not in own and not (decoded and name == b"content-encoding"):
            passing.append(item)
    if listed and (names := connection_names(headers)):
        passing = [item for item in passing if item[0].lower() not in names]
    passing.extend(own.items())
    return passing


async def send_error_event(send: Send, envelope: Mapping[str, Any], incoming: Incoming) -> None:
    """One `data: {"error": ...}` event, and the end of the stream."""
    data = json.dumps(envelope, ensure_ascii=True, separators=(",", ":")).encode()
    incoming.answered = True
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n"})


def error_of(status: int, body: bytes) -> Mapping[str, Any]:
    """The provider's own error where the body is one, else an error that says what came instead."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("error"):
        return value
    if status < 400:
        message = "The provider answered with something else than the stream that was asked for."
        return TidegateError(message, code="stream_expected").envelope()
    text = body[:2000].decode("utf-8", "replace")
    return {
        "error": {
            "message": f"The provider answered with status {status}: {text}",
            "type": "upstream_error",
            "param": None,
            "code": str(status),
        }
    }
