"""Anchors are found by what a request extends, and what a provider gets wrong is not remembered."""

import logging

import pytest

from proxy.anchor_book import SEARCHED_MESSAGES, AnchorBook
from proxy.core.anchors import Sent
from proxy.core.replacements import Replacement, ReplacementKind, Scope

SCOPE = Scope("tenant", "default", "gpt-4o")


def chain(length: int, seed: str = "a") -> list[bytes]:
    return [f"{seed}{position}".encode() for position in range(length)]


def sent(
    length: int, counted: int, *, scope: Scope = SCOPE, images: int = 0, shown: tuple[str, ...] = ()
) -> Sent:
    visible = [Replacement(name, 1, ReplacementKind.SUMMARY, 0, 2, b"", {}) for name in shown]
    return Sent(scope, chain(length), visible, counted, images)


def test_without_a_report_the_count_stands() -> None:
    assert AnchorBook().total(sent(3, 4000)) == 4000


def test_a_longer_request_is_what_was_reported_plus_what_came_since() -> None:
    book = AnchorBook()
    assert book.learn_from_usage(sent(3, 4000), {"prompt_tokens": 5000}) == 1.25
    assert book.total(sent(3, 4000)) == 5000
    assert book.total(sent(5, 4100)) == 5125


def test_the_newest_report_holds() -> None:
    book = AnchorBook()
    book.learn_from_usage(sent(3, 4000), {"prompt_tokens": 5000})
    book.learn_from_usage(sent(5, 4200), {"prompt_tokens": 5300})
    assert book.total(sent(7, 4200)) == 5300


def test_another_scope_or_another_history_knows_nothing_of_it() -> None:
    book = AnchorBook()
    book.learn_from_usage(sent(3, 4000), {"prompt_tokens": 5000})
    for scope in (
        Scope("other", "default", "gpt-4o"),
        Scope("tenant", "other", "gpt-4o"),
        Scope("tenant", "default", "other"),
    ):
        assert book.total(sent(3, 4000, scope=scope)) == 4000
    elsewhere = Sent(SCOPE, chain(5, "b"), (), 4000)
    assert book.total(elsewhere) == 5000, "the ratio is the scope's, the anchor is not used"
    assert book.find(SCOPE, chain(5, "b"), ()) is None


def test_a_shorter_history_is_not_what_was_reported() -> None:
    book = AnchorBook()
    book.learn_from_usage(sent(5, 4000), {"prompt_tokens": 5000})
    assert book.find(SCOPE, chain(3), ()) is None


def test_a_replacement_voids_the_anchors_above_it_and_a_new_report_makes_one() -> None:
    book = AnchorBook()
    book.learn_from_usage(sent(5, 4000), {"prompt_tokens": 5000})
    replaced = sent(7, 2000, shown=("summary",))
    assert book.total(replaced) == 2500
    assert book.find(SCOPE, replaced.chain, replaced.visible) is None
    book.learn_from_usage(replaced, {"prompt_tokens": 2400})
    assert book.total(sent(7, 2000, shown=("summary",))) == 2400
    assert book.find(SCOPE, chain(5), ()) is not None, "an unreplaced surface still has its own"


def test_growth_counts_tools_and_format_too() -> None:
    """The count is the whole request's: a tool more since the report is growth."""
    book = AnchorBook()
    book.learn_from_usage(sent(3, 900), {"prompt_tokens": 950})
    assert book.total(sent(3, 1000)) == 1050


def test_a_truncating_provider_is_not_believed_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = AnchorBook()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert book.learn_from_usage(sent(3, 9000), {"prompt_tokens": 4096}) is None
        other_tenant = sent(3, 9000, scope=Scope("other", "default", "gpt-4o"))
        book.learn_from_usage(other_tenant, {"prompt_tokens": 4096})
    assert len(caplog.records) == 1
    assert "silently truncated" in caplog.text
    assert "model=gpt-4o" in caplog.text
    assert book.total(sent(3, 9000)) == 9000


def test_usage_that_cannot_be_read_teaches_nothing() -> None:
    book = AnchorBook()
    assert book.learn_from_usage(sent(3, 4000), {"prompt_tokens": None}) is None
    assert book.total(sent(3, 4000)) == 4000


class TestRefusals:
    def test_the_size_in_a_refusal_is_an_anchor_and_a_ratio(self) -> None:
        book = AnchorBook()
        assert book.learn_from_refusal(sent(3, 4000), 5000, is_lower_bound=False) == 1.25
        assert book.total(sent(3, 4000)) == 5000
        assert book.ratio(SCOPE) == 1.25

    def test_at_least_so_many_teaches_nothing(self) -> None:
        book = AnchorBook()
        assert book.learn_from_refusal(sent(3, 4000), 5000, is_lower_bound=True) is None
        assert book.total(sent(3, 4000)) == 4000

    def test_no_number_teaches_nothing(self) -> None:
        book = AnchorBook()
        assert book.learn_from_refusal(sent(3, 4000), None, is_lower_bound=False) is None

    def test_a_number_far_above_our_count_gives_no_ratio(self) -> None:
        book = AnchorBook()
        assert book.learn_from_refusal(sent(3, 4000), 16_000, is_lower_bound=False) is None
        assert book.ratio(SCOPE) == 1.0

    def test_a_number_far_below_our_count_gives_nothing(self) -> None:
        book = AnchorBook()
        assert book.learn_from_refusal(sent(3, 4000), 2000, is_lower_bound=False) is None
        assert book.total(sent(3, 4000)) == 4000


def test_a_request_without_a_history_teaches_a_ratio_alone() -> None:
    book = AnchorBook()
    assert book.learn_from_usage(sent(0, 2000), {"prompt_tokens": 2200}) == 1.1
    assert book.find(SCOPE, [], ()) is None


def test_memory_is_bounded() -> None:
    book = AnchorBook(anchors_max=2, scopes_max=2)
    for number in range(5):
        scope = Scope("tenant", "default", str(number))
        book.learn_from_usage(sent(number + 1, 2000, scope=scope), {"prompt_tokens": 2200})
    ratios = [book.ratio(Scope("tenant", "default", str(number))) for number in range(5)]
    assert ratios == [1.0, 1.0, 1.0, 1.1, 1.1]


def test_an_anchor_is_looked_for_only_so_far_back() -> None:
    book = AnchorBook()
    book.learn_from_usage(sent(1, 2000), {"prompt_tokens": 2200})
    assert book.find(SCOPE, chain(SEARCHED_MESSAGES), ()) is not None
    assert book.find(SCOPE, chain(SEARCHED_MESSAGES + 1), ()) is None
