"""The page at `/tidegate/`, from files of the package: no request leaves for anywhere else, no text
of a message becomes markup, and a new version is seen at the next reload."""

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from proxy.answers import http_date

PAGE_PATH = "/tidegate/"
FILES_PATH = "/tidegate/page/{name}"
INDEX = "index.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Trusted types: Chromium refuses every way in which a script could read a string as markup.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept by browsers, and asked about at every load: a page never runs with scripts of another.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page; `etag` is of its bytes."""

    body: bytes = field(repr=False)
    media_type: str
    etag: str


class DashboardRoutes:
    """The page and its files. They hold nothing of anybody, and are open to who reaches them."""

    def __init__(self) -> None:
        """Reads the files once."""
        self._files = {
            entry.name: _read(entry.name, entry.read_bytes())
            for entry in files("proxy").joinpath("dashboard").iterdir()
            if _type_of(entry.name) is not None
        }

    def routes(self) -> tuple[BaseRoute, ...]:
        """All of them."""
        return (
            Route(PAGE_PATH, self._index, methods=["GET"]),
            Route(PAGE_PATH.rstrip("/"), self._to_index, methods=["GET"]),
            Route(FILES_PATH, self._file, methods=["GET"]),
        )

    async def _index(self, request: Request) -> Response:
        return _served(request, self._files[INDEX])

    async def _to_index(self, request: Request) -> Response:
        # Relative, so that it holds behind a front that serves this under another path.
        return Response(status_code=308, headers={"location": "tidegate/", "date": _now()})

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404)
        return _served(request, self._files[name])


def _read(name: str, body: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return PageFile(body, _type_of(name) or "", etag)


def _type_of(name: str) -> str | None:
    return _TYPES.get(name[name.rfind(".") :])


def _served(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "etag": file.etag, "date": _now()}
    known = {tag.strip().removeprefix("W/") for tag in _tags(request)}
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.media_type})


def _tags(request: Request) -> list[str]:
    return request.headers.get("if-none-match", "").split(",")


def _now() -> str:
    return http_date().decode()
