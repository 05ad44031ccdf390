"""Every log line written while a request is served carries that request's id.

The id lives in a context variable, which tasks started by the request inherit.
"""

import logging
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


class BrokenReplyFilter(logging.Filter):
    """Drops uvicorn's own line about a reply left unfinished: that is how a break is passed on.

    For the logger `uvicorn.error`. Tidegate has logged the break itself, with its cause.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record but that one."""
        return record.msg != "ASGI callable returned without completing response."
