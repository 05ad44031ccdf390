"""Every log line written while a request is served carries that request's id.

The id lives in a context variable, which tasks started by the request inherit.
"""

import logging
import time
from contextvars import ContextVar
from random import getrandbits

_REQUEST_ID: ContextVar[str] = ContextVar("tidegate_request_id", default="-")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s request_id=%(request_id)s %(message)s"


def begin_request() -> str:
    """A new id, current from here on in this task and those it starts."""
    request_id = f"{getrandbits(64):016x}"  # told apart, not kept secret: no system call for it
    _REQUEST_ID.set(request_id)
    return request_id


def current_request_id() -> str:
    """The id of the request being served, "-" outside of one."""
    return _REQUEST_ID.get()


class RequestIdFilter(logging.Filter):
    """Adds `request_id` to every record; to be attached to handlers, whose format names it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        record.request_id = _REQUEST_ID.get()
        return True


class LineFormatter(logging.Formatter):
    """`LOG_FORMAT`. A second is written out once, for all the lines that fall into it."""

    _second: tuple[int, str] = (0, "")

    def __init__(self) -> None:
        """In the time of this machine, as `logging` writes it."""
        super().__init__(LOG_FORMAT)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Date, time, and milliseconds."""
        second, written = self._second
        if second != int(record.created):
            second = int(record.created)
            written = time.strftime(self.default_time_format, self.converter(second))
            self._second = second, written
        return f"{written},{record.msecs:03.0f}"


class ServerLinesFilter(logging.Filter):
    """For the logger `uvicorn.error`, whose name says error where it means the server.

    Two kinds of lines are dropped. A reply left unfinished is how a break is passed on, which
    Tidegate has logged itself with its cause. And a server beside the command's own, in a thread
    of the name given, starts and stops without a word.
    """

    def __init__(self, quiet_thread: str) -> None:
        """Warnings of that thread are kept."""
        super().__init__()
        self._quiet_thread = quiet_thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every other record, under the name `uvicorn`."""
        record.name = "uvicorn"
        if record.threadName == self._quiet_thread and record.levelno < logging.WARNING:
            return False
        return record.msg != "ASGI callable returned without completing response."
