"""The page at `/tidegate/` in a real Chromium: what somebody sees and does there, live, with the
keyboard, on a phone, in the dark. No console error anywhere, nothing that axe objects to."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.proxied import Walk, assistant, system, text_of_tokens, user, walking
from tests.strict_provider import StrictProvider

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
WAIT_MS = 10_000
PANE_MOST = 360
GROUND = "getComputedStyle(document.body).backgroundColor"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>alert(1)</script>"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _missing(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """One Chromium for the module."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("the package playwright")
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        _missing("Chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=_FLAGS)
        yield chromium
        chromium.close()


@dataclass(frozen=True)
class Window:
    """A page in the browser, and what its console complained about."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)

    def said(self, message: "ConsoleMessage") -> None:
        """What the console heard; only what is wrong is kept."""
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def gauge(self) -> int:
        """The tokens that the open conversation's gauge shows."""
        shown = self.page.locator(".gauge-block").get_attribute("data-tokens")
        assert shown
        return int(shown)

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait for an expression over `argument` in the page."""
        self.page.wait_for_function(f"(it) => {condition}", arg=argument)

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()


Opened = Callable[..., "AbstractContextManager[Window]"]


@pytest.fixture
def opened(browser: "Browser") -> Opened:
    """Opens the page of a walk, and closes it while the proxy still answers. Nothing may have been
    complained about, unless the browser itself notes what the test is about."""

    @contextmanager
    def open_(
        walk: Walk, address: str = "", *, quiet: bool = True, **context: Any
    ) -> Iterator[Window]:
        made = browser.new_context(**{"viewport": LAPTOP, **context})
        made.set_default_timeout(WAIT_MS)
        window = Window(made.new_page())
        window.page.on("pageerror", lambda error: window.complaints.append(str(error)))
        window.page.on("console", lambda message: window.said(message))
        window.page.goto(f"{walk.client.base_url}/tidegate/{address}")
        try:
            yield window
        finally:
            made.close()
        assert not quiet or window.complaints == []

    return open_


def grown(walk: Walk, turns: int, **how: Any) -> str:
    """A conversation of so many turns, played through the proxy; its id."""
    return list(growing(walk, turns, **how))[-1]


def growing(
    walk: Walk, turns: int, *, tokens: int = 180, name: str | None = None, first: str = "question"
) -> Iterator[str]:
    """The same turn by turn."""
    headers = {"x-tidegate-conversation": name} if name else None
    messages = [system()]
    for n in range(turns):
        messages.append(user(text_of_tokens(tokens, f"{first} {n}:")))
        yield walk.ask(messages, headers=headers).facts["conversation"]
        messages.append(assistant(text_of_tokens(tokens, f"answer {n}:")))


def clean(window: Window) -> None:
    """Nothing that axe calls a violation, however small."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    found = Axe().run(window.page).response["violations"]
    told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
    assert told == []


@contextmanager
def compacting() -> Iterator[tuple[Walk, str]]:
    """A proxy with one conversation that was compacted once, and one that was not."""
    with walking(6000) as walk:
        grown(walk, 3, name="short one", first="asked briefly")
        yield walk, grown(walk, 16)


def test_it_starts_empty_and_says_what_to_do_first(opened: Opened) -> None:
    with walking() as walk, opened(walk) as window:
        window.page.get_by_text("No conversation yet").wait_for()
        assert f"{walk.client.base_url}/v1" in window.text(".start")
        window.page.get_by_text("Live", exact=True).wait_for()
        clean(window)
        walk.ask([user(f"Which tide is it? {HOSTILE}")])
        row = window.page.locator("a.row")
        row.wait_for()
        assert HOSTILE in row.inner_text()
        assert row.locator(".gauge").evaluate("it => it.getBoundingClientRect().width") < PANE_MOST
        assert window.page.title() == "Tidegate"


def test_the_gauge_moves_and_a_compaction_appears_without_reloading(opened: Opened) -> None:
    with walking(6000) as walk:
        turns = growing(walk, 16)
        name = next(turns)
        with opened(walk) as window:
            window.page.locator("a.row").click()
            window.page.locator(".gauge-block").wait_for()
            before = window.gauge()
            for _ in range(9):
                next(turns)
            window.until(
                "Number(document.querySelector('.gauge-block').dataset.tokens) > it", before
            )
            assert window.page.locator(".chart .mark").count() == 0
            for last in turns:
                assert last == name
            window.page.locator(".chart .mark.summary").first.wait_for(state="attached")
            window.page.locator(".step.summary").first.wait_for()
            tokens = walk.client.get(f"/tidegate/conversations/{name}").json()["context"][
                "token_count"
            ]
            window.until(
                "Number(document.querySelector('.gauge-block').dataset.tokens) === it", tokens
            )
            assert "Compaction:" in window.text("#said") or "saved" in window.text(".step.summary")
            assert "16 turns" in str(window.page.locator(".chart svg").get_attribute("aria-label"))
            clean(window)


def test_compact_now_asks_first_and_tells_what_came_of_it(opened: Opened) -> None:
    with compacting() as (walk, name), opened(walk, f"#/c/-/{name}") as window:
        page = window.page
        page.locator(".gauge-block").wait_for()
        before = window.gauge()
        page.get_by_role("button", name="Compact now").click()
        page.keyboard.press("Escape")
        assert page.locator("dialog").count() == 0
        page.get_by_role("button", name="Compact now").click()
        clean(window)
        page.get_by_role("button", name="Compact", exact=True).click()
        page.locator(".toast", has_text="became a summary").wait_for()
        window.until("Number(document.querySelector('.gauge-block').dataset.tokens) < it", before)
        page.get_by_role("button", name="Compact now").click()
        page.get_by_role("button", name="Compact", exact=True).click()
        page.locator(".toast", has_text="Nothing to compact yet").wait_for()


def test_a_compaction_that_fails_is_told_in_words(opened: Opened) -> None:
    provider = StrictProvider(6000, summary=lambda body: " ")
    with walking(6000, provider=provider) as walk:
        name = grown(walk, 8)
        # The browser itself notes every answer above 399 in its console.
        with opened(walk, f"#/c/-/{name}", quiet=False) as window:
            window.page.get_by_role("button", name="Compact now").click()
            window.page.get_by_role("button", name="Compact", exact=True).click()
            window.page.locator(".toast.error", has_text="Nothing was replaced").wait_for()
            assert all("502" in complaint for complaint in window.complaints)


def test_the_original_stands_beside_the_surface(opened: Opened) -> None:
    with compacting() as (walk, name), opened(walk, f"#/c/-/{name}") as window:
        page = window.page
        page.get_by_role("button", name="Compare generation 1").click()
        replaced = page.locator(".pair.replaced")
        replaced.wait_for()
        assert "question 0:" in replaced.locator(".card.gone").first.inner_text()
        assert "SUMMARY" in replaced.locator(".card.fresh").inner_text()
        assert page.locator(".pair.same").count() > 0
        clean(window)
        page.get_by_label("Only what was replaced").check()
        assert not page.locator(".pair.same").first.is_visible()
        page.get_by_label("Generation", exact=True).select_option("0")
        page.get_by_text("generation 0.").wait_for()
        window.until("!document.querySelector('.pair.replaced')")


def test_what_was_cut_from_one_message_is_marked(opened: Opened) -> None:
    with walking(6000) as walk:
        call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages = [
            user("Read the log."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": f"{HOSTILE}\n" * 400},
        ]
        answer = walk.ask(messages)
        assert "prune" in answer.actions
        with opened(walk, f"#/c/-/{answer.facts['conversation']}/compare") as window:
            marked = window.page.locator(".pair.changed:not(.replaced)")
            marked.locator("del").wait_for()
            assert HOSTILE in marked.locator("del").inner_text()
            assert HOSTILE in marked.locator(".card").first.inner_text()
            assert marked.locator("mark").count() == 1


def test_a_replacement_is_revoked_after_a_question(opened: Opened) -> None:
    with compacting() as (walk, name), opened(walk, f"#/c/-/{name}") as window:
        page = window.page
        page.get_by_role("button", name="Revoke generation 1").click()
        clean(window)
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Revoke generation 1").click()
        page.get_by_role("button", name="Revoke", exact=True).click()
        page.locator(".toast", has_text="Revoked.").wait_for()
        page.get_by_text("revoked in generation 2").wait_for()
        page.locator(".step.revoke").wait_for()
        steps = walk.client.get(f"/tidegate/conversations/{name}").json()["generations"]
        assert [step["kind"] for step in steps] == ["summary", "revoke"]


def test_the_list_is_read_in_pages_and_follows_what_is_new(opened: Opened) -> None:
    with walking() as walk:
        for n in range(53):
            walk.ask([user(f"number {n}")])
        with opened(walk) as window:
            rows = window.page.locator("a.row")
            rows.first.wait_for()
            assert rows.count() == 50
            assert "number 52" in rows.first.inner_text()
            window.page.get_by_role("button", name="Show older").click()
            window.until("document.querySelectorAll('a.row').length === 53")
            assert "number 0" in rows.last.inner_text()
            assert not window.page.locator("#older").is_visible()
            walk.ask([user("one more")])
            window.until("document.querySelector('a.row').innerText.includes('one more')")
            assert rows.count() == 54


def test_everything_is_reached_with_the_keyboard(opened: Opened) -> None:
    with compacting() as (walk, _), opened(walk) as window:
        page = window.page
        page.locator("a.row").nth(1).wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        while "row" not in page.evaluate("document.activeElement.className"):
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        assert "outline" not in page.evaluate(
            "getComputedStyle(document.activeElement).outlineStyle"
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.locator(".chart svg").wait_for()
        slider = page.get_by_role("slider", name="Turn")
        slider.focus()
        page.keyboard.press("Home")
        assert str(slider.get_attribute("aria-valuetext")).startswith("Turn 1,")
        page.keyboard.press("End")
        assert str(slider.get_attribute("aria-valuetext")).startswith("Turn 16,")
        page.get_by_role("tab", name="Timeline").focus()
        page.keyboard.press("ArrowRight")
        page.locator(".pair").first.wait_for()
        assert page.evaluate("document.activeElement.id") == "tab-compare"
        page.keyboard.press("Escape")
        page.get_by_text("Choose a conversation").wait_for()
        assert "row" in page.evaluate("document.activeElement.className")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_one_thing_at_a_time(opened: Opened, scheme: str) -> None:
    with (
        compacting() as (walk, _),
        opened(walk, viewport=PHONE, color_scheme=scheme, has_touch=True) as window,
    ):
        page = window.page
        page.locator("a.row").first.tap()
        page.locator(".chart svg").wait_for()
        assert not page.locator("#list-pane").is_visible()
        for tab in ("Compare", "Activity", "Timeline"):
            window.open_tab(tab)
            page.locator(f"#panel-{tab.lower()} > *").first.wait_for()
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"], tab
        clean(window)
        page.get_by_text("All conversations").tap()
        page.locator("a.row").first.wait_for()
        clean(window)


def test_it_is_dark_where_the_system_is(opened: Opened) -> None:
    with compacting() as (walk, name):
        grounds = {}
        for scheme in ("light", "dark"):
            with opened(
                walk, f"#/c/-/{name}", color_scheme=scheme, reduced_motion="reduce"
            ) as window:
                window.page.locator(".chart svg").wait_for()
                grounds[scheme] = window.page.evaluate(
                    "getComputedStyle(document.body).backgroundColor"
                )
                clean(window)
        assert grounds["light"] != grounds["dark"]
        assert sum(map(int, grounds["dark"][4:-1].split(","))) < 100


def test_models_and_their_budgets_are_pictures(opened: Opened) -> None:
    with walking(6000) as walk:
        walk.ask([user("hi")])
        with opened(walk, "#/models") as window:
            card = window.page.locator(
                ".model", has=window.page.get_by_role("heading", name="gpt-4o")
            )
            card.wait_for()
            picture = card.locator("svg.budget")
            assert "Window of 6,000 tokens" in str(picture.get_attribute("aria-label"))
            assert "from your settings" in card.inner_text()
            clean(window)


def test_it_says_when_it_is_cut_off_and_comes_back_by_itself(opened: Opened) -> None:
    # The browser itself notes a stream that breaks.
    with compacting() as (walk, _), opened(walk, quiet=False) as window:
        page = window.page
        page.get_by_text("Live", exact=True).wait_for()
        page.route("**/tidegate/events", lambda route: route.abort())

        page.reload()
        page.locator("#notice", has_text="does not answer").wait_for()
        page.unroute("**/tidegate/events")
        walk.ask([user("said meanwhile")])
        page.get_by_text("Live", exact=True).wait_for()
        page.locator("a.row", has_text="said meanwhile").wait_for()
        assert not page.locator("#notice").is_visible()


def test_a_key_is_asked_for_where_one_is_needed_and_kept_in_the_tab(opened: Opened) -> None:
    server = {"host": "0.0.0.0", "admin_key": "sesame-of-the-operator"}
    with walking(server=server) as walk:
        walk.ask([user("hi")], headers={"authorization": "Bearer sk-client"})
        with opened(walk, quiet=False) as window:  # the browser notes the 401
            page = window.page
            page.get_by_role("dialog", name="Key").wait_for()
            page.get_by_role("textbox", name="Key").fill("sesame-of-the-operator")
            page.get_by_role("button", name="Use this key").click()
            page.locator("a.row").wait_for()
            page.get_by_text("Live", exact=True).wait_for()
            assert page.evaluate(
                "[localStorage.length, document.cookie, sessionStorage.length]"
            ) == [
                0,
                "",
                1,
            ]
            assert "sesame" not in page.url


def test_it_asks_nobody_but_this_address(opened: Opened, browser: "Browser") -> None:
    with compacting() as (walk, name):
        asked: list[str] = []
        with opened(walk) as window:
            window.page.on("request", lambda request: asked.append(request.url))
            window.page.goto(f"{walk.client.base_url}/tidegate/#/c/-/{name}/compare")
            window.page.reload()
            window.page.locator(".pair").first.wait_for()
            assert len(asked) > 15
            assert all(
                url.startswith((f"{walk.client.base_url}/tidegate", "data:")) for url in asked
            )
