"""What is read back of a conversation, and what is said when it is not there."""

from pathlib import Path

import pytest

from proxy.journal import Journal
from proxy.logged import ConversationNotFound, HistoryUnavailable, Logged
from proxy.store.sql import SqlStore
from proxy.store.store import Turn

HEAD = b'[{"role":"system","content":"careful"}]'
TOOLS = b'[{"type":"function","function":{"name":"f"}}]'
RAW = (b'{"role":"user","content":"a"}', b'{"role":"assistant","content":"b", "x":1.0}')


def turn(**changes: object) -> Turn:
    chain = [b"a" * 16, b"b" * 16]
    given = {"fingerprints": chain, "bodies": RAW, "head": HEAD, "tools": TOOLS, **changes}
    return Turn("t", "c", 1.0, "default", "m", chain[0], chain[-1], 2, **given)  # type: ignore[arg-type]


@pytest.fixture
async def parts(tmp_path: Path) -> tuple[Logged, Journal, SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path}/tidegate.db")
    await store.open()
    journal = Journal(store)
    return Logged(store, journal), journal, store


Parts = tuple[Logged, Journal, SqlStore]


async def test_the_last_request_is_read_as_it_was_sent(parts: Parts) -> None:
    """What was recorded a moment ago is written first."""
    logged, journal, store = parts
    journal.turn(turn())
    history = await logged.history(await logged.conversation("t", "c"))
    assert history.request.raw_history == RAW
    assert history.request.head == ({"role": "system", "content": "careful"},)
    assert history.request.fields["tools"] == TOOLS
    assert history.chain == (b"a" * 16, b"b" * 16)
    assert await logged.steps(await logged.conversation(None, "c")) == ()
    await store.close()


@pytest.mark.parametrize("head", [None, b"[]"])
async def test_without_head_and_tools_too(parts: Parts, head: bytes | None) -> None:
    logged, journal, store = parts
    journal.turn(turn(head=head, tools=None))
    history = await logged.history(await logged.conversation("t", "c"))
    assert history.request.messages == history.request.history
    assert "tools" not in history.request.fields
    await store.close()


async def test_what_is_not_there_is_said(parts: Parts) -> None:
    logged, journal, store = parts
    with pytest.raises(ConversationNotFound):
        await logged.conversation("t", "c")
    journal.turn(turn(fingerprints=[], bodies=None))
    conversation = await logged.conversation("t", "c")
    with pytest.raises(ConversationNotFound):
        await logged.conversation("another", "c")
    with pytest.raises(HistoryUnavailable):
        await logged.history(conversation)
    assert await logged.steps(conversation) == ()
    await store.close()
