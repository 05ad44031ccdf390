"""Which images leave the request: always the oldest, the newest user message's last of all. An
offload is stored by place, type and size, from which the placeholder follows; no client's word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.compaction import View, edit, newest_user
from proxy.core.images import PLACEHOLDER_TOKENS, offload_count, offload_for_bytes
from proxy.core.overflow import Refusal, RefusalKind
from proxy.core.replacements import NewReplacement, ReplacementKind

IMAGE_ROLES = frozenset({"user", "tool", "function"})
"""Whose images are offloaded: an assistant's are its own words."""


@dataclass(frozen=True, slots=True)
class SurfaceImage:
    """An image still on the surface: where, what it costs, what the placeholder will say."""

    position: int
    path: tuple[int, ...]
    tokens: int
    size_bytes: int
    media_type: str | None
    width_px: int | None
    height_px: int | None


def in_offload_order(view: View, images: Sequence[SurfaceImage]) -> tuple[SurfaceImage, ...]:
    """Oldest first; those of the newest user message at the end."""
    newest = newest_user(view.history)
    return tuple(sorted(images, key=lambda i: (i.position == newest, i.position, i.path)))


def offloads(view: View, images: Sequence[SurfaceImage]) -> tuple[NewReplacement, ...]:
    """One replacement for each message that loses images."""
    by_position: dict[int, list[dict[str, Any]]] = {}
    for image in images:
        entry = {
            "path": list(image.path),
            "media_type": image.media_type,
            "width_px": image.width_px,
            "height_px": image.height_px,
        }
        by_position.setdefault(image.position, []).append(entry)
    return tuple(
        edit(view, position, ReplacementKind.OFFLOAD, {"parts": parts})
        for position, parts in sorted(by_position.items())
    )


def offload_for_tokens(
    view: View, images: Sequence[SurfaceImage], target_tokens: int
) -> tuple[NewReplacement, ...]:
    """The oldest images whose going brings the total to the target; none when they cannot.

    The newest user message's images stay: the user is asking about them.
    """
    newest = newest_user(view.history)
    excess = view.total_tokens - target_tokens
    chosen: list[SurfaceImage] = []
    for image in in_offload_order(view, images):
        if excess <= 0 or image.position == newest:
            break
        gain = image.tokens - PLACEHOLDER_TOKENS
        if gain > 0:
            chosen.append(image)
            excess -= gain
    return offloads(view, chosen) if chosen and excess <= 0 else ()


def offload_for_summary(
    view: View, images: Sequence[SurfaceImage], refusal: Refusal, *, end: int, body_bytes: int
) -> tuple[NewReplacement, ...]:
    """What the refusal of a summary call of `history[:end]` asks to offload.

    As after any refusal, but of the range alone, and all its images where no number is stated: they
    are about to leave with the range, and few calls may be lost. A model that takes no images
    loses those after the range too.
    """
    inside = [image for image in images if image.position < end]
    if not inside or refusal.takes_no_images:
        return offloads(view, images) if inside else ()
    numbers = (refusal.image_limit, refusal.limit_bytes, refusal.limit_px)
    if all(number is None for number in numbers):
        return offloads(view, inside)
    return offload_after_refusal(view, inside, refusal, body_bytes=body_bytes)


def offload_after_refusal(
    view: View, images: Sequence[SurfaceImage], refusal: Refusal, *, body_bytes: int
) -> tuple[NewReplacement, ...]:
    """What a refusal asks to offload: all, the ones too large, or as many of the oldest as needed.

    A limit on the bytes of single images takes those that exceed it, whoever sent them; one on
    their pixels too, but those of the newest user message only when no other exceeds it (it can
    depend on how many images there are). A limit on the body or on the number of images takes the
    oldest; no usable number takes half of those left.
    """
    ordered = in_offload_order(view, images)
    if refusal.takes_no_images:
        return offloads(view, ordered)
    if refusal.kind is RefusalKind.PAYLOAD_TOO_LARGE:
        count = offload_for_bytes(
            [image.size_bytes for image in ordered],
            body_bytes,
            refusal.limit_bytes,
            refusal.actual_bytes,
        )
        return offloads(view, ordered[:count])
    if refusal.limit_bytes is not None and refusal.image_limit is None:
        # Providers count the decoded image; base64 is a third longer.
        too_large = [i for i in ordered if i.size_bytes * 3 // 4 > refusal.limit_bytes]
        if too_large:
            return offloads(view, too_large)
    if refusal.limit_px is not None and refusal.image_limit is None:
        too_large = [i for i in ordered if _longest_px(i) > refusal.limit_px]
        newest = newest_user(view.history)
        if too_large:
            return offloads(view, [i for i in too_large if i.position != newest] or too_large)
    count = offload_count(
        len(ordered), image_limit=refusal.image_limit, image_count=refusal.image_count
    )
    return offloads(view, ordered[:count])


def _longest_px(image: SurfaceImage) -> int:
    return max(image.width_px or 0, image.height_px or 0)
