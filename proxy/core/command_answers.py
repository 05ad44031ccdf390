"""What Tidegate says in a chat after `/compact`, in the conversation's language. The same figures
give the same words; no answer begins or ends with white space, which clients trim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from proxy.core.messages import Message, role_of, text_of

# Of the newest user messages, so much text decides about the language.
_LOOKED_AT_CHARS = 2000
# A Han character carries about as much as a short word; a Latin letter a fifth of that.
_LETTERS_PER_HAN = 4


class Language(StrEnum):
    """The languages that answers are written in."""

    ENGLISH = "en"
    CHINESE = "zh"


class Answer(StrEnum):
    """What there is to say."""

    COMPACTED = "compacted"
    NOT_ENOUGH = "not_enough_messages"
    BUSY = "conversation_busy"
    CHANGED = "history_changed"
    DISABLED = "compaction_disabled"
    INVALID_BUDGET = "invalid_budget"
    FAILED = "failed"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers of an answer."""

    removed: int = 0
    preserved: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    window_tokens: int | None = None
    detail: str = ""


_TEXTS: Mapping[Language, Mapping[Answer, str]] = {
    Language.ENGLISH: {
        Answer.COMPACTED: (
            "Compacted: a summary now stands for {removed} earlier {removed_noun}. The "
            "conversation went from {before} to {after} tokens{share}. The system prompt, your "
            "first message and your standing rules are kept, and the newest {preserved} "
            "{preserved_noun} {stay} word for word. Nothing was deleted; go on as usual."
        ),
        Answer.NOT_ENOUGH: (
            "There is nothing to compact yet: the conversation has {before} tokens{share}, and too "
            "little of it is old enough to be summarised."
        ),
        Answer.BUSY: (
            "This conversation is busy: another request or compaction of it is still running. "
            "Please try /compact again in a moment."
        ),
        Answer.CHANGED: (
            "The conversation changed while it was being compacted, so nothing was replaced. "
            "Please try /compact again."
        ),
        Answer.DISABLED: "Compaction is switched off for this model. Nothing was changed.",
        Answer.INVALID_BUDGET: "The conversation was not compacted. {detail}",
        Answer.FAILED: (
            "The compaction failed, and nothing was changed: {detail} You can go on as usual and "
            "try /compact again later."
        ),
        Answer.USAGE: (
            "Usage: send /compact (or /context compact) alone, as the whole message. It replaces "
            "the older messages of this conversation by a summary; the newest stay word for word. "
            "Nothing was changed."
        ),
    },
    Language.CHINESE: {
        Answer.COMPACTED: (
            "已压缩：较早的 {removed} 条消息现由一段摘要代替。对话从 {before} 个 token 减少到 "
            "{after} 个{share}。系统提示、您的第一条消息和您定下的规则都会保留，最新的 "
            "{preserved} 条消息逐字保留。没有删除任何内容，请照常继续。"
        ),
        Answer.NOT_ENOUGH: (
            "现在还没有可压缩的内容：对话共有 {before} 个 token{share}，可以归入摘要的旧消息太少。"
        ),
        Answer.BUSY: "对话正忙：它的另一个请求或压缩仍在进行。请稍后再发送 /compact。",
        Answer.CHANGED: "压缩期间对话发生了变化，因此没有替换任何内容。请再次发送 /compact。",
        Answer.DISABLED: "此模型已关闭压缩功能。没有做任何更改。",
        Answer.INVALID_BUDGET: "对话没有被压缩。{detail}",
        Answer.FAILED: "压缩失败，没有做任何更改：{detail} 您可以照常继续，稍后再发送 /compact。",
        Answer.USAGE: (
            "用法：单独发送 /compact（或 /context compact）作为整条消息。它会用一段摘要代替本对话中"
            "较早的消息，最新的消息逐字保留。没有做任何更改。"
        ),
    },
}
_SHARE = {
    Language.ENGLISH: ", {percent}% of the window of {window}",
    Language.CHINESE: "（占 {window} 窗口的 {percent}%）",
}


def language_of(messages: Sequence[Message]) -> Language:
    """The language of the newest user messages, as far as it is easily told."""
    han = letters = looked_at = 0
    for message in reversed(messages):
        if role_of(message) != "user":
            continue
        text = text_of(message)[:_LOOKED_AT_CHARS]
        if any("\u3040" <= char <= "\u30ff" or "\uac00" <= char <= "\ud7a3" for char in text):
            return Language.ENGLISH  # Japanese and Korean: not written here
        han += sum("\u3400" <= char <= "\u9fff" for char in text)
        letters += sum(char.isalpha() and char < "\u3000" for char in text)
        looked_at += len(text)
        if looked_at >= _LOOKED_AT_CHARS:
            break
    return Language.CHINESE if han * _LETTERS_PER_HAN > letters else Language.ENGLISH


def answer_text(answer: Answer, language: Language, figures: Figures) -> str:
    """The words of an answer."""
    share = ""
    shown = figures.tokens_before if answer is Answer.NOT_ENOUGH else figures.tokens_after
    if figures.window_tokens:
        percent = shown * 100 // figures.window_tokens
        window = f"{figures.window_tokens:,}"
        share = _SHARE[language].format(percent=percent, window=window)
    one = figures.preserved == 1
    return (
        _TEXTS[language][answer]
        .format(
            removed=figures.removed,
            removed_noun="message" if figures.removed == 1 else "messages",
            preserved=figures.preserved,
            preserved_noun="message" if one else "messages",
            stay="stays" if one else "stay",
            before=f"{figures.tokens_before:,}",
            after=f"{figures.tokens_after:,}",
            share=share,
            detail=figures.detail,
        )
        .strip()
    )
