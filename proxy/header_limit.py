"""Uvicorn's HTTP over httptools, with a bound on what stands before a body: it has none itself, and
would gather a header for as long as a client sends it."""

import asyncio
import json
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.answers import HEADERS_TOO_LARGE
from proxy.joined_head import JoiningTransport

# nginx takes 32 KiB in all by default, Node 16 KiB; cookies and long keys fit well.
MAX_HEAD_BYTES = 64 * 1024

_BODY = json.dumps(HEADERS_TOO_LARGE.envelope()).encode()
_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class HeadTooLarge(Exception):
    """More than that stands before the body; the parser stops at it."""


class BoundedHeadProtocol(HttpToolsProtocol):
    """One connection of a client. `when_lost` is called at its end."""

    when_lost: Callable[[], None] | None = None
    _joining: JoiningTransport
    _in_head = True
    _waiting_bytes = 0
    _at_most_bytes = 0  # that the head can have, by what was received since it began
    _refused = False

    def data_received(self, data: bytes) -> None:
        """Bytes of the client, of which nothing is read any more once it was refused."""
        if self._refused:
            return
        was_in_head = self._in_head
        self._at_most_bytes = len(data) + (self._at_most_bytes if was_in_head else 0)
        super().data_received(data)
        if self._in_head and was_in_head:
            # The parser holds a header that is not whole yet, and says nothing of it.
            self._waiting_bytes += len(data)
            if self._waiting_bytes > MAX_HEAD_BYTES:
                self._refuse()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._joining = JoiningTransport(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._joining))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the connection, whoever closed it."""
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head = True
        self._waiting_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The body begins.

        Raises:
            HeadTooLarge: what came before is too much.
        """
        self._in_head = False
        if self._at_most_bytes > MAX_HEAD_BYTES:
            sizes = (len(name) + len(value) + 4 for name, value in self.headers)
            if len(self.url) + sum(sizes) > MAX_HEAD_BYTES:
                self._refuse()
                raise HeadTooLarge
        super().on_headers_complete()
        self._joining.head_is_next = True

    def send_400_response(self, msg: str) -> None:
        """For what the parser does not take; it stops as well where we do."""
        if not self._refused:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self._refused = True
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL)
            self.transport.close()
