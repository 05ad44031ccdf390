"""A listing gives so much at most, from a place that is a number."""

import pytest
from starlette.requests import Request

from proxy.core.errors import InvalidRequest
from proxy.paging import MAX_PLACE, limit_of, place_of


def request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def test_within_the_bounds_it_is_what_was_asked_for() -> None:
    assert limit_of(request(""), default=50, most=200) == 50
    assert limit_of(request("limit=200"), default=50, most=200) == 200
    assert place_of(request("after=0"), "after") == 0
    assert place_of(request(f"after={MAX_PLACE}"), "after") == MAX_PLACE


@pytest.mark.parametrize("text", ["0", "201", "-1", "1.5", "x", "", "٣", "9" * 40])
def test_anything_else_is_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        limit_of(request(f"limit={text}"), default=50, most=200)
    assert (refused.value.status, refused.value.param) == (422, "limit")
