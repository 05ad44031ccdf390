"""What was written last is kept, and no more than that."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.newest import Newest


@given(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2))), st.integers(1, 12))
def test_it_holds_the_keys_written_last(written: list[tuple[int, str]], max_entries: int) -> None:
    newest: Newest[int, str] = Newest(max_entries)
    for key, value in written:
        newest.put(key, value)
    last_first = list(dict.fromkeys(key for key, _ in reversed(written)))
    assert list(newest) == last_first[:max_entries][::-1]
    assert dict(newest).items() <= dict(written).items()


def test_reading_keeps_nothing_longer() -> None:
    newest: Newest[str, int] = Newest(2)
    newest.put("a", 1)
    newest.put("b", 2)
    assert newest.get("a") == 1
    newest.put("c", 3)
    assert list(newest) == ["b", "c"]
