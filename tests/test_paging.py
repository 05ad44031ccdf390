"""A listing gives so much at most, from a place that is a number."""

import pytest
from starlette.requests import Request

from proxy.core.errors import InvalidRequest
from proxy.paging import MAX_PLACE, flag_of, limit_of, place_of


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


@pytest.mark.parametrize(
    ("query", "said"), [("", False), ("newest=false", False), ("newest=true", True)]
)
def test_a_flag_is_set_or_it_is_not(query: str, said: bool) -> None:
    assert flag_of(request(query), "newest") is said


@pytest.mark.parametrize("text", ["", "1", "True", "yes"])
def test_a_flag_that_is_something_else_is_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        flag_of(request(f"newest={text}"), "newest")
    assert (refused.value.status, refused.value.param) == (422, "newest")
