"""The words of Tidegate in a chat: all figures in them, in the language of the conversation."""

import pytest

from proxy.core.command_answers import Answer, Figures, Language, answer_text, language_of
from proxy.core.messages import Message

FIGURES = Figures(24, 3, 12_345, 2_345, 32_768, detail="The model gave no usable summary.")


def said(text: str, role: str = "user") -> Message:
    return {"role": role, "content": text}


def test_the_language_is_that_of_the_newest_user_messages() -> None:
    english, chinese = said("Please fix the parser."), said("请把解析器修好，谢谢。")
    assert language_of([]) is Language.ENGLISH
    assert language_of([chinese, english, english, english]) is Language.ENGLISH
    assert language_of([english, chinese, chinese]) is Language.CHINESE
    assert (
        language_of([said("这个函数 parse_header 在哪里报错？请看一下日志。")]) is Language.CHINESE
    )
    assert language_of([english, said("中文" * 50, "assistant")]) is Language.ENGLISH
    assert language_of([said("この関数を直してください。")]) is Language.ENGLISH


@pytest.mark.parametrize("language", list(Language))
@pytest.mark.parametrize("answer", list(Answer))
def test_every_answer_is_written_in_every_language(answer: Answer, language: Language) -> None:
    text = answer_text(answer, language, FIGURES)
    assert text == text.strip()
    assert text
    assert "{" not in text
    assert any("\u4e00" <= char <= "\u9fff" for char in text) is (language is Language.CHINESE)


@pytest.mark.parametrize("language", list(Language))
def test_a_compaction_is_told_in_figures(language: Language) -> None:
    text = answer_text(Answer.COMPACTED, language, FIGURES)
    assert [number in text for number in ("24", "3", "12,345", "2,345", "32,768", "7%")] == [
        True
    ] * 6
    assert "%" not in answer_text(Answer.COMPACTED, language, Figures(1, 1, 2, 1))


def test_one_is_not_many() -> None:
    text = answer_text(Answer.COMPACTED, Language.ENGLISH, Figures(1, 1, 500, 100))
    assert "1 earlier message." in text
    assert "newest 1 message stays" in text
