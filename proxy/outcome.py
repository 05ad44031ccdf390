"""What the pipeline answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.reply import Reply


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reply to relay, and the headers that say what was done."""

    reply: Reply
    headers: Mapping[str, str] = field(default_factory=dict)
