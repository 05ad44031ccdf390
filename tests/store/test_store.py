"""The values that pass through a store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import InvalidRequest
from proxy.store.store import Conversation, Event, EventKind, Lease, read_cursor
from tests.store.samples import SCOPE


def conversation(tenant: str, id: str, seen_at: float) -> Conversation:
    return Conversation(
        tenant=tenant,
        id=id,
        root=b"",
        last_fingerprint=b"",
        message_count=0,
        upstream="default",
        model="model-1",
        head=None,
        tools=None,
        labels={},
        gauge={},
        created_at=0.0,
        seen_at=seen_at,
    )


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_a_cursor_is_read_back_exactly(tenant: str, id: str, seen_at: float) -> None:
    assert read_cursor(conversation(tenant, id, seen_at).cursor) == (seen_at, tenant, id)


@given(st.text())
def test_any_text_is_a_cursor_or_a_clients_mistake(text: str) -> None:
    try:
        place = read_cursor(text)
    except InvalidRequest:
        return
    assert len(place) == 3


def test_a_cursor_of_a_wrong_shape_is_a_clients_mistake() -> None:
    with pytest.raises(InvalidRequest):
        read_cursor("WzEsMl0")


def test_the_scope_of_a_conversation_is_where_it_was_last() -> None:
    assert conversation("tenant-a", "one", 1.0).scope == SCOPE


def test_events_have_ids_of_their_own() -> None:
    first, second = (Event("t", "c", EventKind.REQUEST, 1.0) for _ in range(2))
    assert first.id != second.id


def test_a_token_is_not_shown() -> None:
    assert "hidden" not in repr(Lease(SCOPE, b"", 1, b"", "worker", "hidden", 0.0))
