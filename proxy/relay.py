"""What passes through and what does not: header rules, URLs and credentials, as functions.

Headers are dropped by block list and everything else passes, in order, repeated ones repeated.
Paths and queries are the raw bytes that the client sent: not decoded, not normalised.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import unquote_to_bytes, urlsplit

from proxy.codings import accepted_codings
from proxy.core.errors import InvalidRequest
from proxy.tenants import (
    CREDENTIAL_HEADERS,
    Headers,
    Tenancy,
    credentials_of,
    identify,
    without_credentials,
)

# RFC 9110 7.6.1 and its forerunners: these speak of one connection, never of the message.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# Host is the upstream's. Expect was answered here: the body is in hand before it is sent on.
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"expect"}
_CLIENT_ADDRESS = frozenset({b"forwarded", b"x-real-ip"})
_CLIENT_ADDRESS_PREFIX = b"x-forwarded-"
_OWN_PREFIX = b"x-tidegate-"

# The names under which clients send a session of theirs; kept as labels, for people.
LABEL_HEADERS = frozenset(
    {
        b"x-session-id",
        b"x-session-affinity",
        b"session-id",
        b"thread-id",
        b"x-claude-code-session-id",
    }
)
_LABEL_CHARS = 200

# Sent along with a call of our own on the client's upstream: they say who pays.
_ACCOUNT_HEADERS = CREDENTIAL_HEADERS | {b"openai-organization", b"openai-project"}

MAX_TARGET_BYTES = 16 * 1024
_NOT_IN_TARGET = re.compile(rb"[\x00-\x20\x7f#]")
# Any POST to such a path is a chat; Azure's deployments and other prefixes are part of the address.
CHAT_PATH_ENDING = b"/chat/completions"
_VERSION_SEGMENT = re.compile(rb"v\d+[a-z0-9]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Upstream:
    """One configured provider endpoint."""

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RelayRules:
    """What the operator decided about passing things on."""

    tenancy: Tenancy
    forward_client_headers: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's sender and all of the request that may be forwarded, except its body.

    `path` and `query` are raw. `headers` still hold a Content-Length where the client sent one:
    it marks where the real one goes. `accepts` are the content codings that the client decodes.
    `made` is what was made of these values before, for the next time.
    """

    tenant: str
    upstream: Upstream
    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    credential: bool
    conversation: str | None = None
    mode_off: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    accepts: frozenset[str] = frozenset()
    made: "_Made" = field(init=False, repr=False, compare=False, default_factory=lambda: _Made())

    def at(self, upstream: Upstream) -> "Caller":
        """The same caller at that upstream."""
        if upstream is self.upstream:
            return self
        there = self.made.elsewhere.get(upstream.name)
        if there is None or there.upstream is not upstream:
            there = self.made.elsewhere[upstream.name] = replace(self, upstream=upstream)
        return there


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """All that goes out before a body but its length, whose place is between the headers.
    `names_length`: it is named for an empty body too."""

    origin: str
    target: str
    before: tuple[tuple[bytes, bytes], ...]
    after: tuple[tuple[bytes, bytes], ...]
    names_length: bool


@dataclass(slots=True)
class _Made:
    plain: _Outgoing | None = None
    identity: _Outgoing | None = None
    elsewhere: dict[str, Caller] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """What goes out: bytes for the request line and headers, and the body whole or as it comes."""

    method: str
    origin: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes | AsyncIterator[bytes] = field(default=b"", repr=False)
    accepts: frozenset[str] = frozenset()


def read_caller(
    method: str,
    path: bytes,
    query: bytes,
    headers: Headers,
    *,
    rules: RelayRules,
    upstream: Upstream,
) -> Caller:
    """The caller of a request, its headers reduced to what may pass.

    Raises:
        InvalidRequest: the target is too long or climbs out of the base path.
        Unauthorized: client keys are configured and none was sent.
    """
    check_target(path, query)
    who = identify(rules.tenancy, headers, query)
    conversation: str | None = None
    accept_encoding: bytes | None = None
    mode_off = False
    labels: dict[str, str] = {}
    for name, value in headers:
        if name == b"accept-encoding":
            accept_encoding = value if accept_encoding is None else accept_encoding + b"," + value
        elif name in LABEL_HEADERS:
            labels[name.decode("latin-1")] = value.decode("latin-1")[:_LABEL_CHARS]
        elif name == b"x-tidegate-conversation":
            conversation = value.decode("latin-1").strip()[:_LABEL_CHARS] or None
        elif name == b"x-tidegate-mode":
            mode_off = value.strip().lower() == b"off"
    passing: Headers = _passing(headers, forward_client_headers=rules.forward_client_headers)
    if rules.tenancy.client_keys:
        passing, query = without_credentials(passing, query)
    return Caller(
        tenant=who.tenant,
        upstream=upstream,
        method=method,
        path=path,
        query=query,
        headers=tuple(passing),
        credential=who.credential,
        conversation=conversation,
        mode_off=mode_off,
        labels=labels,
        accepts=accepted_codings(accept_encoding),
    )


def check_target(path: bytes, query: bytes) -> None:
    """Refuses what is too long, and dot segments, which would climb out of the base path."""
    if len(path) + len(query) > MAX_TARGET_BYTES:
        raise InvalidRequest(
            f"The request target is longer than {MAX_TARGET_BYTES} bytes.",
            status=414,
            code="uri_too_long",
        )
    if not path.startswith(b"/"):
        raise InvalidRequest("The request target must be a path.")
    if b"." in path or b"%2" in path:
        decoded = unquote_to_bytes(path).replace(b"\\", b"/")
        if any(segment in (b".", b"..") for segment in decoded.split(b"/")):
            raise InvalidRequest("The path contains '.' or '..' segments.")
    if _NOT_IN_TARGET.search(path) or _NOT_IN_TARGET.search(query):
        raise InvalidRequest("The request target contains control characters or spaces.")


def connection_names(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The headers that Connection lists, which speak of one connection as well."""
    names = [value for name, value in headers if name.lower() == b"connection"]
    if not names or names in ([b"keep-alive"], [b"close"]):
        return frozenset()
    return frozenset(item.strip().lower() for value in names for item in value.split(b","))


def _passing(headers: Headers, *, forward_client_headers: bool) -> list[tuple[bytes, bytes]]:
    listed = connection_names(headers)
    passing = []
    for item in headers:
        name = item[0].lower()
        if name in _NOT_FORWARDED or name in listed or name.startswith(_OWN_PREFIX):
            continue
        if not forward_client_headers and (
            name in _CLIENT_ADDRESS or name.startswith(_CLIENT_ADDRESS_PREFIX)
        ):
            continue
        passing.append(item)
    return passing


def provider_request(caller: Caller, body: bytes, *, identity: bool = False) -> ProviderRequest:
    """The caller's request with this body. `identity` asks for an uncompressed reply."""
    outgoing = _outgoing(caller, identity=identity)
    headers = outgoing.before
    if body or outgoing.names_length:
        headers = (*headers, (b"content-length", b"%d" % len(body)), *outgoing.after)
    else:
        headers += outgoing.after
    return ProviderRequest(
        method=caller.method,
        origin=outgoing.origin,
        target=outgoing.target,
        headers=headers,
        body=body,
        accepts=frozenset() if identity else caller.accepts,
    )


def streamed_request(
    caller: Caller, body: AsyncIterator[bytes], *, declared: bytes
) -> ProviderRequest:
    """The caller's request with its body still to come, and the length that the client declared."""
    outgoing = _outgoing(caller, identity=False)
    length = ((b"content-length", declared),) if outgoing.names_length else ()
    return ProviderRequest(
        method=caller.method,
        origin=outgoing.origin,
        target=outgoing.target,
        headers=(*outgoing.before, *length, *outgoing.after),
        body=body,
        accepts=caller.accepts,
    )


def own_request(
    upstream: Upstream, body: bytes, *, caller: Caller | None = None
) -> ProviderRequest:
    """A chat call of Tidegate's own: by the caller's account on its upstream, else our key."""
    headers: list[tuple[bytes, bytes]] = []
    path, query = b"/v1/chat/completions", b""
    if caller is not None and caller.upstream == upstream:
        headers = [item for item in caller.headers if item[0].lower() in _ACCOUNT_HEADERS]
        query = caller.query
        if caller.path.endswith(CHAT_PATH_ENDING):
            path = caller.path
    headers.append((b"content-type", b"application/json"))
    headers.append((b"accept-encoding", b"identity"))
    plain = Caller(
        tenant=caller.tenant if caller is not None else "",
        upstream=upstream,
        method="POST",
        path=path,
        query=query,
        headers=tuple(headers),
        credential=caller.credential if caller is not None else False,
    )
    return provider_request(plain, body)


def without_content_encoding(caller: Caller) -> Caller:
    """The caller of a body whose coding was undone."""
    kept = tuple(item for item in caller.headers if item[0].lower() != b"content-encoding")
    return replace(caller, headers=kept)


def _outgoing(caller: Caller, *, identity: bool) -> _Outgoing:
    made = caller.made
    outgoing = made.identity if identity else made.plain
    if outgoing is not None:
        return outgoing
    outgoing = _make_outgoing(caller, identity=identity)
    if identity:
        made.identity = outgoing
    else:
        made.plain = outgoing
    return outgoing


def _make_outgoing(caller: Caller, *, identity: bool) -> _Outgoing:
    origin, target = provider_url(caller.upstream.base_url, caller.path, caller.query)
    before: list[tuple[bytes, bytes]] = []
    after: list[tuple[bytes, bytes]] = []
    names_length = False
    for item in caller.headers:
        name = item[0].lower()
        if name == b"content-length":
            names_length = True
        elif not (identity and name == b"accept-encoding"):
            (after if names_length else before).append(item)
    if identity:
        after.append((b"accept-encoding", b"identity"))
    key = caller.upstream.api_key
    if key and not credentials_of(before + after, caller.query):
        after.append(_key_header(origin, key))
    return _Outgoing(origin, target, tuple(before), tuple(after), names_length)


def _key_header(origin: str, key: str) -> tuple[bytes, bytes]:
    """Azure reads its keys from `api-key`; everyone else a bearer token."""
    if ".azure." in origin:
        return (b"api-key", key.encode())
    return (b"authorization", b"Bearer " + key.encode())


@lru_cache(maxsize=64)
def split_base(base_url: str) -> tuple[str, bytes, bytes]:
    """A base URL's origin, its path without trailing slashes, its query."""
    parts = urlsplit(base_url)
    return (
        f"{parts.scheme}://{parts.netloc}",
        parts.path.rstrip("/").encode(),
        parts.query.encode(),
    )


def provider_url(base_url: str, path: bytes, query: bytes) -> tuple[str, str]:
    """Origin and target: the client's path less `/v1`, appended to the base.

    A base without a path gets `/v1`, but not when the client's path names a version or a deployment
    of its own (`/v1beta/openai/...`, `/openai/deployments/x/...`).
    """
    origin, base_path, base_query = split_base(base_url)
    rest = path[3:] if path == b"/v1" or path.startswith(b"/v1/") else path
    if not base_path and (rest is not path or not _names_its_own_place(path)):
        base_path = b"/v1"
    target = (base_path + rest) or b"/"
    queries = [part for part in (base_query, query) if part]
    if queries:
        target += b"?" + b"&".join(queries)
    return origin, target.decode("latin-1")


def _names_its_own_place(path: bytes) -> bool:
    segments = path.split(b"/")
    return b"deployments" in segments or any(_VERSION_SEGMENT.fullmatch(s) for s in segments)


def listing_request(caller: Caller, method: str, url: str, body: bytes) -> ProviderRequest:
    """A question of Tidegate's own about the upstream's models, by the caller's account.

    `url` is derived from the configured base, never from what a client sent.
    """
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    headers = [item for item in caller.headers if item[0].lower() in _ACCOUNT_HEADERS]
    headers.append((b"accept", b"application/json"))
    headers.append((b"accept-encoding", b"identity"))
    if body:
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(body)))
    key = caller.upstream.api_key
    if key and not credentials_of(headers, caller.query):
        headers.append(_key_header(origin, key))
    return ProviderRequest(
        method=method, origin=origin, target=target, headers=tuple(headers), body=body
    )
