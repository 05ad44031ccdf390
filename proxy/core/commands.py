"""The chat command: `/compact` or `/context compact` as a whole user message. The command and our
answer to it never reach a model: both are taken out before positions and fingerprints exist."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from proxy.core.messages import Message, part_text, role_of

COMMANDS = ("/compact", "/context compact")
USAGE_CHARS = 100  # more than this after the command is meant for the model
LONGEST_CHARS = 1000  # white space around it included; longer text is not even trimmed


class Command(StrEnum):
    """What a user message asks of Tidegate."""

    COMPACT = "compact"
    USAGE = "usage"


def command_in(message: Message) -> Command | None:
    """The command that a user message is; None when it is for the model.

    The content must be a string or one text part. The command alone compacts; with at most
    `USAGE_CHARS` more on the same line it asks how that is done.
    """
    if role_of(message) != "user":
        return None
    content = message.get("content")
    if isinstance(content, list):
        content = part_text(content[0]) if len(content) == 1 else None
    if not isinstance(content, str) or len(content) > LONGEST_CHARS:
        return None
    line = content.strip()
    if not line.startswith("/"):
        return None
    for command in COMMANDS:
        if line == command:
            return Command.COMPACT
        more = line[len(command) :]
        if line.startswith(command) and more[0].isspace() and _is_short(more):
            return Command.USAGE
    return None


def _is_short(more: str) -> bool:
    return len(more) <= USAGE_CHARS and len(more.splitlines()) == 1


def pending_command(messages: Sequence[Message]) -> Command | None:
    """The command that the last message is, if it is one: to be answered now."""
    return command_in(messages[-1]) if messages else None


def candidate_answers(messages: Sequence[Message]) -> tuple[int, ...]:
    """The positions of assistant messages right after a command: our answers, if we gave them."""
    return tuple(
        position
        for position in range(1, len(messages))
        if role_of(messages[position]) == "assistant"
        and command_in(messages[position - 1]) is not None
    )


def exchange_positions(
    messages: Sequence[Message], is_ours: Callable[[int], bool]
) -> frozenset[int]:
    """The positions to take out: commands, and the answers that `is_ours` recognises.

    A compaction asked for is always ours to take out. A command with more words is so when it is
    the last message, or when our answer follows: else a model may have been asked, before us.
    """
    taken: set[int] = set()
    asking = [n for n, message in enumerate(messages) if message.get("role") == "user"]
    for position in asking:
        command = command_in(messages[position])
        if command is None:
            continue
        following = position + 1
        answered = following < len(messages) and role_of(messages[following]) == "assistant"
        ours = answered and is_ours(following)
        if command is Command.COMPACT or ours or following == len(messages):
            taken.add(position)
        if ours:
            taken.add(following)
    return frozenset(taken)
