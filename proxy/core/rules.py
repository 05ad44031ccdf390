"""The user's standing rules: lines of their own messages that ask for something lasting, found by
their words in many languages. A rule is a reference (message, line); its words are read from the
history when they are shown. Every pattern is tried once per position: time grows with the text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from proxy.core.messages import Message, role_of, text_of

LINE_CHARS = 300  # design section 9
MESSAGE_CHARS = 4000

# Imperatives that last. Spaced scripts are matched as whole words, case aside.
_LASTING_WORDS = (
    # English
    r"always|never|must|mustn['’]?t|shall not|should(?:n['’]?t| not| always| never)|make sure",
    r"be sure (?:to|that)|ensure|from now on|going forward|from here on|in (?:the )?future",
    r"remember|keep in mind|bear in mind|at all times|under no circumstances|no matter what",
    r"without exception|every time|avoid|only (?:use|ever|answer|reply|write|respond)|use only",
    r"(?:i|we) (?:do not|don['’]?t|never|would not|wouldn['’]?t) (?:want|like|allow|use|need)",
    r"(?:i|we)(?: would|['’]d)? (?:prefer|rather)|refrain from|is forbidden|not allowed",
    # German
    r"immer|niemals|nie|muss|musst|müssen|müsst|darf(?:st)? (?:nicht|kein\w*)|dürfen nicht",
    r"ab jetzt|ab sofort|von nun an|künftig|in zukunft|denke? daran|merke? dir",
    r"achte darauf|stell(?:e)? sicher|auf keinen fall|unter keinen umständen",
    r"vermeide|bitte (?:nicht|kein\w*)",
    # French
    r"toujours|jamais|doi(?:s|t|vent)|devez|il faut|ne [\w']+ pas|n['’]\w+ pas|assurez|assure-toi",
    r"veille[zr]? à|désormais|dorénavant|à partir de maintenant|rappelez|rappelle-toi|souviens",
    r"évite[zr]?|n['’]oublie[zs]?|en aucun cas",
    # Spanish and Portuguese
    r"siempre|nunca|jamás|deb(?:e|es|en|emos)|hay que|asegúrate|asegúrese|a partir de ahora",
    r"de ahora en adelante|recuerda|recuerde|no (?:uses|use|hagas|haga|olvides|olvide|debes)",
    r"evita|evite|bajo ninguna circunstancia|en ningún caso|sempre|jamais|deve(?:m|s|mos)?",
    r"certifique-se|a partir de agora|de agora em diante|lembre-se|lembra-te|não (?:use|faça|uses)",
    r"não (?:esqueça|deve|altere|mude|escreva|apague|quero)|é proibido|em hipótese alguma",
    # Italian
    r"mai|dev(?:i|e|ono)|assicurati|assicuratevi|d['’]ora in poi|da ora in poi|ricorda(?:ti)?",
    r"non (?:usare|fare|devi|dimenticare|scrivere|modificare|cancellare|toccare)|evitare",
    # Dutch, Polish, Turkish, Vietnamese, Indonesian
    r"altijd|nooit|moet|mag niet|vanaf nu|zorg (?:er ?voor|dat)|onthoud|vermijd",
    r"zawsze|nigdy|musisz|musi|nie wolno|od teraz|pamiętaj|upewnij się|unikaj",
    r"her zaman|daima|asla|mutlaka|bundan sonra|unutma|sakın|emin ol",
    r"luôn|luôn luôn|không bao giờ|phải|từ nay|hãy nhớ|đừng|không được",
    r"selalu|jangan|harus|mulai sekarang|ingatlah|pastikan",
    # Russian and Ukrainian
    r"всегда|никогда|долж(?:ен|на|но|ны)|обязательно|нельзя|отныне|впредь|(?:за)?помни(?:те)?",
    r"не (?:используй|делай|надо|нужно|трогай|меняй|пиши|удаляй|забудь|забывай)(?:те)?",
    r"избегай(?:те)?|с этого момента|убеди(?:сь|тесь)|завжди|ніколи",
    r"обов['’]язково|повин(?:ен|на|ні)|не можна",
    # Arabic, Hebrew, Hindi (spaced too)
    r"دائما|دائمًا|أبدا|أبدًا|يجب|لا تقم|لا تستخدم|من الآن فصاعدا|تأكد|تذكر",
    r"תמיד|אף פעם|לעולם לא|חייב|אסור|מעכשיו|זכור|אל ת\w+",
    r"हमेशा|कभी नहीं|कभी भी|जरूर|ज़रूर|अब से|याद रखें|याद रखो|मत (?:करो|करना|करें)",
)
# An imperative "don't", but not "I don't know".
_DO_NOT = r"(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\bthey )(?<!\bit )(?<!\bwho )\b(?:do not|don['’]?t)\b"
# Scripts without spaces: no word boundary to look for.
_LASTING_UNSPACED = (
    # Chinese, simplified and traditional
    r"必须|必須|不要|不得|不准|不许|不許|不可以|不能|永远|永遠|始终|始終|总是|總是|一律|务必|務必|切勿",
    r"请勿|請勿|禁止|严禁|嚴禁|绝不|絕不|千万别|千萬別|从现在开始|從現在開始|从今以后|今后|以后都|以後都",
    r"记住|記住|牢记|请记得|請記得|确保|確保|每次都|只能|别再|別再|不许再|避免",
    # Japanese
    r"必ず|絶対に|常に|いつも|決して|しないで|しては(?:いけ|なら)|ないでください|てはいけません|今後は|これから(?:は|ずっと)",
    r"覚えて(?:おいて|ください)|忘れないで|ようにして(?:ください)?|べからず|厳禁|なければならない|避けて",
    # Korean
    r"항상|절대|반드시|꼭|하지 ?마|지 ?말|앞으로|이제부터|지금부터",
    r"기억해|잊지|금지|해야 ?(?:해|합|한)|안 ?돼|안 ?됩",
    # Thai
    r"เสมอ|ห้าม|อย่า|ต้อง|ตั้งแต่นี้|จำไว้",
)
# What changes or takes back something said before.
_CORRECTING_WORDS = (
    r"no longer|any ?more|forget (?:the|that|about|what|my|this)|ignore (?:the|that|my|what)",
    r"scratch that|never ?mind|disregard|instead|changed my mind|correction|i was wrong|on second",
    r"no need to|stop \w+ing|drop the \w+|the rule \w+ (?:gone|lifted|off)|revert (?:to|that)",
    r"you (?:can|may) (?:now|again)|not required|is optional now|take that back",
    r"nicht mehr|stattdessen|vergiss|vergessen sie|doch nicht|eigentlich (?:doch|nicht|soll)",
    r"plutôt|finalement|au lieu de|ne \w+ plus|oublie[zs]?|en fait",
    r"en vez de|en lugar de|olvida|olvide|ya no|mejor (?:usa|use|no)|en realidad",
    r"em vez de|esqueça|não precisa mais|na verdade|já não",
    r"invece|al posto di|dimentica|non più|anzi",
    r"in plaats daarvan|niet meer|vergeet|zamiast|zapomnij|już nie|artık|yerine|vazgeç",
    r"thay vì|không cần nữa|lupakan|tidak perlu lagi|больше не|вместо|забудь(?:те)?",
    r"уже не|не нужно",
)
# "actually" in mid-sentence is mostly talk; at the start of a clause it corrects.
_ACTUALLY = r"(?:^|[.,;:!—-]\s{0,3}|\b(?:no|wait|but|oh|hmm|ok|okay),?\s)actually\b"
_CORRECTING_UNSPACED = (
    r"不用再|不再需要|不需要再|不必再|改成|改为|改為|改用|而不是|取消(?:这|那|之前|規|规)|忘(?:掉|了|记)(?:这|那|之前|前面|刚)",
    r"其实(?:不|应|还是)|算了|还是用|還是用|撤回|收回|不算数",
    r"代わりに|もう(?:不要|必要ない|いらない|しなくて)|やっぱり|やはり|取り消|撤回|忘れてください|訂正",
    r"대신|더 ?이상|취소|잊어|아니라|필요 ?없",
)


def _spaced(words: Iterable[str]) -> str:
    # Not `\b`: in Python a Devanagari vowel sign is no word character, and many words end in one.
    return r"(?<!\w)(?:" + "|".join(words) + r")(?!\w)"


_RULE = re.compile(
    f"{_spaced(_LASTING_WORDS)}|{_DO_NOT}|{'|'.join(_LASTING_UNSPACED)}", re.IGNORECASE
)
_CORRECTION = re.compile(
    f"{_spaced(_CORRECTING_WORDS)}|{_ACTUALLY}|{'|'.join(_CORRECTING_UNSPACED)}", re.IGNORECASE
)
_BULLET = re.compile(r"^(?:[-*+•·]\s+|\s+)+")
_PIN = re.compile(r"^\[\[pin\]\]\s*", re.IGNORECASE)
# A question asks once, unless it asks politely for something.
_REQUEST = re.compile(
    r"\b(?:please|(?:can|could|would|will) you|make sure)\b|请|請|能不能|可以|くれ|もらえ|주세요|"
    r"\b(?:bitte|kannst du|können sie|s['’]il|peux-tu|pouvez|por favor|puedes|pode|per favore)\b",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,63})(?:\s[^<>]{0,300})?>")
# Wrappers that agents put around the user's own words (Cline, Cursor, Roo); others hold data.
_OWN_WORDS = frozenset(
    {"task", "user_query", "user_message", "user_input", "user_request", "feedback", "user"}
)
_QUOTED = re.compile(r'`[^`\n]*`|"[^"\n]*"|“[^”\n]*”|«[^»\n]*»|„[^“”\n]*[“”]')


@dataclass(frozen=True, slots=True)
class RuleRef:
    """One line of one user message that lasts: line `line` of the text of `history[position]`."""

    position: int
    line: int
    pinned: bool = False
    correction: bool = False


def find_rules(history: Sequence[Message], positions: Sequence[int]) -> tuple[RuleRef, ...]:
    """The standing rules in these messages, in order; of identical lines the last."""
    found: dict[str, RuleRef] = {}
    for position in positions:
        message = history[position]
        if role_of(message) != "user":
            continue
        text = text_of(message)
        for ref in _rules_in(position, text):
            words = _words_of_line(text.split("\n")[ref.line])
            found.pop(words, None)
            found[words] = ref
    return tuple(sorted(found.values(), key=lambda ref: (ref.position, ref.line)))


def rule_text(history: Sequence[Message], ref: RuleRef) -> str:
    """The rule's words as the user wrote them, without list bullet and pin mark."""
    lines = text_of(history[ref.position]).split("\n")
    return _words_of_line(lines[ref.line]) if ref.line < len(lines) else ""


def choose_rules(
    refs: Sequence[RuleRef],
    history: Sequence[Message],
    *,
    cap_tokens: int,
    count: Callable[[str], int],
) -> tuple[tuple[RuleRef, ...], int]:
    """The rules that fit into `cap_tokens`, in history order, and how many were left out.

    Pins, corrections and withdrawals come first, the newest of them first; what is left goes by
    halves to the oldest and to the newest of the others.
    """
    cost = {ref: count(rule_text(history, ref)) + 2 for ref in refs}  # 2: bullet and line feed
    if sum(cost.values()) <= cap_tokens:
        return tuple(refs), 0
    pins = [ref for ref in refs if ref.pinned]
    corrections = [ref for ref in refs if ref.correction and not ref.pinned]
    others = [ref for ref in refs if not ref.pinned and not ref.correction]
    chosen: set[RuleRef] = set()
    left = cap_tokens
    for group in (reversed(pins), reversed(corrections)):
        left -= _take(group, cost, left, chosen)
    left -= _take(others, cost, left // 2, chosen)
    _take([ref for ref in reversed(others) if ref not in chosen], cost, left, chosen)
    return tuple(ref for ref in refs if ref in chosen), len(refs) - len(chosen)


def _take(
    refs: Iterable[RuleRef], cost: dict[RuleRef, int], room: int, chosen: set[RuleRef]
) -> int:
    spent = 0
    for ref in refs:
        if spent + cost[ref] <= room:
            spent += cost[ref]
            chosen.add(ref)
    return spent


def _words_of_line(line: str) -> str:
    return _PIN.sub("", _BULLET.sub("", line.strip())).strip()


def _rules_in(position: int, text: str) -> Iterator[RuleRef]:
    short = len(text) < MESSAGE_CHARS
    if not short and ("[[" not in text or "[[pin]]" not in text.lower()):
        return
    lines = text.split("\n")
    shown = _without_tags(text).split("\n")
    for number in _plain_lines(shown):
        line = _BULLET.sub("", shown[number].strip())
        pinned = _PIN.match(line) is not None
        if pinned and _words_of_line(lines[number]):
            yield RuleRef(position, number, pinned=True, correction=_corrects(line))
            continue
        if not short or not line or len(lines[number].strip()) > LINE_CHARS:
            continue
        said = _QUOTED.sub(" ", line)
        if line.endswith(("?", "？")) and not _REQUEST.search(said):
            continue
        correction = _corrects(said)
        if correction or _RULE.search(said):
            yield RuleRef(position, number, correction=correction)


def _corrects(line: str) -> bool:
    return _CORRECTION.search(line) is not None


def _plain_lines(lines: Sequence[str]) -> Iterator[int]:
    """The numbers of the lines outside code fences and quotes; an open fence runs to the end."""
    fence = ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if fence:
            # A fence is closed by at least as many of its own character, with nothing after them.
            if mark and mark.group(1).startswith(fence) and not line[mark.end() :].strip():
                fence = ""
            continue
        if mark:
            fence = mark.group(1)
            continue
        if not line.lstrip().startswith(">"):
            yield number


def _without_tags(text: str) -> str:
    """The text with tagged blocks blanked, line breaks kept; a tag never closed hides nothing."""
    tags = [tag for tag in _TAG.finditer(text) if tag.group(2).lower() not in _OWN_WORDS]
    last_close = {tag.group(2): tag.end() for tag in tags if tag.group(1)}
    kept: list[str] = []
    end = 0  # of what was copied or blanked so far
    hidden, depth = "", 0
    for tag in tags:
        closing, name = tag.group(1) == "/", tag.group(2)
        if hidden:
            if name != hidden:
                continue
            depth += -1 if closing else 1
            if depth and tag.end() < last_close[name]:
                continue
            kept.append("\n" * text.count("\n", end, tag.end()))
            end, hidden, depth = tag.end(), "", 0
        elif not closing and tag.end() < last_close.get(name, -1):
            kept.append(text[end : tag.start()])
            end, hidden, depth = tag.start(), name, 1
    return "".join([*kept, text[end:]])
