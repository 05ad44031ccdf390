"""Who sends a request: the credential it carries, and the tenant derived from it.

A tenant is only ever known as a keyed hash; the credential itself is compared, forwarded, and never
stored or logged.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import unquote_plus

from proxy.core.errors import TidegateError

Headers = Sequence[tuple[bytes, bytes]]

CREDENTIAL_HEADERS = frozenset({b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key"})
CREDENTIAL_PARAMETER = b"key"

_DIGEST_BYTES = 16


class Unauthorized(TidegateError):
    """The request carries none of the configured client keys."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


@dataclass(frozen=True, slots=True)
class Tenancy:
    """How a request's tenant is found. `secret` keys every stored digest."""

    secret: bytes = field(repr=False)
    client_keys: tuple[str, ...] = field(default=(), repr=False)
    tenant_header: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The tenant's keyed hash, and whether a credential (or a trusted name) stood behind it."""

    tenant: str
    credential: bool


def identify(tenancy: Tenancy, headers: Headers, query: bytes) -> Identity:
    """The tenant: client key, else the trusted header's value, else the credentials as sent.

    Raises:
        Unauthorized: `client_keys` are set and the request carries none of them.
    """
    sent = credentials_of(headers, query)
    if tenancy.client_keys:
        key = _client_key(tenancy.client_keys, sent)
        return Identity(_digest(tenancy.secret, b"client-key", key), credential=True)
    if tenancy.tenant_header:
        wanted = tenancy.tenant_header.lower().encode()
        for name, value in headers:
            if name.lower() == wanted and value:
                return Identity(_digest(tenancy.secret, b"named", value), credential=True)
    parts = [part for name, value in sorted(sent) for part in (name, value)]
    return Identity(_digest(tenancy.secret, b"credential", *parts), credential=bool(sent))


def credentials_of(headers: Headers, query: bytes) -> list[tuple[bytes, bytes]]:
    """Every credential sent, as (where, value); empty ones are none."""
    found = [
        (name.lower(), value)
        for name, value in headers
        if value and name.lower() in CREDENTIAL_HEADERS
    ]
    for item in query.split(b"&") if query else ():
        name, _, value = item.partition(b"=")
        if name == CREDENTIAL_PARAMETER and value:
            found.append((b"?key", value))
    return found


def without_credentials(headers: Headers, query: bytes) -> tuple[Headers, bytes]:
    """The headers and the query less every credential, for a key that is Tidegate's own."""
    kept = tuple(item for item in headers if item[0].lower() not in CREDENTIAL_HEADERS)
    if CREDENTIAL_PARAMETER + b"=" not in query:
        return kept, query
    items = (i for i in query.split(b"&") if i.partition(b"=")[0] != CREDENTIAL_PARAMETER)
    return kept, b"&".join(items)


def _client_key(keys: Sequence[str], sent: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The configured key that was sent. Every pair is compared, in constant time each."""
    matched = b""
    for where, value in sent:
        offered = value
        if where == b"authorization":
            scheme, _, rest = value.partition(b" ")
            offered = rest.strip() if scheme.lower() == b"bearer" else value
        elif where == b"?key":
            offered = unquote_plus(value.decode("latin-1")).encode()
        for key in keys:
            wanted = key.encode()
            if hmac.compare_digest(wanted, offered):
                matched = wanted
    if not matched:
        raise Unauthorized("Incorrect API key provided: this proxy takes only its own client keys.")
    return matched


def _digest(secret: bytes, *parts: bytes) -> str:
    """A keyed hash over length-prefixed parts, so that no two lists of parts read the same."""
    keyed = blake2b(key=secret[:64], digest_size=_DIGEST_BYTES)
    for part in parts:
        keyed.update(len(part).to_bytes(8, "big"))
        keyed.update(part)
    return keyed.hexdigest()
