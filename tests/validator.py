"""What providers refuse in a list of messages, written from their rules and not from our code.

`violations` compares what the client sent with what was forwarded and reports only what is new:
histories that clients send broken may stay exactly as broken as they were, and no more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Key = tuple[str, str]

SYSTEM_ROLES = ("system", "developer")
RESULT_ROLES = ("tool", "function")
LONGEST_MARKER_CHARS = 200


def violations(client: Sequence[Message], forwarded: Sequence[Message]) -> list[str]:
    """Every rule that `forwarded` breaks and `client` did not, one line each; [] when valid.

    * every result answers a call of the assistant message whose group it stands in, every call is
      answered in its group, and no result or call is parted from its other half;
    * the system head is first and word for word, no system message is added behind it;
    * the first message after the head is no result;
    * client messages stand at most once each, in order, changed only by cutting long results,
      removing images or putting a frame in front of a user message;
    * what we add is a user message, and nothing goes without something of ours in its place.
    """
    # Of messages that are equal word for word either may be the one that was kept.
    last = _violations(client, forwarded, sign=1)
    return min(last, _violations(client, forwarded, sign=-1), key=len) if last else []


def _violations(client: Sequence[Message], forwarded: Sequence[Message], *, sign: int) -> list[str]:
    found: list[str] = []
    places = _places(client, forwarded, found, sign)
    found += _head(client, forwarded)
    found += _added(client, forwarded, places)
    found += _pairing(client, forwarded, places)
    found += _parted(client, places)
    return found


def broken_pairs(messages: Sequence[Message]) -> tuple[set[int], set[tuple[int, int]]]:
    """Results that answer no call of the group they stand in, and calls not answered there.

    A group is an assistant message with calls and the results right behind it.
    """
    orphans: set[int] = set()
    unanswered: set[tuple[int, int]] = set()
    group: list[tuple[Key | None, int, int]] = []
    for position, message in enumerate(messages):
        if message.get("role") not in RESULT_ROLES:
            unanswered |= {(at, index) for _, at, index in group}
            group = [(key, position, index) for index, key in enumerate(_calls(message))]
            continue
        key = _result(message)
        answered = next((call for call in group if key is not None and call[0] == key), None)
        if answered is None:
            orphans.add(position)
        else:
            group.remove(answered)
    return orphans, unanswered | {(at, index) for _, at, index in group}


def keeps_newest_user(client: Sequence[Message], forwarded: Sequence[Message]) -> bool:
    """Whether the newest user message with something in it is forwarded, alone or in a frame."""
    newest = [m for m in client if m.get("role") == "user" and _says_something(m)][-1:]
    return all(any(_stands_for(message, user) for message in forwarded) for user in newest)


def _says_something(message: Message) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content] if isinstance(content, str) else []
    return any((text := _text(part)) is None or text.strip() for part in parts)


def _calls(message: Message) -> list[Key | None]:
    if message.get("role") != "assistant":
        return []
    listed = message.get("tool_calls")
    keys: list[Key | None] = []
    for call in listed if isinstance(listed, list) else []:
        if isinstance(call, Mapping):
            call_id = call.get("id")
            keys.append(("id", call_id) if isinstance(call_id, str) else None)
    if isinstance(legacy := message.get("function_call"), Mapping):
        name = legacy.get("name")
        keys.append(("name", name) if isinstance(name, str) else None)
    return keys


def _result(message: Message) -> Key | None:
    kind, field = ("name", "name") if message.get("role") == "function" else ("id", "tool_call_id")
    named = message.get(field)
    return (kind, named) if isinstance(named, str) else None


def _places(
    client: Sequence[Message], forwarded: Sequence[Message], found: list[str], sign: int
) -> list[int | None]:
    """Which client message each forwarded one is; None for what we added.

    Aligned from the end, because the tail is what is kept; of places that are as good as another
    the last is taken, or with a negative `sign` the first.
    """
    places: list[int | None] = [None] * len(forwarded)
    bound = len(client)
    for index in range(len(forwarded) - 1, -1, -1):
        place = _place(client, forwarded, index, bound, sign)
        places[index] = place
        if place is not None:
            bound = place
        elif any(_equal(forwarded[index], message) for message in client[bound:]):
            found.append(f"forwarded {index}: a client message twice or out of order")
    return places


def _place(
    client: Sequence[Message], forwarded: Sequence[Message], index: int, bound: int, sign: int
) -> int | None:
    """The place below `bound` where the most messages before this one agree too."""
    contiguous = index + 1 == len(forwarded) or (
        bound < len(client) and _stands_for(forwarded[index + 1], client[bound])
    )
    if contiguous and bound and _stands_for(forwarded[index], client[bound - 1]):
        return bound - 1
    candidates = [p for p in range(bound) if _stands_for(forwarded[index], client[p])]
    return max(
        candidates, key=lambda p: (_run(client, forwarded, index, p), sign * p), default=None
    )


def _run(client: Sequence[Message], forwarded: Sequence[Message], index: int, place: int) -> int:
    """How many messages up to these two stand for one another."""
    length = 0
    while length <= min(index, place) and _stands_for(
        forwarded[index - length], client[place - length]
    ):
        length += 1
    return length


def _equal(message: Message, client: Message) -> bool:
    return message == client and list(message) == list(client)


def _stands_for(message: Message, client: Message) -> bool:
    """Whether `message` is the client's, as sent, cut, without images, or with a frame in front."""
    if message.get("role") != client.get("role"):
        return False
    rest = {key: value for key, value in message.items() if key != "content"}
    if rest != {key: value for key, value in client.items() if key != "content"}:
        return False
    new, old = message.get("content"), client.get("content")
    if _edited(new, old, cuts=client.get("role") in RESULT_ROLES):
        return True
    if client.get("role") != "user" or not old:
        return False
    if isinstance(new, str) and isinstance(old, str):
        return new.endswith("\n\n" + old)
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old) + 1:
        return _text(new[0]) is not None and _edited(new[1:], old, cuts=False)
    return False


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else None


def _edited(new: Any, old: Any, *, cuts: bool) -> bool:
    if new == old:
        return True
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return all(_edited(a, b, cuts=cuts) for a, b in zip(new, old, strict=True))
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        if "content" in old and {**new, "content": 0} == {**old, "content": 0}:
            return _edited(new.get("content"), old["content"], cuts=cuts)
        if _text(old) is None:
            return new.get("type") == "text" and "image" in str(new.get("text"))
        other = {"text": 0, "refusal": 0}
        return {**new, **other} == {**old, **other} and _cut(_text(new), _text(old), cuts)
    return _cut(new, old, cuts)


def _cut(new: Any, old: Any, cuts: bool) -> bool:
    if not cuts or not isinstance(new, str) or not isinstance(old, str) or len(new) >= len(old):
        return False
    pairs = list(zip(new, old, strict=False))
    head = next((n for n, (a, b) in enumerate(pairs) if a != b), len(new))
    pairs = list(zip(reversed(new), reversed(old), strict=False))
    tail = next((n for n, (a, b) in enumerate(pairs) if a != b), len(new))
    return head + tail >= max(len(new) - LONGEST_MARKER_CHARS, len(new) // 2)


def _head_length(messages: Sequence[Message]) -> int:
    roles = [message.get("role") in SYSTEM_ROLES for message in messages]
    return roles.index(False) if False in roles else len(roles)


def _head(client: Sequence[Message], forwarded: Sequence[Message]) -> list[str]:
    found = []
    length = _head_length(client)
    if list(forwarded[:length]) != list(client[:length]):
        found.append("the system head is not first, or changed")
    first, sent_first = forwarded[length : length + 1], client[length : length + 1]
    as_sent = any(_stands_for(message, sent) for message in first for sent in sent_first)
    if first and first[0].get("role") in RESULT_ROLES and not as_sent:
        found.append("the first message after the head is a result")
    return found


def _added(
    client: Sequence[Message], forwarded: Sequence[Message], places: Sequence[int | None]
) -> list[str]:
    ours = [index for index, place in enumerate(places) if place is None]
    roles = [(index, forwarded[index].get("role")) for index in ours]
    found = [f"forwarded {at}: added with role {role!r}" for at, role in roles if role != "user"]
    framed = any(
        len(str(message.get("content"))) > len(str(client[place].get("content")))
        for message, place in zip(forwarded, places, strict=True)
        if place is not None and client[place].get("role") == "user"
    )
    if len(forwarded) - len(ours) < len(client) and not ours and not framed:
        found.append("client messages are gone and nothing stands in their place")
    return found


def _pairing(
    client: Sequence[Message], forwarded: Sequence[Message], places: Sequence[int | None]
) -> list[str]:
    sent_orphans, sent_unanswered = broken_pairs(client)
    orphans, unanswered = broken_pairs(forwarded)
    found = [
        f"forwarded {index}: a result that answers no call of the group before it"
        for index in sorted(orphans)
        if places[index] not in sent_orphans
    ]
    found += [
        f"forwarded {index}: call {call} is not answered in its group"
        for index, call in sorted(unanswered)
        if (places[index], call) not in sent_unanswered
    ]
    return found


def _parted(client: Sequence[Message], places: Sequence[int | None]) -> list[str]:
    """Results of irregular histories, too, go where their calls go: kept or replaced together."""
    kept = {place for place in places if place is not None}
    return [
        f"client {result} answers client {call}, but only one of them was forwarded"
        for result, call in sorted(_nearest_calls(client).items())
        if (result in kept) != (call in kept)
    ]


def _nearest_calls(messages: Sequence[Message]) -> dict[int, int]:
    """For each result the nearest earlier message that makes a call of that id, if that one still
    waits and no assistant message without calls stands between."""
    answers: dict[int, int] = {}
    used: dict[tuple[int, Key], int] = {}
    since = 0
    for position, message in enumerate(messages):
        if message.get("role") not in RESULT_ROLES:
            continue
        key = _result(message)
        if key is None:
            # Whom it answers is anybody's guess, so that no call before it surely waits on.
            since = position
            continue
        for place in range(position - 1, since - 1, -1):
            keys = _calls(messages[place])
            if key in keys:
                if used.get((place, key), 0) < keys.count(key):
                    used[place, key] = used.get((place, key), 0) + 1
                    answers[position] = place
                break
            if messages[place].get("role") == "assistant" and not keys:
                break
    return answers
