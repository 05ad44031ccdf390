"""What the head of a request says, read once for all requests that begin alike.

A client sends the same method, target and headers every time, but for the length of the body. So a
head that was read before is known by its bytes, and what was made of it is used again. Client keys
are compared all the same, each time and in constant time, before anything is looked up.
"""

from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from proxy.codings import codings_of
from proxy.core.errors import InvalidRequest
from proxy.core.newest import Newest
from proxy.relay import CHAT_PATH_ENDING, Caller, RelayRules, Upstream, read_caller
from proxy.tenants import Headers, identify
from proxy.wire import MAX_MODEL_CHARS

HEADS_REMEMBERED = 256
MAX_REMEMBERED_BYTES = 8 * 1024  # of one head; longer ones are read each time

_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})
_LENGTH_MARK = (b"content-length", b"")


@dataclass(frozen=True, slots=True)
class Head:
    """One request's head. `codings` are the body's; `deployment` is the model that an Azure-style
    path names, else ""; `waits` for a word from us before it sends its body."""

    caller: Caller
    is_chat: bool
    says_json: bool
    waits: bool
    codings: tuple[str, ...]
    deployment: str


class Callers:
    """Reads heads, and remembers the last few hundred different ones, credentials included."""

    def __init__(self, rules: RelayRules, upstream: Upstream) -> None:
        """All callers start out at this upstream."""
        self._rules = rules
        self._upstream = upstream
        self._heads: Newest[tuple[Any, ...], Head] = Newest(HEADS_REMEMBERED)

    def read(self, scope: Scope) -> tuple[Head, bytes]:
        """The head, and the Content-Length as sent, b"" for none.

        Raises:
            InvalidRequest: nothing of the kind is relayed.
            Unauthorized: client keys are configured and none was sent.
        """
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        query: bytes = scope["query_string"]
        if self._rules.tenancy.client_keys:
            identify(self._rules.tenancy, headers, query)
        declared = b""
        for index, (name, value) in enumerate(headers):
            if name == b"content-length":
                declared = value
                headers = [*headers[:index], _LENGTH_MARK, *headers[index + 1 :]]
        key = (scope["method"], scope["raw_path"], query, *headers)
        head = self._heads.get(key)
        if head is None:
            head = self._read(scope["method"], scope["raw_path"], query, headers)
            self._remember(key, head)
        return head, declared

    def _read(self, method: str, path: bytes, query: bytes, headers: Headers) -> Head:
        by_name = dict(headers)
        if method in _REFUSED_METHODS:
            raise InvalidRequest(
                f"The method {method} is not relayed.", status=405, code="bad_method"
            )
        if b"websocket" in by_name.get(b"upgrade", b"").lower():
            raise InvalidRequest(
                "Tidegate relays HTTP; WebSocket connections are not supported.",
                status=426,
                code="upgrade_not_supported",
            )
        return Head(
            caller=read_caller(
                method, path, query, headers, rules=self._rules, upstream=self._upstream
            ),
            is_chat=method == "POST" and path.endswith(CHAT_PATH_ENDING),
            says_json=b"json" in by_name.get(b"content-type", b"").lower(),
            waits=b"expect" in by_name,
            codings=codings_of(by_name.get(b"content-encoding", b"")),
            deployment=_deployment(path),
        )

    def _remember(self, key: tuple[Any, ...], head: Head) -> None:
        _, path, query, *headers = key
        size_bytes = len(path) + len(query) + sum(len(n) + len(v) for n, v in headers)
        if size_bytes <= MAX_REMEMBERED_BYTES:
            self._heads.put(key, head)


def _deployment(path: bytes) -> str:
    _, found, rest = path.partition(b"/deployments/")
    name = rest.partition(b"/")[0]
    return name.decode("latin-1") if found and len(name) <= MAX_MODEL_CHARS else ""
