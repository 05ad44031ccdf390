"""A bounded memory of what was written last, for look-ups on the way of every request: it costs a
third of a cache that also keeps the order of reading."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(OrderedDict[K, V]):
    """At most `max_entries`; whatever was written longest ago goes first. Write with `put`."""

    def __init__(self, max_entries: int) -> None:
        """Empty."""
        super().__init__()
        self._max_entries = max_entries

    def put(self, key: K, value: V) -> None:
        """Keep the value, in place of an earlier one, as the newest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
