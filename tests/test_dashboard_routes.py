"""The page over HTTP: what is served, how it is guarded, and that nothing in it points away."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from proxy.dashboard_routes import DashboardRoutes
from tests.proxied import settings_for, walking
from tests.serving import serve

FOLDER = Path(__file__).parent.parent / "proxy" / "dashboard"
MAX_SCRIPT_LINES = 400


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serve(Starlette(routes=list(DashboardRoutes().routes())), lifespan="off") as served,
        httpx.Client(base_url=served.url, trust_env=False) as client,
    ):
        yield client


def test_the_page_may_load_from_its_own_address_alone(client: httpx.Client) -> None:
    reply = client.get("/tidegate/")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        rule.strip().split(" ", 1) for rule in reply.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"


def test_every_file_that_the_page_names_is_served(client: httpx.Client) -> None:
    page = client.get("/tidegate/").text
    named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page))
    scripts = {f"page/{path.name}" for path in FOLDER.glob("*.js")}
    assert scripts <= named, "a module that is not preloaded waits for those that import it"
    for name in named:
        reply = client.get(f"/tidegate/{name}")
        assert reply.status_code == 200, name
        assert reply.headers["content-security-policy"]
        assert reply.content == (FOLDER / Path(name).name).read_bytes()


@pytest.mark.parametrize("path", ["/tidegate/", "/tidegate/page/dashboard.js"])
def test_a_file_that_is_known_is_not_sent_again(client: httpx.Client, path: str) -> None:
    first = client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    changed = client.get(path, headers={"if-none-match": '"of an older version"'})
    assert changed.content == first.content


@pytest.mark.parametrize("name", ["nothing.js", "%2e%2e%2f__init__.py", "..%2fapp.py", "a/b.js"])
def test_nothing_else_is_served(client: httpx.Client, name: str) -> None:
    assert client.get(f"/tidegate/page/{name}").status_code == 404


def test_without_the_slash_it_leads_to_the_page(client: httpx.Client) -> None:
    reply = client.get("/tidegate", follow_redirects=True)
    assert reply.status_code == 200
    assert reply.url.path == "/tidegate/"


def test_nothing_in_the_page_points_outside_or_stands_inline() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]", text), path.name
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page
    assert not re.search(r"\s(on\w+|style)=", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_no_script_reads_a_string_as_markup() -> None:
    for path in FOLDER.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < MAX_SCRIPT_LINES, path.name
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in text, f"{way} in {path.name}"
        assert "localStorage" not in text, path.name


def test_the_whole_application_serves_it_to_this_machine_alone(tmp_path: Path) -> None:
    with walking(folder=tmp_path) as walk:
        assert walk.client.get("/tidegate/").status_code == 200
        rebound = walk.client.get("/tidegate/", headers={"host": "tide.example"})
        assert rebound.status_code == 403
        assert settings_for(tmp_path, walk.provider.url, None).server.on_loopback
