"""Settings as lines of TOML for people to read, with every secret and every URL's query masked."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "********"
_USER_INFO = re.compile(r"(?<=://)([^/@]*)@")
_QUERY = re.compile(r"\?.*$")
# Small tables that read better on one line.
_INLINE = frozenset({"keep"})


def lines_of(values: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """The lines of a table: its own keys, then its tables under their headers; None is left out."""
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in values.items():
        path = f"{section}.{key}" if section else key
        if not section and isinstance(value, (list, tuple)):
            tables += [(f"[[{path}]]", rule) for rule in value]
        elif isinstance(value, Mapping) and key not in _INLINE:
            tables.append((f"[{path}]", value))
        elif value is not None:
            yield f"{key} = {_text(value)}"
    for header, table in tables:
        if any(not isinstance(value, Mapping) or key in _INLINE for key, value in table.items()):
            yield ""
            yield header
        yield from lines_of(table, header.strip("[]"))


def masked_url(url: str) -> str:
    """A URL without user, password and query values."""
    return _QUERY.sub(f"?{MASK}", _USER_INFO.sub(f"{MASK}@", url))


def _text(value: Any) -> str:
    if hasattr(value, "get_secret_value"):
        secret = value.get_secret_value()
        return json.dumps(masked_url(secret) if "://" in secret else MASK)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_text(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and "://" in value:
        value = masked_url(value)
    return json.dumps(value, ensure_ascii=False)
