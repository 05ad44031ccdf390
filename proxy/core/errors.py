"""Every error Tidegate raises on purpose, named by who is at fault, each knowing its HTTP status.

TidegateError
  InvalidRequest        the client's (400, 413, 422, 404, 409 by subclass or argument)
  ProviderError         the upstream's
    ProviderUnreachable   no connection (502)
    ProviderTimeout       no first byte in time (504)
    ProviderBroke         the reply broke off after it began (no status is left to send)
  StoreUnavailable      the database's: work goes on degraded
  HistoryChanged        a race: what was planned on is no longer what applies
  LeaseLost             a race: the running compaction is not ours any more
"""

from collections.abc import Mapping
from typing import Any


class TidegateError(Exception):
    """An error that can be shown to a client in OpenAI's envelope."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`message` says what happened, where, and what to do about it."""
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        self.param = param
        self.headers: Mapping[str, str] = headers or {}

    def envelope(self) -> dict[str, Any]:
        """OpenAI's error envelope, the only shape in which an error of ours reaches a client."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequest(TidegateError):
    """The client sent something that cannot be served as it is."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class ProviderError(TidegateError):
    """The upstream did not answer as an upstream should."""

    status = 502
    type = "upstream_error"
    code = "upstream_error"


class ProviderUnreachable(ProviderError):
    """No connection to the upstream could be made, or it closed before any response byte."""

    code = "upstream_unreachable"


class ProviderTimeout(ProviderError):
    """The upstream sent no byte within the configured time."""

    status = 504
    code = "upstream_timeout"


class ProviderBroke(ProviderError):
    """The reply broke off after its headers; downstream must see a break too, never a clean end."""

    code = "upstream_broke"


class StoreUnavailable(TidegateError):
    """The store did not answer; requests go on, degraded."""

    status = 503
    code = "store_unavailable"


class HistoryChanged(TidegateError):
    """Another commit came first; the loser reads the winner's surface and goes on."""

    status = 409
    type = "invalid_request_error"
    code = "history_changed"


class LeaseLost(TidegateError):
    """The lease of a running compaction expired or was taken over; nothing may be written."""

    status = 409
    type = "invalid_request_error"
    code = "conversation_busy"
