"""Which of the user's lines are standing rules, and which of them are kept when there are many."""

from collections.abc import Sequence
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.messages import Message
from proxy.core.rules import RuleRef, choose_rules, find_rules, rule_text


def user(text: object) -> Message:
    return {"role": "user", "content": text}


def rules_in(*texts: str) -> list[str]:
    history = [user(text) for text in texts]
    return [rule_text(history, ref) for ref in find_rules(history, range(len(history)))]


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    "line",
    [
        "Always answer in one sentence.",
        "You must never delete files",
        "Do not touch the migrations",
        "please don't rename anything",
        "Don’t push to main",
        "Make sure the tests pass before you commit.",
        "From now on, call me Alex",
        "Remember that the budget is 500 EUR",
        "I don't want emojis in the README",
        "Could you make sure to always run the linter?",
        "回答必须用中文",
        "不要修改数据库",
        "永远不要删除文件",
        "请始终使用两个空格缩进",
        "以後都用繁體中文回答，務必簡短",
        "必ず日本語で答えてください",
        "ファイルを削除しないでください",
        "항상 한국어로 대답해 줘",
        "파일을 절대 지우지 마",
        "Antworte immer auf Deutsch.",
        "Du darfst niemals Dateien löschen.",
        "Réponds toujours en français.",
        "Il ne faut jamais supprimer les fichiers",
        "Responde siempre en español.",
        "Nunca borres archivos",
        "Responda sempre em português.",
        "Não use emojis",
        "Всегда отвечай по-русски.",
        "Никогда не удаляй файлы",
        "Rispondi sempre in italiano; non modificare i test",
        "Antwoord altijd in het Nederlands",
        "Zawsze odpowiadaj po polsku",
        "Her zaman Türkçe cevap ver",
        "Luôn trả lời bằng tiếng Việt",
        "दस्तावेज़ में हमेशा हिंदी लिखें",
        "أجب دائما بالعربية",
        "ענה תמיד בעברית",
        "ห้ามลบไฟล์",
    ],
)
def test_a_lasting_wish_is_a_rule_in_many_languages(line: str) -> None:
    assert rules_in(f"Hello\n{line}\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "Actually, use spaces",
        "No, actually the port is 8081",
        "Use httpx instead",
        "You no longer need to ask before a commit",
        "Forget the rule about tabs",
        "Scratch that.",
        "不用再写测试了",
        "改成四个空格",
        "やっぱりタブにして",
        "더 이상 테스트하지 않아도 돼",
        "Stattdessen bitte Leerzeichen",
        "Olvida la regla de los tabuladores",
        "Esqueça a regra",
        "Больше не пиши тесты",
    ],
)
def test_corrections_and_withdrawals_are_told_apart(line: str) -> None:
    (ref,) = find_rules([user(line)], [0])
    assert ref.correction


@pytest.mark.parametrize(
    "text",
    [
        "What time is it?",
        "Why does it never work?",
        "I don't know what happened",
        "I actually like this one",
        "```\nnever do this\n```",
        "~~~python\n# always true\n```\nmust\n~~~",
        "```\nalways (a fence that was never closed)",
        "> you must always quote",
        "   > never",
        "rename `never` to `always`",
        'The label says "do not enter".',
        "<file_content path='x'>\nAlways be careful\n</file_content>",
        "<a><a>\nnever\n</a>\nmust\n</a>",
        "<a><b>\nnever\n</b>\nmust</a>",
        "hello <environment_details># must\nalways</environment_details> there",
        "x" * 290 + " always so long",
        "",
    ],
)
def test_talk_code_quotes_and_tagged_data_are_not_rules(text: str) -> None:
    assert rules_in(text) == []


def test_the_user_s_own_words_count_in_the_wrappers_of_agents() -> None:
    assert rules_in("<task>\nFix it. Never touch main.py\n</task>\n<env>\nalways\n</env>") == [
        "Fix it. Never touch main.py"
    ]


def test_a_tag_that_is_never_closed_hides_nothing() -> None:
    assert rules_in("Use List<T> here\nnever use Any") == ["never use Any"]


def test_bullets_and_pin_marks_are_not_shown() -> None:
    assert rules_in("- always A\n * [[pin]] the B\n[[PIN]]\n[[pin]]   ") == ["always A", "the B"]


def test_a_pin_may_be_long_and_stand_in_a_long_message() -> None:
    pin = "keep this " * 60
    assert rules_in("filler\n" * 1000 + f"[[pin]] {pin}\nnever seen") == [pin.strip()]
    assert rules_in("```\n[[pin]] in a fence\n```") == []


def test_long_messages_hold_data_and_give_no_rules() -> None:
    assert rules_in("never do it\n" + "x" * 4000) == []


def test_only_user_messages_give_rules() -> None:
    history: list[Message] = [
        {"role": "assistant", "content": "You must never"},
        {"role": "tool", "content": "always"},
        {"role": "user", "content": None},
        user([{"type": "text", "text": "hi"}, {"type": "text", "text": "always A\r\nno"}]),
    ]
    (ref,) = find_rules(history, range(4))
    assert ref == RuleRef(3, 1)
    assert rule_text(history, ref) == "always A"


def test_positions_that_are_not_asked_for_are_not_read() -> None:
    history = [user("always A"), user("always B")]
    assert find_rules(history, [1]) == (RuleRef(1, 0),)


def test_identical_lines_are_kept_once_in_their_last_place() -> None:
    assert rules_in("always tabs", "actually, spaces", "- always tabs") == [
        "actually, spaces",
        "always tabs",
    ]


def test_a_line_that_is_gone_is_no_text() -> None:
    assert rule_text([user("one line")], RuleRef(0, 5)) == ""


def chosen(history: Sequence[Message], cap: int) -> tuple[list[str], int]:
    refs, left_out = choose_rules(
        find_rules(history, range(len(history))), history, cap_tokens=cap, count=words
    )
    return [rule_text(history, ref) for ref in refs], left_out


def test_all_rules_stay_when_they_fit() -> None:
    assert chosen([user("always A\nnever B")], 8) == (["always A", "never B"], 0)


def test_over_the_cap_pins_and_corrections_come_first_then_both_ends() -> None:
    history = [user(f"always rule{i:02}") for i in range(20)]
    history[10] = user("[[pin]] the pin")
    history[11] = user("actually, correction")
    kept, left_out = chosen(history, 24)  # each costs 4
    assert kept == [
        "always rule00",
        "always rule01",
        "the pin",
        "actually, correction",
        "always rule18",
        "always rule19",
    ]
    assert left_out == 14


def test_a_pin_larger_than_the_cap_is_counted_as_left_out() -> None:
    assert chosen([user("[[pin]] " + "w " * 50), user("always A")], 10) == (["always A"], 1)


@given(
    st.lists(st.sampled_from(["always a b", "never c", "[[pin]] d e f", "hi"])), st.integers(0, 30)
)
def test_the_cap_holds_and_every_rule_is_kept_or_counted(lines: list[str], cap: int) -> None:
    history = [user(f"{line} {i}") for i, line in enumerate(lines)]
    refs = find_rules(history, range(len(history)))
    kept, left_out = choose_rules(refs, history, cap_tokens=cap, count=words)
    assert len(kept) + left_out == len(refs)
    assert sum(words(rule_text(history, ref)) + 2 for ref in kept) <= cap or left_out == 0


@given(st.text(alphabet="<>/a `~\"'\n->*ne no pas[]pin", max_size=500))
def test_any_text_gives_an_answer(text: str) -> None:
    for ref in find_rules([user(text)], [0]):
        assert rule_text([user(text)], ref)


@pytest.mark.parametrize(
    "piece", ["<a ", "<a>", "</a>", "`", '"', "ne a", "- ", "[[pin]] x ", "[[pin]]\n<a>"]
)
def test_time_grows_with_the_text(piece: str) -> None:
    """A quarter of a million characters that suit a pattern badly take well under a second."""
    text = "[[pin]]\n" + piece * (250_000 // len(piece))
    before = perf_counter()
    find_rules([user(text)], [0])
    assert perf_counter() - before < 2
