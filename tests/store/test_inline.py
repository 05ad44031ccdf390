"""Look-ups that are answered at once say the same as those that go to a thread, or nothing."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import select

from proxy.store.inline import InlineReader
from proxy.store.schema import replacements
from proxy.store.sql import SqlStore
from tests.store.samples import SCOPE, chain_of, new_of

BY_MODEL = select(replacements.c.seq).where(replacements.c.model == "gpt")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tidegate.db"


async def test_a_row_is_found_as_soon_as_it_is_committed(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    reader = InlineReader(path)
    try:
        of_scope = select(replacements.c.seq).where(replacements.c.model == SCOPE.model)
        assert reader.rows(of_scope, {}) == []
        chain = chain_of("abcd")
        await store.commit(
            SCOPE,
            chain[0],
            chain,
            planned_on=(),
            new=[new_of(chain, 2)],
            lease=None,
            conversation="c",
        )
        assert reader.rows(of_scope, {})
        assert await store.replacements(SCOPE, chain[0], chain)
    finally:
        reader.close()
        await store.close()


def test_a_file_that_is_not_there_says_nothing_and_is_not_made(path: Path) -> None:
    assert InlineReader(path).rows(BY_MODEL, {}) is None
    assert not path.exists()


def test_a_file_that_is_no_database_says_nothing(path: Path) -> None:
    path.write_bytes(b"no database " * 100)
    assert InlineReader(path).rows(BY_MODEL, {}) is None


def test_a_locked_file_says_nothing_at_once(path: Path) -> None:
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE replacements (seq INTEGER, model TEXT)")
    reader = InlineReader(path)
    assert reader.rows(BY_MODEL, {}) == []
    writer.execute("BEGIN EXCLUSIVE")
    assert reader.rows(BY_MODEL, {}) is None
    writer.execute("ROLLBACK")
    assert reader.rows(BY_MODEL, {}) == []
    reader.close()
    writer.close()
