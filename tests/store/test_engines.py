"""URLs, and the privacy of a SQLite file."""

import stat
from pathlib import Path

import pytest

from proxy.store.engines import is_memory, is_postgresql, make_private, store_url
from proxy.store.sql import SqlStore


class TestUrl:
    @pytest.mark.parametrize(
        ("text", "rendered"),
        [
            ("sqlite:///tidegate.db", "sqlite+aiosqlite:///tidegate.db"),
            ("sqlite:////var/lib/t.db", "sqlite+aiosqlite:////var/lib/t.db"),
            ("sqlite+aiosqlite:///t.db", "sqlite+aiosqlite:///t.db"),
            ("sqlite://", "sqlite+aiosqlite://"),
            ("postgresql+asyncpg://u:p@h:5/d", "postgresql+asyncpg://u:p@h:5/d"),
            ("postgresql://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
            ("postgres://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
            (
                "postgresql://u@h/d?sslmode=require",
                "postgresql+asyncpg://u@h/d?ssl=require",
            ),
        ],
    )
    def test_gets_its_asynchronous_driver(self, text: str, rendered: str) -> None:
        assert store_url(text).render_as_string(hide_password=False) == rendered

    @pytest.mark.parametrize("text", ["", "tidegate.db", "mysql://u:secret@h/d", "sqlite:x"])
    def test_of_another_kind_is_refused_without_its_password(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"store\.url") as raised:
            store_url(text)
        assert "secret" not in str(raised.value)

    def test_says_which_database_it_is(self) -> None:
        kinds = {
            text: (is_postgresql(store_url(text)), is_memory(store_url(text)))
            for text in ("sqlite://", "sqlite:///:memory:", "sqlite:///t.db", "postgres://h/d")
        }
        assert list(kinds.values()) == [(False, True), (False, True), (False, False), (True, False)]


class TestFile:
    async def test_only_its_owner_can_read_it_and_what_stands_beside_it(
        self, tmp_path: Path
    ) -> None:
        store = SqlStore(f"sqlite:///{tmp_path}/made/on/the/way/tidegate.db")
        await store.secret("name")
        names = ("tidegate.db", "tidegate.db-wal", "tidegate.db-shm")
        assert _files(tmp_path / "made/on/the/way") == dict.fromkeys(names, 0o600)
        await store.close()

    def test_an_existing_file_is_closed_to_others(self, tmp_path: Path) -> None:
        names = ("t.db", "t.db-wal", "t.db-shm")
        for name in names:
            (tmp_path / name).touch(mode=0o644)
        make_private(tmp_path / "t.db")
        assert {_mode(tmp_path / name) for name in names} == {0o600}

    async def test_memory_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = SqlStore("sqlite://")
        first = await store.secret("name")
        assert await store.secret("name") == first
        await store.close()
        assert _files(tmp_path) == {}


def _files(directory: Path) -> dict[str, int]:
    return {path.name: _mode(path) for path in directory.iterdir()}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
