"""Remembers, in this process and bounded, what providers said about the size of prompts.

The decisions are in `core.anchors`. Losing an entry costs precision, never correctness: without an
anchor a count is scaled, without a ratio it stands as it is.
"""

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from cachetools import LRUCache

from proxy.core.anchors import (
    Anchor,
    Sent,
    holds_at,
    ids_below,
    is_believable,
    learned_ratio,
    reported_prompt_tokens,
    total_tokens,
)
from proxy.core.newest import Newest
from proxy.core.replacements import Replacement, Scope

logger = logging.getLogger(__name__)

ANCHORS_MAX = 16_384
"""One for each request in the recent past; about 8 MB. Chosen."""

SCOPES_MAX = 4096
"""Ratios and warnings remembered."""

SEARCHED_MESSAGES = 1024
"""How far back an anchor is looked for. A turn adds a few messages, an agent's run some dozens."""


class AnchorBook:
    """Anchors by (scope, fingerprint), and a ratio for each scope."""

    def __init__(self, *, anchors_max: int = ANCHORS_MAX, scopes_max: int = SCOPES_MAX) -> None:
        """Empty: nothing was reported yet."""
        self._anchors: Newest[tuple[Scope, bytes], Anchor] = Newest(anchors_max)
        self._ratios: Newest[Scope, float] = Newest(scopes_max)
        self._warned: MutableMapping[tuple[str, str], bool] = LRUCache(scopes_max)

    def ratio(self, scope: Scope) -> float:
        """Reported / counted of this scope; 1.0 until something was learned."""
        return self._ratios.get(scope, 1.0)

    def total(self, sent: Sent) -> int:
        """The size of a request about to be sent."""
        anchor = self.find(sent.scope, sent.chain, sent.visible)
        return total_tokens(sent.counted_tokens, anchor=anchor, ratio=self.ratio(sent.scope))

    def find(
        self, scope: Scope, chain: Sequence[bytes], visible: Sequence[Replacement]
    ) -> Anchor | None:
        """The newest anchor that this surface extends."""
        earliest = max(0, len(chain) - SEARCHED_MESSAGES)
        for position in range(len(chain), earliest, -1):
            anchor = self._anchors.get((scope, chain[position - 1]))
            if anchor is not None and holds_at(anchor, position, visible):
                return anchor
        return None

    def learn_from_usage(self, sent: Sent, usage: Mapping[str, Any]) -> float | None:
        """Take the prompt size from the usage of the reply; returns a ratio if one was learned."""
        reported = reported_prompt_tokens(usage)
        if reported is None or not self._believes(sent, reported):
            return None
        self._anchor(sent, reported)
        return self._learn(sent, learned_ratio(reported, sent.counted_tokens, sent.image_tokens))

    def learn_from_refusal(
        self, sent: Sent, prompt_tokens: int | None, *, is_lower_bound: bool
    ) -> float | None:
        """Take the prompt size that a refusal states; "at least" so many says nothing exact."""
        if prompt_tokens is None or prompt_tokens <= 0 or is_lower_bound:
            return None
        if not is_believable(prompt_tokens, sent.counted_tokens, sent.image_tokens):
            # A provider that refuses a prompt has not cut it: the number means something else.
            return None
        self._anchor(sent, prompt_tokens)
        ratio = learned_ratio(
            prompt_tokens, sent.counted_tokens, sent.image_tokens, from_refusal=True
        )
        return self._learn(sent, ratio)

    def _believes(self, sent: Sent, reported_tokens: int) -> bool:
        if is_believable(reported_tokens, sent.counted_tokens, sent.image_tokens):
            return True
        key = (sent.scope.upstream, sent.scope.model)
        if key not in self._warned:
            self._warned[key] = True
            logger.warning(
                "prompt silently truncated: its reported size is ignored"
                " upstream=%s model=%s reported_tokens=%d counted_tokens=%d",
                sent.scope.upstream,
                sent.scope.model,
                reported_tokens,
                sent.counted_tokens,
            )
        return False

    def _anchor(self, sent: Sent, reported_tokens: int) -> None:
        if sent.chain:
            shown = ids_below(sent.visible, len(sent.chain))
            anchor = Anchor(reported_tokens, sent.counted_tokens, shown)
            self._anchors.put((sent.scope, sent.chain[-1]), anchor)

    def _learn(self, sent: Sent, ratio: float | None) -> float | None:
        if ratio is not None:
            self._ratios.put(sent.scope, ratio)
        return ratio
