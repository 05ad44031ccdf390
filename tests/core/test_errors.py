"""Errors know their status and show themselves in OpenAI's envelope."""

import pytest

from proxy.core import errors
from proxy.core.errors import (
    HistoryChanged,
    InvalidRequest,
    LeaseLost,
    ProviderBroke,
    ProviderError,
    ProviderTimeout,
    ProviderUnreachable,
    StoreUnavailable,
    TidegateError,
)


@pytest.mark.parametrize(
    ("kind", "status", "type_", "code"),
    [
        (TidegateError, 500, "server_error", None),
        (InvalidRequest, 400, "invalid_request_error", "invalid_request"),
        (ProviderError, 502, "upstream_error", "upstream_error"),
        (ProviderUnreachable, 502, "upstream_error", "upstream_unreachable"),
        (ProviderTimeout, 504, "upstream_error", "upstream_timeout"),
        (ProviderBroke, 502, "upstream_error", "upstream_broke"),
        (StoreUnavailable, 503, "server_error", "store_unavailable"),
        (HistoryChanged, 409, "invalid_request_error", "history_changed"),
        (LeaseLost, 409, "invalid_request_error", "conversation_busy"),
    ],
)
def test_status_and_envelope_follow_from_the_class(
    kind: type[TidegateError], status: int, type_: str, code: str | None
) -> None:
    error = kind("what happened")
    assert error.status == status
    assert str(error) == "what happened"
    assert dict(error.headers) == {}
    assert error.envelope() == {
        "error": {"message": "what happened", "type": type_, "param": None, "code": code}
    }


def test_what_is_given_overrides_the_class_for_this_error_only() -> None:
    error = InvalidRequest(
        "busy", status=409, code="conversation_busy", param="model", headers={"retry-after": "1"}
    )
    assert error.status == 409
    assert error.envelope()["error"]["code"] == "conversation_busy"
    assert error.envelope()["error"]["param"] == "model"
    assert error.headers == {"retry-after": "1"}
    assert InvalidRequest.status == 400
    assert InvalidRequest("x").code == "invalid_request"


def test_the_module_docstring_draws_every_class() -> None:
    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, TidegateError):
            assert f"{name}" in errors.__doc__
