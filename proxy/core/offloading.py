"""Which images leave the request: always the oldest, the newest user message's last of all. An
offload is stored by place, type and size, from which the placeholder follows; no client's word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.compaction import View, edit, newest_user
from proxy.core.replacements import NewReplacement, ReplacementKind


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
        chosen.append(image)
        excess -= image.tokens
    return offloads(view, chosen) if chosen and excess <= 0 else ()
