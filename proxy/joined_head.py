"""An answer's head goes out together with what follows it at once: one system call and one packet
less than uvicorn's two. A head that nothing follows waits for nothing: it goes out in the same turn
of the loop."""

import asyncio
from typing import Any

# What is longer is not copied to go behind the head.
MAX_COPIED_BYTES = 64 * 1024


class JoiningTransport:
    """A connection's transport, as far as uvicorn's protocol over httptools uses one."""

    __slots__ = (
        "_head",
        "_loop",
        "_transport",
        "get_extra_info",
        "head_is_next",
        "is_closing",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """`head_is_next` is set when a request has come: the next that is written is a head."""
        self.head_is_next = False
        self._head = b""
        self._transport = transport
        self._loop = loop
        self.get_extra_info: Any = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        """Sends it, behind what waits; a head waits for what follows."""
        if self._head:
            if not data:
                return
            head, self._head = self._head, b""
            if len(data) <= MAX_COPIED_BYTES:
                self._transport.write(head + data)
            else:
                self._transport.writelines((head, data))
        elif self.head_is_next:
            self.head_is_next = False
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Ends the connection, once everything is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)
